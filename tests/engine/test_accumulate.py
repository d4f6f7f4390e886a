"""Parts of the real loop: the draws of each micro-batch, what is logged, validated, kept as the best and restored.

No run is trained to its end here.
"""

from contextlib import nullcontext

import pytest
import torch
from tiny_runs import NUM_VAL, PRETRAINING, build_trainer, differing, tiny_run, weights_of
from torch.nn import functional as F

from pipeline.core.files import read_lines
from pipeline.core.seeds import seed_everything
from pipeline.engine import loop
from pipeline.engine.meters import Stopwatch
from pipeline.engine.parallel.distributed import World
from pipeline.methods.base import Output, Primary
from pipeline.methods.supervised import Supervised
from pipeline.tasks.metrics import MetricValues

FOUR = {"optim": {"global_batch": 40, "micro_batch": 10}}
DRAWING = {"mjp": {"method": {"name": "mjp", "fidelity": "paper", "shuffle_ratio": 0.5}}, **PRETRAINING}
MIXED = {"data": {"augment": {"mixup": 0.8}}}


class Peer(World):
    """One of several ranks, whose peers all have what it has."""

    def sum(self, values):
        return values * self.size


class CountsFew(Supervised):
    """A mean over the images of some classes, whose number is the weight of a micro-batch."""

    def loss(self, images, targets, draw):
        counted = (targets.argmax(dim=1) < 3).float()
        each = F.cross_entropy(self.predict(images).logits, targets, reduction="none")
        return Output((each * counted).sum() / counted.sum(), {}, counted.sum())


def same_images():
    pictures = torch.randint(256, (10, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return pictures, torch.arange(10)


def accumulated(trainer, step=5):
    """What the method is given for each micro-batch of an update, whose images are all the same."""
    seen, draw = [], trainer.method.draw

    def spy(batch, progress):
        drawn = draw(batch, progress)
        tensors = [batch.inputs, batch.targets, *drawn.values()]
        seen.append((batch.generator.initial_seed(), progress, *[value.numpy().tobytes() for value in tensors]))
        return drawn

    trainer.method.draw, trainer.step = spy, step
    trainer.accumulate(iter([same_images()] * 4), Stopwatch())
    trainer.method.draw = draw
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWING)
def test_accumulate__micro_batches_of_the_same_images__have_draws_of_their_own(results, images, kind):
    trainer = build_trainer(tiny_run(FOUR, DRAWING[kind]), results, images)
    seen = accumulated(trainer)
    assert len({parts[4:] for parts in seen}) == 4 == len(seen)
    assert accumulated(trainer) == seen
    assert not {parts[4:] for parts in accumulated(trainer, step=6)} & {parts[4:] for parts in seen}
    assert {parts[1] for parts in seen} == {5 / trainer.run.total_steps}


def test_accumulate__micro_batches_of_the_same_images__are_mixed_in_their_own_ways(results, images):
    trainer = build_trainer(tiny_run(FOUR, MIXED), results, images)
    seen = accumulated(trainer)
    assert len({inputs for _, _, inputs, _ in seen}) == 4
    assert [seed for seed, *_ in seen] == [seed_everything("step", 0, 5, micro) for micro in range(4)]


def update_of(trainer, count=4):
    """Loss and gradients of an update from micro-batches that are all the same."""
    loss = trainer.accumulate(iter([same_images()] * count), Stopwatch())
    return loss.item(), [p.grad.clone() for p in trainer.method.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", [Supervised, CountsFew])
def test_accumulate__second_update_and_one_of_two_processes__have_loss_and_gradients_of_the_first(
    results, images, monkeypatch, kind
):
    trainer = build_trainer(tiny_run(FOUR), results, images)
    trainer.method.__class__ = kind
    expected = update_of(trainer)
    torch.testing.assert_close(update_of(trainer), expected)
    monkeypatch.setattr(trainer, "world", Peer(0, 2, torch.device("cpu")))
    monkeypatch.setattr(trainer, "_sync_gradients", lambda is_last: nullcontext())
    trainer.micro_step.count = 2
    torch.testing.assert_close(update_of(trainer, 2), expected)


def test_update__gradients_above_the_limit__are_clipped_before_the_step_and_logged_as_they_were(results, images):
    trainer = build_trainer(tiny_run(FOUR, {"optim": {"clip_norm": 0.01}}), results, images)
    loss, norms = trainer.accumulate(iter([same_images()] * 4), Stopwatch()), []
    before = global_norm(trainer.method)
    trainer.optimizer.register_step_pre_hook(lambda *_: norms.append(global_norm(trainer.method)))
    trainer._update_weights(loss)
    assert norms == [pytest.approx(0.01, rel=1e-3)] and before > 0.1
    assert trainer.meters.read()["grad_norm"] == pytest.approx(before)


def global_norm(method):
    return torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None]).norm().item()


