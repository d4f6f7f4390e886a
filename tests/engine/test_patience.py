"""`optim.patience`: where a training stops, also interrupted and in several processes, and what is recorded of it."""

import math
import shutil

import pytest
from tiny_runs import StopAfter, build_trainer, differing, fit, tiny_run, weights_of
from unstable import train_together

from pipeline.core.errors import ConfigError
from pipeline.core.files import read_lines
from pipeline.engine import loop
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.inputs import find_inputs
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.engine.train import train_run
from pipeline.methods.base import Primary
from pipeline.results import RunFolder
from pipeline.site import Site
from pipeline.tasks.metrics import MetricValues

# So high a rate that what was learned in the first epochs is lost again; six updates are an epoch.
FALLING = {"optim": {"epochs": 8, "base_lr": 0.05, "keep": "best"}}
PATIENT = {"optim": {"patience": 2}}
EPOCH = 6


def validations(paths):
    return [line for line in read_lines(paths.metrics) if "val_top1" in line]


@pytest.fixture(scope="module")
def stopped(images, prepared, tmp_path_factory):
    """A run that stopped early, undisturbed, and its folder."""
    results = shutil.copytree(prepared, tmp_path_factory.mktemp("stopped") / "results")
    run = tiny_run(FALLING, PATIENT)
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    return run, paths


@pytest.mark.slow
def test_patience__accuracy_that_falls__stops_two_validations_after_the_best_and_records_why(stopped):
    run, paths = stopped
    found = validations(paths)
    best = max(range(len(found)), key=lambda number: (found[number]["val_top1"], -number))
    record, step = paths.record(), found[-1]["step"]
    assert (step, len(found)) == ((best + 3) * EPOCH, best + 3) and step < run.total_steps
    assert [line["since_best"] for line in found[best:]] == [0, 1, 2]
    facts = record.provenance
    assert (facts["steps"], facts["kept_step"]) == (step, found[best]["step"])
    assert facts["stopped_early"] == f"after step {step} of {run.total_steps}"
    assert facts["stopped_because"] == (
        f"val_top1 has not improved in 2 validations, its best is that of step {facts['kept_step']} (optim.patience)"
    )
    assert record.metrics["val_top1"] == record.metrics["best_val_top1"] == found[best]["val_top1"]


@pytest.mark.slow
def test_patience__up_to_its_end__is_the_run_without_it(stopped, images, tmp_path):
    """The learning rate follows the curve of the full length."""
    _, paths = stopped
    last = validations(paths)[-1]["step"]
    there = fit(tiny_run(FALLING), tmp_path, images, StopAfter(last))
    state = Checkpoints(paths.state).latest()
    assert there.step == state["step"] == last
    assert differing(there.method.state_dict(), state["method"]) == []
    rates = [[line["lr"] for line in read_lines(each.metrics) if "lr" in line] for each in (there.paths, paths)]
    assert rates[0] == rates[1] and len(rates[0]) == last // 4


@pytest.mark.slow
def test_patience__stopped_on_request_around_every_validation__ends_at_the_same_step_with_the_same_bytes(
    stopped, images, results
):
    run, whole = stopped
    cut, site = RunFolder(results, run.name), Site(device="cpu", data={"small": images})
    last, interrupted = validations(whole)[-1]["step"], 0
    for steps in (EPOCH, EPOCH + 1, EPOCH - 1) * last:  # at a validation, after one, at one again
        try:
            train_run(run, cut, site, StopAfter(steps))
            break
        except Requeue:
            interrupted += 1
    assert interrupted >= 3
    for name in ("encoder", "heads", "metrics"):
        assert getattr(cut, name).read_bytes() == getattr(whole, name).read_bytes()
    facts = [paths.record().provenance for paths in (whole, cut)]
    for key in ("steps", "kept_step", "stopped_early", "stopped_because"):
        assert facts[0][key] == facts[1][key]


