"""Whole runs on texts: they learn, resume, are shared by processes, and start from each other."""

import json

import bases
import pytest
import torch
from every_key import short_run, write_texts
from peers import peers
from tiny_runs import ALONE, StopAfter, build_trainer, differing, fit, publish, weights_of
from unstable import train_together

from pipeline.core.registry import TASKS
from pipeline.data.kind import kind_of
from pipeline.data.loader import eval_loader
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import build_method
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.engine.validate import measure_set
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow
RUNS = {"bert": bases.BERT, "gpt2": bases.GPT2, "language_model": bases.LANGUAGE, "masked_language": bases.MASKED}
# Everything random and stateful at once.
RICH = {
    "model": {"dropout": 0.2},
    "optim": {"epochs": 3, "base_lr": 0.01, "ema_decay": 0.5, "clip_norm": 1.0, "log_every": 2},
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


def finished(run, folder, results):
    """A run as `python -m pipeline train` leaves it: its record and its folder."""
    paths, site = RunFolder(results, run.name), Site(device="cpu", data={run.data.name: folder})
    prepare(run.data, folder, paths.manifest(run.data.name).parent, progress=False)
    train_run(run, paths, site, StopRequest())
    return json.loads(paths.finished.read_text()), paths


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_train__two_authors_who_sign__are_told_apart(texts, tmp_path, name):
    run = short_run(RUNS[name], {"optim": {"epochs": 30, "base_lr": 0.05, "validate_every": 30}})
    record, paths = finished(run, texts, tmp_path)
    assert record["metrics"]["val_top1"] == 100
    assert measured(run, load_method(run, paths, ALONE), texts, ALONE).metrics["top1"] == 100


def test_train__lines_with_a_pattern__have_a_perplexity_far_below_the_number_of_words(texts, tmp_path):
    run = short_run(bases.LANGUAGE, {"optim": {"epochs": 30, "base_lr": 0.05, "validate_every": 1}})
    record, paths = finished(run, texts, tmp_path)
    metrics = record["metrics"]
    assert 1 < metrics["best_val_perplexity"] <= metrics["val_perplexity"] < 15  # of 27 words
    assert record["count"] == run.data.num_val
    found = measured(run, load_method(run, paths, ALONE), texts, ALONE).metrics
    assert found["perplexity"] == metrics["val_perplexity"]


def measured(run, method, folder, world, batch=256):
    task, split = TASKS.get(run.task)(run.data, world.device), open_split(run.data, folder, "val")
    loader = eval_loader(split, kind_of(run.data).eval_view(), batch, world.rank, world.size, 0, task.collate)
    return measure_set(method, loader, task, world, "fp32", type(method).measure)


@pytest.mark.parametrize("size", [2, 3, 11])
@pytest.mark.parametrize("name", ["language_model", "masked_language"])
def test_perplexity__shared_by_processes__is_that_of_one(texts, name, size):
    run = short_run(RUNS[name])
    method = build_method(run)
    alone = measured(run, method, texts, ALONE, 5)
    *_, last = [measured(run, method, texts, world, 5) for world in peers(size)]
    assert (last.metrics, last.errors, last.count) == (alone.metrics, alone.errors, alone.count)


@pytest.mark.parametrize("name", RUNS)
def test_resume__text_run_stopped_at_any_step__ends_bit_identical(texts, tmp_path, name):
    run = short_run(RUNS[name], RICH)
    whole = fit(run, tmp_path / "whole", texts)
    fit(run, tmp_path / "parts", texts, StopAfter(4))
    again = fit(run, tmp_path / "parts", texts)
    assert differing(weights_of(whole), weights_of(again)) == []
    assert again.paths.metrics.read_bytes() == whole.paths.metrics.read_bytes()
    assert (again.best, again.last_validation) == (whole.best, whole.last_validation)


def test_start__classifier_from_a_masked_language_model__takes_all_but_pooler_and_head(texts, tmp_path):
    first = fit(short_run(bases.MASKED), tmp_path, texts)
    publish(first)
    second = build_trainer(short_run(bases.BERT, {"init": first.run.name, "seed": 3}), tmp_path, texts)
    found, expected = second.method.encoder.state_dict(), first.method.encoder.state_dict()
    assert differing({name: found[name] for name in expected}, expected) == []
    report = second.init_report
    assert report.format == "bert" and len(report.matched) == len(expected)
    assert {name.split(".")[-2] for name in report.fresh} == {"dense", "classifier"}


def test_start__classifier_from_a_language_model__takes_all_but_its_head(texts, tmp_path):
    first = fit(short_run(bases.LANGUAGE), tmp_path, texts)
    publish(first)
    report = build_trainer(short_run(bases.GPT2, {"init": first.run.name}), tmp_path, texts).init_report
    assert (report.format, report.fresh, report.dropped) == ("gpt2", ["classifier.weight"], [])


@pytest.mark.parametrize("name", ["bert", "masked_language", "language_model"])
def test_two_processes__text_run__are_one_to_rounding(texts, tmp_path, name):
    run = short_run(RUNS[name], {"optim": {"base_lr": 1e-3, "eps": 1e-4}})
    alone = fit(run, tmp_path / "alone", texts)
    results = tmp_path / "together"
    train_together(run.model_dump(mode="json"), texts, results, data=run.data)
    for rank in range(2):
        found = torch.load(results / f"rank{rank}.pt", weights_only=True)
        for key, value in alone.method.state_dict().items():
            torch.testing.assert_close(found[f"method.{key}"], value, atol=1e-5, rtol=0)
