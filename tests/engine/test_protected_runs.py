"""Runs whose gradients are protected: in which place of an update, with how many processes, and what it leaves alone.

That they resume to the bit is tested with everything else that is random (RICH in tiny_runs.py).
"""

import pytest
import torch
from tiny_runs import StopAfter, build_trainer, differing, fit, tiny_run, weights_of
from unstable import train_together

from pipeline.core.files import read_lines
from pipeline.core.seeds import generator_for
from pipeline.engine import loop, protection
from pipeline.engine.optim import clip_gradients
from pipeline.engine.protection import protected
from pipeline.engine.signals import Requeue
from pipeline.results import RunFolder

PROTECTED = {"optim": {"protection": {"noise": 0.5, "pruning": 0.5}}}


def test_name__protection_off_or_not_given__is_that_of_runs_from_before():
    names = {tiny_run(changes).name for changes in ({}, {"optim": {"protection": {"noise": 0.0, "pruning": 0}}})}
    # The name that this run had before there was a protection.
    assert names == {"supervised-mini-small-e3-s0-28013747"}


def gradients_of(run, results, images, num_steps):
    """What the optimiser is given in the last of so many steps."""
    trainer, seen = build_trainer(run, results, images, StopAfter(num_steps)), {}
    named = list(trainer.method.named_parameters())
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.update({name: p.grad.clone() for name, p in named}))
    with pytest.raises(Requeue):
        trainer.fit()
    return trainer, seen


@pytest.mark.slow
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}, {"clip_norm": 0.1, "clip_mode": "tensor"}], ids=str)
def test_update__protected__is_that_of_the_protected_gradient_of_the_whole_batch_then_clipped(images, tmp_path, clip):
    seed, clipped = {"seed": 3}, {"optim": clip}
    _, plain = gradients_of(tiny_run(seed), tmp_path / "plain", images, 1)
    run = tiny_run(seed, clipped, PROTECTED)
    trainer, found = gradients_of(run, tmp_path / "protected", images, 1)

    generator = generator_for("protection", 3, 0)
    for name, parameter in trainer.method.named_parameters():
        parameter.grad = protected(plain[name], run.optim.protection, generator)
    clip_gradients(trainer.method, run.optim)
    assert differing(found, {name: parameter.grad for name, parameter in trainer.method.named_parameters()}) == []


@pytest.mark.slow
def test_update__another_step__has_other_noise(images, tmp_path, monkeypatch):
    keys = []
    monkeypatch.setattr(protection, "generator_for", lambda *key: keys.append(key) or generator_for(*key))
    fit(tiny_run({"seed": 3}, PROTECTED), tmp_path, images, StopAfter(2))
    fit(tiny_run({"seed": 3}, PROTECTED), tmp_path, images, StopAfter(1))
    assert keys == [("protection", 3, 0), ("protection", 3, 1), ("protection", 3, 2)]


@pytest.mark.slow
def test_fit__protection_off__is_that_of_a_loop_without_it(images, tmp_path, monkeypatch):
    run = tiny_run()
    found = weights_of(fit(run, tmp_path / "off", images))
    monkeypatch.setattr(loop, "protect_gradients", lambda *_: None)
    assert differing(found, weights_of(fit(run, tmp_path / "without", images))) == []
    assert differing(found, weights_of(fit(tiny_run(PROTECTED), tmp_path / "idle", images))) == []


@pytest.mark.slow
def test_fit__two_processes__see_the_same_noise_as_one(images, tmp_path):
    """Both protect the gradient of the whole batch alike; their losses are those of one process, up to rounding."""
    run = tiny_run({"optim": {"protection": {"noise": 0.5}, "log_every": 1}})
    train_together(run.model_dump(mode="json"), images, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert differing(first, second) == []
    alone = fit(run, tmp_path / "alone", images)
    together, by_itself = read_lines(RunFolder(tmp_path, run.name).metrics), read_lines(alone.paths.metrics)
    for one, other in zip(together, by_itself, strict=True):
        assert one == pytest.approx(other, abs=1e-4), one["step"]
