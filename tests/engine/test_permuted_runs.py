"""Whole runs on permuted tokens and with a key: their curves, resumed, in two processes, averaged, read back."""

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import ALONE, StopAfter, build_trainer, differing, fit, publish, tiny_run, weights_of
from unstable import train_together

from pipeline.core.files import read_lines
from pipeline.engine.train import load_method
from pipeline.permutation.rules import permute_state, unpermute_state
from pipeline.results import RunFolder

pytestmark = pytest.mark.slow
USED, MISSING, ROWS = (
    {"method": {"permutation": fields}} for fields in ({"key": "used"}, {"key": "missing"}, {"rows": True})
)
BOTH = {"method": {"permutation": {"rows": True, "key": "used"}}}
# Views that are not random, and gradients far above their rounding: AdamW makes whole steps of rounding.
CALM = {"data": {"augment": {"crop": "none", "hflip": 0}}, "optim": {"eps": 1e-4, "log_every": 1}}


def curve(trainer):
    return read_lines(trainer.paths.metrics)


@pytest.mark.parametrize("changes", [ROWS, USED, BOTH], ids=["rows", "key", "both"])
def test_curve__permuted__is_that_of_plain_training(images, tmp_path, changes):
    plain, other = (fit(tiny_run(CALM, each), tmp_path, images) for each in ({}, changes))
    for one, expected in zip(curve(other), curve(plain), strict=True):
        assert one == pytest.approx(expected, abs=2e-4), one["step"]


@pytest.fixture(scope="module")
def learned(images, tmp_path_factory):
    """A run that has learned its classes, and where it lies."""
    results = tmp_path_factory.mktemp("learned")
    trainer = fit(tiny_run(CALM, {"optim": {"epochs": 20}}), results, images)
    publish(trainer)
    return trainer, results


def test_start__from_a_run_with_the_key_missing__is_at_chance_and_with_it_is_not(learned, images):
    trainer, results = learned
    accuracies = {}
    for name, changes in (("plain", {}), ("used", USED), ("missing", MISSING)):
        again = tiny_run(
            CALM, changes, {"init": trainer.run.name, "optim": {"epochs": 1, "warmup_epochs": 0, "base_lr": 1e-9}}
        )
        accuracies[name] = fit(again, results, images).last_validation.metrics["top1"]
    assert accuracies["plain"] == accuracies["used"] > 60
    assert accuracies["missing"] < 30


def test_start__from_a_run_with_a_key__is_its_encoder_locked(learned, images):
    trainer, results = learned
    other = build_trainer(tiny_run(USED, {"init": trainer.run.name, "seed": 4}), results, images)
    expected = permute_state(trainer.method.encoder.state_dict(), other.method.key)
    assert differing(expected, other.method.encoder.state_dict()) == []


def test_resume__permuted_with_a_key_and_an_average_stopped_often__ends_bit_identical(images, tmp_path):
    run = tiny_run(BOTH, {"optim": {"ema_decay": 0.9}, "model": {"drop_path": 0.2}})
    expected = weights_of(fit(run, tmp_path / "uninterrupted", images))
    for step, more in ((1, 1), (5, 4), (12, 7)):
        assert fit(run, tmp_path / "stopped", images, StopAfter(more)).step == step
    assert differing(expected, weights_of(fit(run, tmp_path / "stopped", images))) == []


def test_average__of_a_run_with_a_key__is_validated_with_it(images, tmp_path):
    quick = {"optim": {"epochs": 6, "ema_decay": 0.5}}
    plain, other = (fit(tiny_run(CALM, quick, each), tmp_path, images) for each in ({}, BOTH))
    expected, found = (trainer.last_validation.metrics for trainer in (plain, other))
    assert found == pytest.approx(expected, abs=2e-4)
    weights = unpermute_state(other.ema.module.encoder.state_dict(), other.method.key)
    for name, value in plain.ema.module.encoder.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-3, msg=name)


def test_two_processes__permuted_with_a_key__have_the_curve_of_one(images, tmp_path):
    run = tiny_run(BOTH, {"optim": {"log_every": 1}})
    train_together(run.model_dump(mode="json"), images, tmp_path)
    alone = fit(run, tmp_path / "alone", images)
    for one, expected in zip(read_lines(RunFolder(tmp_path, run.name).metrics), curve(alone), strict=True):
        assert one == pytest.approx(expected, abs=1e-4), one["step"]


def test_load_method__of_a_run_with_a_key__answers_as_the_trained_one_and_its_file_is_locked(images, tmp_path):
    trainer = fit(tiny_run(BOTH), tmp_path, images)
    publish(trainer)
    loaded = load_method(trainer.run, trainer.paths, ALONE)
    pictures = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(loaded.predict(pictures).logits, trainer.method.eval().predict(pictures).logits)
    assert differing(load_file(trainer.paths.encoder), trainer.method.encoder.state_dict()) == []
    assert not any("columns" in name or "tokens" in name for name in load_file(trainer.paths.heads))