@pytest.mark.slow
def test_patience__asked_to_stop_at_the_step_where_it_is_over__trains_no_further_step(stopped, images, results):
    run, whole = stopped
    last = validations(whole)[-1]["step"]
    trainer = fit(run, results, images, StopAfter(last))
    assert trainer.step == last and trainer.patience.is_over
    again = build_trainer(run, results, images)
    again.fit()
    assert again.step == last and differing(weights_of(again), weights_of(trainer)) != []  # the best weights are back
    assert again.paths.metrics.read_bytes() == whole.metrics.read_bytes()


@pytest.mark.slow
def test_patience__stopped_early__is_finished_for_every_launcher(stopped, images, caplog):
    """A SLURM job is requeued, and a command trains again, as long as this is false."""
    run, paths = stopped
    site = Site(device="cpu", data={"small": images})
    assert paths.is_finished(find_inputs(paths, site, run.data.name, run.init))
    before = paths.record()
    with caplog.at_level("INFO"):
        train_run(run, paths, site, StopRequest())
    assert f"{run.name} is finished already" in caplog.text and paths.record() == before


@pytest.mark.slow
def test_patience__two_processes__stop_at_the_same_step(images, tmp_path):
    run = tiny_run(FALLING, PATIENT)
    train_together(run.model_dump(mode="json"), images, tmp_path)  # one that went on would wait for the other for ever
    paths = RunFolder(tmp_path, run.name)
    step = Checkpoints(paths.state).latest()["step"]
    assert step == validations(paths)[-1]["step"] < run.total_steps
    assert [line["since_best"] for line in validations(paths)][-3:] == [0, 1, 2]


def told(monkeypatch, trainer, values, is_lower_better=False):
    """After how many of these validations the trainer's patience is over; None: it never is."""
    monkeypatch.setattr(type(trainer.task), "primary", Primary("top1", is_lower_better))
    left = iter(values)
    monkeypatch.setattr(loop, "measure_set", lambda *_, **__: MetricValues({"top1": next(left)}))
    for trainer.step in range(1, len(values) + 1):
        trainer._validate()
        if trainer.patience.is_over:
            return trainer.step
    return None


@pytest.mark.parametrize(
    ("values", "patience", "is_lower_better", "step"),
    [
        ([50, 60, 60, 59], 2, False, 4),  # as good is not better
        ([50, 40, 60, 50, 61, 61], 2, False, None),
        ([50, 40, 30, 31, 32], 2, True, 5),
        ([50, math.nan, math.nan], 2, False, 3),
        ([math.nan, 10, 20, 30], 1, False, None),  # a number is better than none
        ([50, 40, 30, 20], None, False, None),
    ],
)
def test_patience__of_values__is_over_after(monkeypatch, results, images, values, patience, is_lower_better, step):
    trainer = build_trainer(tiny_run({"optim": {"patience": patience}}), results, images)
    assert told(monkeypatch, trainer, values, is_lower_better) == step


def test_patience__with_the_last_weights__exports_those_of_the_step_where_it_stopped(monkeypatch, results, images):
    trainer = build_trainer(tiny_run(PATIENT), results, images)
    assert told(monkeypatch, trainer, [50, 40, 30]) == 3
    assert trainer.best_weights is None and trainer.last_validation.metrics == {"top1": 30}


def test_patience__not_given__leaves_every_name_and_no_trace_in_metrics(monkeypatch, results, images):
    plain = tiny_run()
    assert tiny_run({"optim": {"patience": None}}).name == plain.name != tiny_run({"optim": {"patience": 1}}).name
    trainer = build_trainer(plain, results, images)
    told(monkeypatch, trainer, [50, 40])
    assert "since_best" not in read_lines(trainer.paths.metrics)[-1] and trainer.stopped_early == {}


def test_patience__method_that_nothing_judges__is_refused():
    mae = {"method": {"name": "mae"}, "model": {"pos_embed": "sincos"}}
    with pytest.raises(ConfigError, match=r"optim\.patience is 3, but method mae has no metric to compare"):
        tiny_run(mae, {"optim": {"patience": 3}})
