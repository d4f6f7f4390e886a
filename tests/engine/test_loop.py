"""Whole tiny runs in this process: what they learn, at which rates, from which draws, and what they leave behind."""

import copy
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import (
    ALONE,
    PRETRAINING,
    RICH,
    StopAfter,
    build_trainer,
    differing,
    fit,
    publish,
    tiny_run,
    weights_of,
)
from torch.nn import functional as F

from pipeline.core.errors import CheckpointError, ConfigError, DataError
from pipeline.core.files import read_lines
from pipeline.core.seeds import seed_everything
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.loop import build_method, check_world
from pipeline.engine.meters import Stopwatch
from pipeline.engine.optim import build_schedule
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.engine.validate import measure_set
from pipeline.methods.base import Output
from pipeline.methods.supervised import Supervised
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow


def test_fit__easy_images__are_learned(images, tmp_path):
    trainer = fit(
        tiny_run({"optim": {"epochs": 20}, "data": {"augment": {"crop": "none", "hflip": 0}}}), tmp_path, images
    )
    assert trainer.best["top1"] >= trainer.last_validation.metrics["top1"] > 60
    records = read_lines(trainer.paths.metrics)
    assert [r["step"] for r in records if "loss" in r] == [*range(4, 121, 4)]
    assert [r["step"] for r in records if "val_top1" in r] == [*range(6, 121, 6)]
    assert trainer.best == {"top1": max(r["val_top1"] for r in records if "val_top1" in r)}


def test_checkpoints__interval_of_zero__are_written_after_every_step(images, tmp_path):
    trainer = fit(tiny_run({"optim": {"epochs": 2}}), tmp_path, images, checkpoint_s=0)
    names = sorted(path.name.split("-")[1] for path in trainer.paths.state.glob("*.pt"))
    assert names == ["000000011", "000000012"]


def test_accumulation__four_micro_batches__have_loss_and_gradient_of_one_large(images, tmp_path):
    large = tiny_run({"optim": {"global_batch": 40, "micro_batch": 40}})
    split = tiny_run({"optim": {"global_batch": 40, "micro_batch": 10}})
    assert (large.optim.num_micro, split.optim.num_micro) == (1, 4)
    losses = []
    for run in (large, split):
        records = read_lines(fit(run, tmp_path, images).paths.metrics)
        losses.append([(r["step"], r.get("loss", 0), r.get("grad_norm", 0), r.get("val_loss", 0)) for r in records])
    assert torch.tensor(losses[0]).shape == (3 + 3, 4) == torch.tensor(losses[1]).shape
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=1e-5, rtol=1e-5)


class CountsFew(Supervised):
    """Only images of the first classes are targets, so that micro-batches have different numbers of them."""

    def loss(self, images, targets, draw):
        counted = (targets.argmax(dim=1) < 2).float()
        each = F.cross_entropy(self.predict(images).logits, targets, reduction="none")
        return Output((each * counted).sum() / counted.sum().clamp(min=1), {}, counted.sum())


@pytest.mark.parametrize("micro_batch", [5, 10, 1])
def test_accumulation__unequal_targets__have_the_gradient_of_one_large_batch(images, tmp_path, micro_batch):
    found = []
    for size in (40, micro_batch):
        trainer = build_trainer(tiny_run({"optim": {"global_batch": 40, "micro_batch": size}}), tmp_path, images)
        trainer.method.__class__ = CountsFew
        loss = trainer.accumulate(iter(trainer.batches.from_step(0)), Stopwatch())
        found.append((loss, *[p.grad for p in trainer.method.parameters() if p.grad is not None]))
    assert found[0][0] > 0
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_recompute__blocks_computed_twice__give_the_same_run(images, tmp_path):
    run = tiny_run({"model": {"drop_path": 0.3}})
    kept, twice = (fit(run, tmp_path / str(again), images, recompute=again) for again in (False, True))
    assert differing(kept.method.state_dict(), twice.method.state_dict()) == []


def test_iterations__a_budget_that_ends_within_an_epoch__is_the_beginning_of_the_run_in_epochs(images, tmp_path):
    # A rate that does not depend on the length.
    keys = {"lr_curve": "poly", "power": 1e-9, "warmup_epochs": 0, "log_every": 1}
    epochs = fit(tiny_run({"optim": {"epochs": 2, **keys}}), tmp_path / "epochs", images)
    short = tiny_run({"optim": {"epochs": None, "iterations": 8, **keys}})
    updates = fit(short, tmp_path / "updates", images)
    assert (epochs.run.steps_per_epoch, updates.step, short.name.split("-")[3]) == (6, 8, "i8")
    losses = [[r["loss"] for r in read_lines(each.paths.metrics) if "loss" in r] for each in (epochs, updates)]
    assert losses[0][:8] == losses[1]
    assert [r["step"] for r in read_lines(updates.paths.metrics) if "val_loss" in r] == [6, 8]


