"""What a finished run and its evaluations leave in their files: every number, and where it comes from."""

import json

import pytest
from tiny_runs import ALONE, tiny_run

from pipeline.data.manifest import read_manifest
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.evals.classify import Classify
from pipeline.evals.consistency import Consistency
from pipeline.evals.evaluate import evaluate_run
from pipeline.files import digest, read_lines
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow

# Two of one kind, and a seed that is not the run's.
EVALS = {
    "classify": Classify.Config(seed=5, shuffle_ratio=0.5),
    "mild": Classify.Config(seed=5, shuffle_ratio=0.2),
    "consistency": Consistency.Config(shuffle_ratio=0.5),
}


@pytest.fixture
def finished(images, results):
    """A run of seed 3 that was trained to its end, its folder and its site."""
    run = tiny_run({"seed": 3, "optim": {"epochs": 2}, "data": {"eval_crop": 0.9}})
    paths, site = RunFolder(results, run.name), Site(device="cpu", data={"small": images})
    train_run(run, paths, site, StopRequest())
    return run, paths, site


def test_evaluate__several_of_one_group__writes_each_with_its_own_numbers(finished):
    run, paths, site = finished
    evaluate_run(run, "quick", EVALS, paths, site)
    written = json.loads(paths.evaluation("quick").read_text())
    assert list(written) == list(EVALS)
    for key, cfg in EVALS.items():
        kind = Consistency if key == "consistency" else Classify
        expected = kind(cfg, run, paths, site, ALONE).compute(load_method(run, paths, ALONE))
        assert written[key]["metrics"] == expected
    assert written["classify"]["metrics"]["shuffled_ratio"] != written["mild"]["metrics"]["shuffled_ratio"]


def test_evaluate__every_result__says_what_it_was_made_from(finished):
    run, paths, site = finished
    evaluate_run(run, "quick", EVALS, paths, site)
    for key, result in json.loads(paths.evaluation("quick").read_text()).items():
        facts = {
            "config_fingerprint": run.fingerprint,
            "eval_fingerprint": EVALS[key].fingerprint,
            "data_fingerprint": read_manifest(paths.manifest("small")).fingerprint,
            "seed": EVALS[key].seed,
            "fidelity": "corrected",
            "weights": digest(paths.encoder),
        }
        assert result["run"] == run.name
        assert facts.items() <= result["provenance"].items()


def test_train__finished__says_what_it_was_made_from_and_what_validation_found(finished):
    run, paths, _ = finished
    record = json.loads(paths.finished.read_text())
    facts = {
        "config_fingerprint": run.fingerprint,
        "data_fingerprint": read_manifest(paths.manifest("small")).fingerprint,
        "seed": 3,
        "fidelity": "corrected",
        "processes": 1,
        "steps": 12,
        "resumed_at_step": 0,
    }
    assert facts.items() <= record["provenance"].items()
    validations = [line for line in read_lines(paths.metrics) if "val_top1" in line]
    assert record["metrics"]["val_top1"] == validations[-1]["val_top1"]
    assert record["metrics"]["val_loss"] == validations[-1]["val_loss"]
    assert record["metrics"]["best_val_top1"] == max(line["val_top1"] for line in validations)
    assert "best_val_loss" not in record["metrics"]