@pytest.mark.parametrize("rank", [0, 1])
def test_accumulate__one_of_two_processes__draws_for_every_second_micro_batch(results, images, monkeypatch, rank):
    trainer = build_trainer(tiny_run(FOUR, MIXED), results, images)
    everything = accumulated(trainer)
    monkeypatch.setattr(trainer, "world", Peer(rank, 2, torch.device("cpu")))
    monkeypatch.setattr(trainer, "_sync_gradients", lambda is_last: nullcontext())
    assert accumulated(trainer) == everything[rank::2]


def test_validate__model_with_dropout__is_measured_without_it_and_trains_on_with_it(results, images):
    run = tiny_run({"model": {"dropout": 0.5, "drop_path": 0.5}})
    trainer = build_trainer(run, results, images)
    trainer._validate()
    found = trainer.last_validation.metrics["loss"]
    assert trainer.method.training and all(block.training for block in trainer.method.encoder.blocks)
    trainer.method.eval()
    losses = []
    with torch.no_grad():
        for inputs, labels in trainer.batches.validation:
            pictures, labels = trainer.task.eval_batch(inputs, labels)
            losses.append(F.cross_entropy(trainer.method.encoder(pictures), labels, reduction="none"))
    assert found == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    trainer._validate()
    assert not trainer.method.training and trainer.last_validation.metrics["loss"] == found


def test_log__one_update__is_its_loss_its_norm_its_part_of_an_epoch_and_the_rate_of_the_heads(results, images):
    run = tiny_run(FOUR, {"optim": {"layer_decay": 0.5}})
    trainer = build_trainer(run, results, images)
    trainer.schedule.step_update(3)  # the first after the warm-up
    loss = trainer.accumulate(iter([same_images()] * 4), Stopwatch())
    norm = global_norm(trainer.method)
    trainer._update_weights(loss)
    trainer.step = 4
    trainer._log(Stopwatch())
    (line,) = read_lines(trainer.paths.metrics)
    assert line == pytest.approx(
        {"step": 4, "epoch": 1.3333, "loss": loss.item(), "lr": run.optim.lr, "skipped": 0, "grad_norm": norm}
    )


@pytest.mark.slow
def test_restore__from_a_checkpoint__has_everything_that_is_reported_later(results, images):
    run = tiny_run(FOUR, {"optim": {"keep": "best", "ema_decay": 0.5}})
    first = build_trainer(run, results, images)
    first._update_weights(first.accumulate(iter([same_images()] * 4), Stopwatch()))
    first.step = 3
    first._validate()
    first.num_skips.fill_(2)
    first._save()
    again = build_trainer(run, results, images)
    assert again.step == 3 and int(again.num_skips) == 2
    assert again.last_validation == first.last_validation and again.last_validation.errors["top1"] > 0
    assert again.last_validation.count == NUM_VAL
    assert again.best == first.best == {"top1": first.last_validation.metrics["top1"]}
    assert again.best_weights.step == 3 and differing(again.best_weights.weights, first.best_weights.weights) == []
    assert again.meters.read() == first.meters.read()
    assert differing(weights_of(again), weights_of(first)) == []


@pytest.mark.parametrize("is_lower_better", [False, True])
def test_validate__as_good_as_the_best__keeps_the_earlier_weights(results, images, monkeypatch, is_lower_better):
    trainer = build_trainer(tiny_run({"optim": {"keep": "best"}}), results, images)
    monkeypatch.setattr(type(trainer.task), "primary", Primary("top1", is_lower_better))
    values, kept = iter([50.0, 50.0, 40.0, 60.0]), []
    monkeypatch.setattr(loop, "measure_set", lambda *_, **__: MetricValues({"top1": next(values)}))
    for trainer.step in (1, 2, 3, 4):
        trainer._validate()
        kept.append((trainer.best_weights.step, trainer.best["top1"]))
    assert kept == ([(1, 50), (1, 50), (3, 40), (3, 40)] if is_lower_better else [(1, 50), (1, 50), (1, 50), (4, 60)])