def test_ema__asked_for__is_exported_and_validated_instead_of_the_weights(images, results):
    run = tiny_run({"optim": {"ema_decay": 0.9}})
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    trainer = fit(run, results, images)  # finished: this only restores it
    exported, average = load_file(paths.encoder), trainer.ema.module.encoder.state_dict()
    assert differing(exported, average) == []
    assert "head.weight" in differing(exported, trainer.method.encoder.state_dict())
    loaded = load_method(run, paths, ALONE)
    assert differing(loaded.state_dict(), trainer.ema.module.state_dict()) == []
    found = paths.record().metrics["val_loss"]
    assert validated(trainer, loaded)["loss"] == found != validated(trainer, trainer.method)["loss"]


def validated(trainer, method):
    """What the trainer's own validation set says of a method."""
    measure = type(method).measure
    return measure_set(method, trainer.batches.validation, trainer.task, ALONE, trainer.precision, measure).metrics


def test_load_method__trained_with_drop_path__is_in_evaluation_mode(images, results):
    run = tiny_run({"model": {"drop_path": 0.5}, "optim": {"epochs": 1, "warmup_epochs": 0}})
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    loaded = load_method(run, paths, ALONE)
    assert not any(module.training for module in loaded.modules())
    pictures = torch.rand(8, 1, 28, 28)
    assert torch.equal(loaded.predict(pictures).logits, loaded.predict(pictures).logits)
    assert not torch.equal(loaded.train().predict(pictures).logits, loaded.train().predict(pictures).logits)


def rates_of(run, results, images, stop=None):
    """The learning rate of every update, as the optimiser is given it."""
    trainer = build_trainer(run, results, images, stop)
    rates = []
    trainer.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    with suppress(Requeue):
        trainer.fit()
    return rates, trainer


