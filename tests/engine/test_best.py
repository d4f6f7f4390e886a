"""`optim.keep: best`: what is exported, recorded and named, through interruptions and in several processes.

Kills at any moment are in test_kill.py, whose run keeps the best of its moving average.
"""

import math

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import StopAfter, differing, fit, tiny_run
from unstable import train_together

from pipeline.core.errors import ConfigError
from pipeline.core.files import read_lines
from pipeline.engine import loop
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.engine.train import train_run
from pipeline.results import RunFolder
from pipeline.site import Site
from pipeline.tasks.metrics import MetricValues

# So high a rate that what was learned in the first epochs is lost again.
FALLING = {"optim": {"epochs": 6, "base_lr": 0.05, "keep": "best"}}
AVERAGED = {"optim": {"ema_decay": 0.5}}
every_average = pytest.mark.parametrize("average", [{}, AVERAGED], ids=["weights", "moving average"])


def best_step(paths):
    """By hand: the first of the best validations."""
    found = [(record["val_top1"], -record["step"]) for record in read_lines(paths.metrics) if "val_top1" in record]
    return -max(found)[1]


@pytest.mark.slow
@every_average
def test_keep_best__accuracy_that_falls_again__exports_the_weights_of_the_best_validation(images, results, average):
    run = tiny_run(FALLING, average)
    paths, site = RunFolder(results, run.name), Site(device="cpu", data={"small": images})
    train_run(run, paths, site, StopRequest())
    record, step = paths.record(), best_step(paths)
    assert step < run.total_steps

    there = fit(run, results / "there", images, StopAfter(step)).exported
    assert differing(load_file(paths.encoder), there.encoder.state_dict()) == []
    (validation,) = [line for line in read_lines(paths.metrics) if line["step"] == step and "val_top1" in line]
    for name in ("val_top1", "val_loss"):
        assert record.metrics[name] == validation[name]
    assert record.metrics["best_val_top1"] == record.metrics["val_top1"]
    assert (record.provenance["kept_step"], record.provenance["steps"]) == (step, run.total_steps)
    assert record.errors["val_top1"] > 0 and record.count == run.data.num_val


@pytest.mark.slow
@every_average
def test_keep_best__stopped_between_validations_before_and_after_the_best__exports_the_same_bytes(
    images, results, average
):
    run, site = tiny_run(FALLING, average), Site(device="cpu", data={"small": images})
    whole, cut = RunFolder(results, run.name), RunFolder(results / "cut", run.name)
    train_run(run, whole, site, StopRequest())
    fit(run, results / "cut", images, StopAfter(1))  # prepares the data there
    for _ in range(3):
        with pytest.raises(Requeue):
            train_run(run, cut, site, StopAfter(10))
    train_run(run, cut, site, StopRequest())
    for name in ("encoder", "heads", "metrics"):
        assert getattr(cut, name).read_bytes() == getattr(whole, name).read_bytes()
    kept = [paths.record().provenance["kept_step"] for paths in (whole, cut)]
    assert kept == [best_step(whole)] * 2


@pytest.mark.slow
def test_keep_best__killed_between_the_last_checkpoint_and_the_export__exports_the_best(images, results):
    run, site = tiny_run(FALLING), Site(device="cpu", data={"small": images})
    paths = RunFolder(results, run.name)
    train_run(run, paths, site, StopRequest())
    exported, last = paths.encoder.read_bytes(), Checkpoints(paths.state).latest()["method"]
    assert "encoder.head.weight" in differing(last, {f"encoder.{n}": v for n, v in load_file(paths.encoder).items()})
    paths.finished.unlink()
    paths.encoder.unlink()
    train_run(run, paths, site, StopRequest())
    assert paths.encoder.read_bytes() == exported


@pytest.mark.slow
def test_keep_best__two_processes__keep_the_same_step_and_weights(images, tmp_path):
    run = tiny_run(FALLING, AVERAGED)
    train_together(run.model_dump(mode="json"), images, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert differing(first, second) == []
    paths = RunFolder(tmp_path, run.name)
    kept = Checkpoints(paths.state).latest()["best_weights"]
    assert kept["step"] == best_step(paths) < run.total_steps
    assert differing(kept["weights"], {name: first[f"ema.module.{name}"] for name in kept["weights"]}) == []


def found_with(losses, accuracy=50.0):
    """Instead of a validation: the losses of the validations one after the other."""
    left = iter(losses)

    def measure(*_, **__):
        loss = next(left)
        return MetricValues({"loss": loss, "top1": accuracy}, {"loss": loss, "top1": 1.0}, count=20)

    return measure


@pytest.mark.slow
def test_record__last_validation_not_finite__is_null_with_the_reason(images, results, monkeypatch):
    """JSON has no NaN: a run that has come so far must not fail at its end, and at each start again."""
    monkeypatch.setattr(loop, "measure_set", found_with([1.0, 0.5, math.nan]))
    run = tiny_run()
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    record = paths.record()
    assert record.metrics["val_loss"] is None and record.metrics["val_top1"] == record.metrics["best_val_top1"] == 50.0
    assert record.reasons == {"val_loss": f"validation loss is nan at step {run.total_steps}"}
    assert record.errors == {"params_m": 0.0, "val_top1": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["last", "best"])
def test_record__no_validation_finite__says_so_of_the_best_too(images, results, monkeypatch, keep):
    monkeypatch.setattr(loop, "measure_set", found_with([1.0, 1.0, 1.0], accuracy=math.nan))
    run = tiny_run({"optim": {"keep": keep}})
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    step = {"last": run.total_steps, "best": run.total_steps // 3}[keep]
    assert paths.record().metrics["best_val_top1"] is None
    assert paths.record().reasons == {
        "val_top1": f"validation top1 is nan at step {step}",
        "best_val_top1": "the best validation top1 is nan",
    }


@pytest.mark.parametrize("keep", ["last", "best"])
def test_name__validate_every__is_part_of_it(keep):
    """`best_val_top1` is the best of as many validations as there are."""
    kept = {"optim": {"keep": keep}}
    assert tiny_run(kept, {"optim": {"validate_every": 2}}).name != tiny_run(kept).name
    assert tiny_run(kept, {"optim": {"validate_every": 1}}).name == tiny_run(kept).name  # as runs from before had it


def test_keep_best__method_that_nothing_judges__is_refused():
    mae = {"method": {"name": "mae"}, "model": {"pos_embed": "sincos"}}
    with pytest.raises(ConfigError, match="method mae has no metric to choose by; set it to last"):
        tiny_run(mae, {"optim": {"keep": "best"}})
