"""Whole tiny runs in this process: the same seed gives the same bits, however often a run is stopped on the way."""

import logging

import pytest
from tiny_runs import PRETRAINING, RICH, StopAfter, StopsWithin, build_trainer, differing, fit, tiny_run, weights_of

from pipeline.core.errors import CheckpointError
from pipeline.core.files import read_lines
from pipeline.engine import validate
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.results import RunFolder

pytestmark = pytest.mark.slow

SHORT = {"optim": {"epochs": 2}}  # 12 steps: a line after every 4, a validation after every 6
KINDS = {"supervised": {}, "rich mjp": RICH, **PRETRAINING}
# The others are stopped after every step, which shows whatever a checkpoint of theirs could lack, or a seed leave open.
of_two_kinds = pytest.mark.parametrize("uninterrupted", ["supervised", "rich mjp"], indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def uninterrupted(request, images, prepared, tmp_path_factory):
    """A run, its final weights and the bytes of its metrics."""
    run = tiny_run(KINDS[request.param], SHORT)
    results = tmp_path_factory.mktemp("uninterrupted")
    return run, weights_of(fit(run, results, images)), RunFolder(results, run.name).metrics.read_bytes()


@of_two_kinds
def test_fit__same_seed__gives_identical_weights(uninterrupted, images, tmp_path):
    run, weights, metrics = uninterrupted
    assert differing(weights, weights_of(fit(run, tmp_path, images))) == []
    assert RunFolder(tmp_path, run.name).metrics.read_bytes() == metrics


@of_two_kinds
def test_fit__another_seed__gives_other_weights(uninterrupted, images, tmp_path):
    run, weights, _ = uninterrupted
    other = weights_of(fit(run.model_copy(update={"seed": 1}), tmp_path, images))
    is_matrix = {name for name, value in weights.items() if name.startswith("method.") and value.ndim > 1}
    assert is_matrix - {"method.encoder.pos_embed"} <= set(differing(weights, other))


@of_two_kinds
def test_fit__two_loader_workers__gives_identical_weights(uninterrupted, images, tmp_path):
    run, weights, _ = uninterrupted
    assert differing(weights, weights_of(fit(run, tmp_path, images, workers=2))) == []


# 5: between two lines; 6: on a validation. The next test has every other step.
@of_two_kinds
@pytest.mark.parametrize("step", [5, 6])
def test_resume__stopped_once__ends_bit_identical(uninterrupted, images, tmp_path, step):
    run, weights, metrics = uninterrupted
    stopped = fit(run, tmp_path, images, StopAfter(step))
    assert stopped.step == step
    continued = fit(run, tmp_path, images)
    assert differing(weights, weights_of(continued)) == []
    assert continued.paths.metrics.read_bytes() == metrics
    assert continued.best == best_by_hand(continued)


def test_resume__stopped_after_every_step__ends_bit_identical(uninterrupted, images, tmp_path):
    run, weights, metrics = uninterrupted
    for step in range(1, run.total_steps):
        assert fit(run, tmp_path, images, StopAfter(1)).step == step
    last = fit(run, tmp_path, images)
    assert differing(weights, weights_of(last)) == []
    assert last.paths.metrics.read_bytes() == metrics
    assert last.best == best_by_hand(last)


@of_two_kinds
@pytest.mark.parametrize("skipped", [0, 1], ids=["the first", "the last"])
def test_resume__stopped_within_a_validation__validates_first_and_ends_bit_identical(
    uninterrupted, images, tmp_path, monkeypatch, skipped
):
    """It may take longer than there is time between the warning and the end of a job."""
    run, weights, metrics = uninterrupted
    monkeypatch.setattr(validate, "LOOK_S", -1)
    stop = StopRequest()
    trainer = build_trainer(run, tmp_path, images, stop)
    within = trainer.batches.validation = StopsWithin(trainer.batches.validation, stop)
    within.num_passes = -skipped
    with pytest.raises(Requeue, match=rf"checkpoint after step {6 + 6 * skipped} of 12, before its validation"):
        trainer.fit()
    assert sum("val_loss" in line for line in read_lines(trainer.paths.metrics)) == skipped
    continued = fit(run, tmp_path, images)
    assert differing(weights, weights_of(continued)) == []
    assert continued.paths.metrics.read_bytes() == metrics
    assert continued.best == best_by_hand(continued)


def best_by_hand(trainer):
    validations = [r for r in read_lines(trainer.paths.metrics) if "val_loss" in r]
    names = [name for name in validations[0] if name.endswith("top1")]
    return {name.removeprefix("val_"): max(r[name] for r in validations) for name in names}


@of_two_kinds
def test_resume__newest_checkpoint_damaged__ends_bit_identical(uninterrupted, images, tmp_path, caplog):
    run, weights, metrics = uninterrupted
    fit(run, tmp_path, images, StopAfter(7))
    stopped = fit(run, tmp_path, images, StopAfter(4))
    newest = max(stopped.paths.state.glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-10])
    with caplog.at_level(logging.INFO):
        continued = fit(run, tmp_path, images)
    assert "resuming at step 7" in caplog.text
    assert differing(weights, weights_of(continued)) == []
    assert continued.paths.metrics.read_bytes() == metrics


@of_two_kinds
def test_resume__finished_run__trains_no_step(uninterrupted, images, tmp_path):
    run, weights, metrics = uninterrupted
    first = fit(run, tmp_path, images)
    again = fit(run, tmp_path, images)
    assert differing(weights, weights_of(again)) == []
    assert (again.last_validation, again.best) == (first.last_validation, first.best)
    assert again.paths.metrics.read_bytes() == metrics


def test_resume__metrics_file_gone__is_refused(images, tmp_path):
    stopped = fit(tiny_run(), tmp_path, images, StopAfter(9))
    stopped.paths.metrics.unlink()
    with pytest.raises(CheckpointError, match="restore it, or delete the run's state folder"):
        fit(tiny_run(), tmp_path, images)


def test_stop__requested__leaves_with_requeue_after_a_checkpoint(images, tmp_path):
    run = tiny_run()
    trainer = build_trainer(run, tmp_path, images, StopAfter(3))
    with pytest.raises(Requeue, match="after step 3 of 18"):
        trainer.fit()
    assert build_trainer(run, tmp_path, images).step == 3


def test_iterations__stopped_after_every_step__end_bit_identical(images, tmp_path):
    keys = {"lr_curve": "steps", "milestones": [0.5], "warmup_iterations": 2, "warmup_epochs": 0}
    run = tiny_run({"optim": {"epochs": None, "iterations": 8, **keys}})
    whole = fit(run, tmp_path / "whole", images)
    for _ in range(7):
        with pytest.raises(Requeue):
            build_trainer(run, tmp_path / "cut", images, StopAfter(1)).fit()
    cut = fit(run, tmp_path / "cut", images)
    assert differing(whole.method.state_dict(), cut.method.state_dict()) == []
    assert whole.paths.metrics.read_bytes() == cut.paths.metrics.read_bytes()