def test_learning_rate__of_every_step__is_that_of_the_schedule(images, tmp_path):
    run = tiny_run()
    rates, trainer = rates_of(run, tmp_path, images)
    optim, warmup = run.optim, run.steps_per_epoch
    # By hand: from warmup_lr in equal steps to the full rate, which the first step after the warm-up has.
    slope = (optim.lr - optim.warmup_lr) / warmup
    assert rates[:warmup] == pytest.approx([optim.warmup_lr + step * slope for step in range(warmup)])
    assert len(rates) == run.total_steps and rates.index(max(rates)) == warmup
    schedule = build_schedule(trainer.optimizer, optim, run.steps_per_epoch)
    expected = []
    for step in range(run.total_steps):
        schedule.step_update(step)
        expected.append(trainer.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx(expected)
    lines = [record for record in read_lines(trainer.paths.metrics) if "lr" in record]
    assert [record["lr"] for record in lines] == pytest.approx([rates[record["step"] - 1] for record in lines])


def test_learning_rate__after_resume__goes_on_where_it_was(images, tmp_path):
    run = tiny_run()
    whole, _ = rates_of(run, tmp_path / "whole", images)
    first, _ = rates_of(run, tmp_path / "parts", images, StopAfter(7))
    rest, _ = rates_of(run, tmp_path / "parts", images)
    assert first + rest == whole


DRAWING = {"mjp": {"method": {"name": "mjp", "shuffle_ratio": 0.5}}, **PRETRAINING}


@pytest.mark.parametrize("kind", DRAWING)
def test_draws__of_another_micro_batch_step_or_seed__differ(images, tmp_path, kind):
    """The method's own draws, for the same images."""
    pictures, labels = torch.randint(256, (10, 1, 28, 28), dtype=torch.uint8), torch.arange(10)

    def draws(seed, step):
        """Of eight micro-batches: a small jigsaw may leave all patches of one in place."""
        run, seen = tiny_run(DRAWING[kind], {"seed": seed}), []
        trainer = build_trainer(run, tmp_path, images)
        trainer.step, draw = step, trainer.method.draw
        trainer.method.draw = lambda batch, progress: seen.append(draw(batch, 0.5)) or seen[-1]
        for micro in range(8):
            trainer.forward(pictures, labels, micro)
        return [b"".join(value.numpy().tobytes() for value in drawn.values()) for drawn in seen]

    first = draws(seed=0, step=3)
    assert len(set(first)) > 1
    assert first == draws(seed=0, step=3)
    assert first != draws(seed=0, step=4) and first != draws(seed=1, step=3)


def test_ema__every_step__is_the_average_by_hand(images, tmp_path):
    run = tiny_run({"optim": {"ema_decay": 0.75}})
    expected = copy.deepcopy(build_method(run).state_dict())
    for step in range(1, 6):
        trainer = fit(run, tmp_path, images, StopAfter(1))
        assert trainer.step == step
        for name, value in trainer.method.state_dict().items():
            expected[name] = 0.75 * expected[name] + 0.25 * value
    for name, value in trainer.ema.module.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


def test_init__from_another_run__starts_with_its_encoder_and_average(images, tmp_path):
    first = fit(tiny_run(), tmp_path, images)
    publish(first)
    second = tiny_run({"init": first.run.name, "method": {"name": "mjp"}, "optim": {"ema_decay": 0.99}})
    trainer = build_trainer(second, tmp_path, images)
    encoder = first.method.encoder.state_dict()
    assert differing(encoder, trainer.method.encoder.state_dict()) == []
    assert differing(encoder, trainer.ema.module.encoder.state_dict()) == []


def test_init__resumed__continues_from_the_checkpoint_and_not_from_init(images, tmp_path):
    first = fit(tiny_run(), tmp_path, images)
    publish(first)
    second = tiny_run({"init": first.run.name, "seed": 3})
    stopped = fit(second, tmp_path, images, StopAfter(5))
    resumed = build_trainer(second, tmp_path, images)
    assert differing(weights_of(stopped), weights_of(resumed)) == []


def test_init__other_run_not_finished__says_so(images, tmp_path):
    run = tiny_run({"init": "supervised-mini-small-e9-s0-abcdef"})
    with pytest.raises(CheckpointError, match=r"e9-s0-abcdef is not finished .*train.json not found.*; train it first"):
        fit(run, tmp_path, images)


@pytest.mark.parametrize("size", [3, 4, 8])
def test_world__number_of_processes_does_not_share_the_batch__is_refused(size):
    run = tiny_run({"optim": {"global_batch": 60, "micro_batch": 10}})
    if size == 3:
        check_world(run, size)
        return
    with pytest.raises(ConfigError, match=f"{size} processes cannot share .* 60 .* of 10; use 1, 2, 3, 6 processes"):
        check_world(run, size)


def test_train__data_not_prepared__says_what_to_run(images, tmp_path):
    run = tiny_run()
    with pytest.raises(DataError, match=r"not found; run `python -m pipeline prepare --scale \S+ --data small` first"):
        train_run(run, RunFolder(tmp_path, run.name), Site(device="cpu", data={"small": images}), StopRequest())


def test_train__finished__has_everything_needed_to_train_it_again(images, results):
    from pipeline.core.config import Layers, read_yaml
    from pipeline.engine.run import parse_run

    run = tiny_run(RICH)
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    again = parse_run(Layers(("again", read_yaml(paths.config))))
    assert again == run
    assert again.name == paths.name
    assert {"encoder.safetensors", "heads.safetensors", "metrics.jsonl"} <= {
        path.name for path in paths.folder.iterdir()
    }
    assert paths.is_finished(paths.record().inputs) and not paths.done.exists()
    paths.publish()
    assert paths.done.read_text() == paths.finished.read_text()


def test_train__finished_but_its_output_was_deleted__trains_nothing_again(images, results):
    run = tiny_run()
    paths, site = RunFolder(results, run.name), Site(device="cpu", data={"small": images})
    train_run(run, paths, site, StopRequest())
    before = paths.encoder.stat().st_mtime_ns
    train_run(run, paths, site, StopRequest())
    assert paths.encoder.stat().st_mtime_ns == before
    inputs = paths.record().inputs
    paths.encoder.write_bytes(b"damaged")
    assert not paths.is_finished(inputs)
    train_run(run, paths, site, StopRequest())
    assert paths.is_finished(inputs)


def test_train__interrupted__its_time_is_the_sum_of_all_segments(images, results):
    run = tiny_run()
    paths, site = RunFolder(results, run.name), Site(device="cpu", data={"small": images})
    with pytest.raises(Requeue):
        train_run(run, paths, site, StopAfter(5))
    checkpoints = Checkpoints(paths.state)
    state = checkpoints.latest()
    assert state["wall_s"] > 0
    checkpoints.save(5, state | {"wall_s": 1000.0})  # as after a long first segment
    with pytest.raises(Requeue):
        train_run(run, paths, site, StopAfter(5))
    assert checkpoints.latest()["wall_s"] > 1000
    train_run(run, paths, site, StopRequest())
    assert 1000 < paths.record().provenance["wall_s"] < 1900


def test_forward__same_step_and_micro_batch__draws_the_same_whatever_came_before(images, tmp_path):
    # Without MJP, whose loss depends on the step by its schedule too.
    run = tiny_run({**RICH, "method": {"name": "supervised"}})
    trainer = build_trainer(run, tmp_path, images)
    micro = torch.randint(256, (10, 1, 28, 28), dtype=torch.uint8), torch.arange(10)
    trainer.step = 12
    first = trainer.forward(*micro, 1).loss
    seed_everything(99)
    other = trainer.forward(*micro, 0).loss
    assert torch.equal(first, trainer.forward(*micro, 1).loss)
    trainer.step = 13
    later = trainer.forward(*micro, 1).loss
    assert len({loss.item() for loss in (first, other, later)}) == 3
