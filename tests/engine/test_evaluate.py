"""Evaluating finished runs: what is written, what is not computed twice, and what a kill leaves."""

import json
import logging
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked import ForkedProcess
from lab import CONFIGS, Lab
from patience import PATIENCE_S, wait_until
from tiny_runs import ALONE, NUM_VAL, prepare_in, write_images

from pipeline.core.errors import CheckpointError, DataError
from pipeline.core.files import digest, read_lines
from pipeline.data.store.manifest import read_manifest
from pipeline.engine.train import load_method
from pipeline.evals import evaluate as evaluating
from pipeline.evals.accuracy.classify import Classify
from pipeline.evals.accuracy.ensemble import Ensemble
from pipeline.evals.base import Outcome, Subject
from pipeline.evals.evaluate import Planned
from pipeline.evals.positions.consistency import Consistency
from pipeline.evals.positions.jigsaw_pictures import JigsawPictures
from pipeline.results.records import EvalJobRecord, read_record
from pipeline.site import Site

pytestmark = pytest.mark.slow


# What is written


def test_evaluate__several_of_one_job__writes_each_with_its_own_numbers(lab):
    lab.evaluate()
    subject = Subject(lab.run, load_method(lab.run, lab.results.run(lab.run.name), ALONE))
    for key, cfg in CONFIGS.items():
        kind = Consistency if key == "consistency" else Classify
        expected = kind(cfg, {}, lab.results, lab.site, ALONE).compute(subject)
        written = lab.result(key)
        assert (written.metrics, written.errors) == (expected.metrics, expected.errors)
        assert written.count == expected.count == NUM_VAL
        with np.load(lab.folder(key).per_image, allow_pickle=False) as arrays:
            assert {name: arrays[name].tobytes() for name in arrays} == {
                name: values.tobytes() for name, values in expected.per_image.items()
            }
    assert lab.result("classify").metrics["shuffled_ratio"] != lab.result("mild").metrics["shuffled_ratio"]


def test_evaluate__every_result__says_what_it_was_made_from(lab):
    lab.evaluate()
    folder, manifest = lab.results.run(lab.run.name), read_manifest(lab.results.manifest("small"))
    for key, cfg in CONFIGS.items():
        result = lab.result(key)
        assert (result.evaluation, result.subjects, result.data) == (key, {"model": lab.run.name}, {})
        assert result.inputs.weights == {"model": digest(folder.encoder)}
        assert result.inputs.data == {"small": manifest.fingerprint}
        assert result.images == manifest.splits["val"].fingerprint
        assert result.files == {"per_image.npz": digest(lab.folder(key).per_image)}
        facts = {"eval_fingerprint": "aaaaaaaa", "seed": cfg.seed, "fidelity": "corrected", "device": "cpu"}
        assert facts.items() <= result.provenance.items()


def test_evaluate__code_edited_while_it_computes__records_the_code_that_began(lab, monkeypatch):
    compute, today = Classify.compute, ["before"]
    monkeypatch.setattr(evaluating, "code_of_evaluation", lambda *given: today[0])
    monkeypatch.setattr(Classify, "compute", lambda self, model: today.insert(0, "after") or compute(self, model))
    lab.evaluate(*lab.planned("classify"))
    assert lab.result("classify").provenance["code"] == "before" and today[0] == "after"


def test_evaluate__job__names_its_results_with_their_digests(lab):
    lab.evaluate()
    record = read_record(lab.results.eval_job("job"), EvalJobRecord)
    assert record.results == {f"{key}-aaaaaaaa": digest(lab.folder(key).result) for key in CONFIGS}


def test_evaluate__two_subjects__loads_each_once_and_names_both(lab, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        evaluating, "load_method", lambda run, *rest: loaded.append(run.name) or load_method(run, *rest)
    )
    both = {"first": lab.run, "second": lab.run}
    lab.evaluate(*lab.planned("classify"), Planned("both-aaaaaaaa", "both", Ensemble.Config(), both, {}))
    assert loaded == [lab.run.name]
    assert lab.result("both").subjects == dict.fromkeys(both, lab.run.name)
    assert lab.result("both").metrics["top1"] == lab.result("classify").metrics["top1"]


def test_evaluate__run_not_finished__is_refused(lab):
    lab.results.run(lab.run.name).unpublish()
    with pytest.raises(CheckpointError, match=rf"run {lab.run.name} is not finished .* train it first"):
        lab.evaluate()


class Forgetful(Classify):
    """It promises a picture and a number, and returns neither."""

    class Config(Classify.Config):
        @property
        def metrics(self) -> tuple[str, ...]:
            return (*super().metrics, "calibration")

        @property
        def files(self) -> tuple[str, ...]:
            return ("curve.png",)


def test_evaluate__metric_that_was_promised_is_not_returned__is_refused_and_nothing_is_written(lab, monkeypatch):
    monkeypatch.setattr(evaluating.EVALS, "get", lambda name: Forgetful)
    planned = Planned("classify-aaaaaaaa", "classify", Forgetful.Config(), {"model": lab.run}, {})
    with pytest.raises(DataError, match=r"evaluation classify returned no calibration, curve\.png, which"):
        lab.evaluate(planned)
    assert not lab.folder("classify").folder.exists() and not lab.results.eval_job("job").exists()


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (
            Outcome({"top1": float("nan"), "top5": float("inf")}),
            r"evaluation classify returned top1 nan, top5 inf; expected numbers",
        ),
        (
            Outcome({"top1": 1.0}, files={"../../runs/x.png": b"x"}),
            r"evaluation classify returned the file '\.\./\.\./runs/x\.png'; expected a name",
        ),
        (Outcome({"top1": 1.0}, files={"result.json": b"x"}), r"returned the file 'result\.json'; expected a name"),
        (Outcome({"top1": 1.0}, files={"a.png": "text"}), r"returned 'a\.png' as str; expected bytes"),
        ({"top1": 1.0}, r"evaluation classify returned dict; expected an Outcome"),
        (None, r"evaluation classify returned NoneType; expected an Outcome"),
    ],
    ids=["not a number", "a path", "the name of the record", "text", "a dictionary", "nothing"],
)
def test_evaluate__outcome_that_cannot_be_kept__is_refused_and_nothing_is_written(lab, monkeypatch, outcome, line):
    monkeypatch.setattr(Classify, "compute", lambda self, model: outcome)
    with pytest.raises(DataError, match=line):
        lab.evaluate(*lab.planned("classify"))
    assert not lab.folder("classify").folder.exists() and not lab.results.eval_job("job").exists()


def test_evaluate__metric_left_out_with_a_reason__is_null_with_the_reason(lab, monkeypatch):
    why = "this machine has no GPU"
    compute = lambda self, model: Outcome({"top1": 1.0}, reasons=dict.fromkeys(self.cfg.metrics[1:], why))  # noqa: E731
    monkeypatch.setattr(Classify, "compute", compute)
    lab.evaluate(*lab.planned("classify"))
    found = lab.result("classify")
    assert (found.metrics["top1"], found.metrics["top5"], found.reasons["top5"]) == (1.0, None, why)


@pytest.mark.parametrize("error", [float("nan"), float("inf")], ids=str)
def test_evaluate__standard_error_that_is_not_finite__is_null_with_the_reason(lab, monkeypatch, error):
    compute = lambda self, model: Outcome(dict.fromkeys(self.cfg.metrics, 1.0), {"top1": error, "top5": 0.5})  # noqa: E731
    monkeypatch.setattr(Classify, "compute", compute)
    lab.evaluate(*lab.planned("classify"))
    found = lab.result("classify")
    assert found.metrics["top1"] == 1.0 and found.errors == {"top1": None, "top5": 0.5}
    assert found.reasons == {"error of top1": f"the standard error is {error}"}


# What is computed again


def test_evaluate__again__computes_nothing_and_leaves_every_byte(lab, computed):
    lab.evaluate()
    before = {key: _stamps(lab.folder(key).folder) for key in CONFIGS}
    lab.evaluate()
    assert computed == ["classify", "classify", "consistency"]
    assert {key: _stamps(lab.folder(key).folder) for key in CONFIGS} == before


def _stamps(folder: Path) -> dict[str, tuple[int, str | None]]:
    return {path.name: (path.stat().st_mtime_ns, digest(path)) for path in sorted(folder.iterdir())}


def test_evaluate__job_with_one_more_evaluation__computes_that_alone(lab, computed):
    lab.evaluate(*lab.planned("classify", "mild"))
    lab.evaluate()
    assert computed == ["classify", "classify", "consistency"]


def test_evaluate__weights_changed__computes_again_with_them(lab, computed):
    lab.evaluate(*lab.planned("classify"))
    before = lab.result("classify")
    lab.change_weights()
    lab.evaluate(*lab.planned("classify"))
    assert computed == ["classify"] * 2
    after = lab.result("classify")
    assert after.metrics["loss"] != before.metrics["loss"] and after.inputs.weights != before.inputs.weights


def test_evaluate__file_that_the_site_names_appears_or_changes__computes_again(lab, computed, tmp_path, monkeypatch):
    monkeypatch.setattr(Classify, "site_files", ("lpips",))
    file = tmp_path / "alexnet.pth"
    named = replace(lab, site=lab.site.model_copy(update={"lpips": file}))
    named.evaluate(*lab.planned("classify"))
    for content in (b"one", b"other"):
        file.write_bytes(content)
        named.evaluate(*lab.planned("classify"))
        named.evaluate(*lab.planned("classify"))
    assert computed == ["classify"] * 3


def test_evaluate__data_changed_since_the_run_was_trained__is_refused(lab, tmp_path):
    prepare_in(lab.results.folder, write_images(tmp_path / "other", shift=1))
    with pytest.raises(CheckpointError, match=rf"the data changed from .* since run {lab.run.name} was trained"):
        lab.evaluate()


def pictures(lab: Lab) -> Planned:
    cfg = JigsawPictures.Config(data={"images": "small"}, patches=7, images=2)
    return Planned("jigsaw-aaaaaaaa", "jigsaw", cfg, subjects={}, data={"images": lab.run.data})


def test_evaluate__no_subject__needs_no_run_and_is_computed_again_when_its_data_change(lab, tmp_path, computed):
    shutil.rmtree(lab.results.folder / "runs")
    for _ in range(2):
        lab.evaluate(pictures(lab))
    before = lab.result("jigsaw")
    other = write_images(tmp_path / "other", shift=1)
    prepare_in(lab.results.folder, other)
    replace(lab, site=Site(device="cpu", data={"small": other})).evaluate(pictures(lab))
    assert computed == ["jigsaw_pictures"] * 2
    after = lab.result("jigsaw")
    assert (after.subjects, after.data, after.metrics) == ({}, {"images": "small"}, {})
    assert after.files["shuffled.png"] != before.files["shuffled.png"]


def damage_values(folder) -> None:
    content = bytearray(folder.per_image.read_bytes())
    content[-30] ^= 1
    folder.per_image.write_bytes(content)


DAMAGES = {
    "a byte of the values per image": damage_values,
    "values per image deleted": lambda folder: folder.per_image.unlink(),
    "result deleted": lambda folder: folder.result.unlink(),
    "result cut short": lambda folder: folder.result.write_text(folder.result.read_text()[:-9]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_evaluate__a_file_of_a_result_is_damaged__computes_that_result_again(lab, computed, damage):
    lab.evaluate()
    before = lab.result("mild")
    damage(lab.folder("mild"))
    lab.evaluate()
    assert computed == ["classify", "classify", "consistency", "classify"]
    after = lab.result("mild")
    assert (after.metrics, after.files) == (before.metrics, before.files)


# Two jobs at once


def test_evaluate__another_job_works_on_the_result__waits_and_finds_it_finished(lab, computed, caplog):
    """As after a killed Snakemake, whose job goes on while the next Snakemake starts it again."""
    caplog.set_level(logging.INFO)
    mild, results = lab.planned("mild"), []
    second = threading.Thread(target=lambda: results.append(lab.evaluate(*mild, job="second")), daemon=True)
    compute = Classify.compute

    def compute_slowly(self, **subjects):
        second.start()
        wait_until(lambda: any(line.endswith("working on mild-aaaaaaaa; waiting for it") for line in caplog.messages))
        return compute(self, **subjects)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classify, "compute", compute_slowly)
        lab.evaluate(*mild, job="first")
    second.join(PATIENCE_S)
    assert results == [None] and computed == ["classify"]
    first, other = (read_record(lab.results.eval_job(job), EvalJobRecord) for job in ("first", "second"))
    assert first == other


# A job that is killed


def evaluate_until_killed(lab: Lab, moment: str) -> None:
    """In a process of its own, which ends itself in the second evaluation."""
    write = evaluating.write_record

    def die_instead(*arguments, **subjects):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_before_the_record(path, record):
        die_instead() if path.parent.name.startswith("consistency") else write(path, record)

    def die_while_writing(path, record):
        if path.parent.name.startswith("consistency"):
            os.replace = die_instead
        write(path, record)

    if moment == "it computes":
        Consistency.compute = die_instead
    else:
        evaluating.write_record = {"its files are written": die_before_the_record}.get(moment, die_while_writing)
    lab.evaluate(*lab.planned("classify", "consistency"))


def kill(lab: Lab, moment: str) -> None:
    process = ForkedProcess(target=evaluate_until_killed, args=(lab, moment))
    process.start()
    process.join(600)  # a busy machine takes its time; the exit code says what happened
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["it computes", "its files are written", "its record is half written"])
def test_kill__in_the_second_evaluation_of_a_job__keeps_the_first_and_leaves_no_half_result(lab, computed, moment):
    kill(lab, moment)
    assert lab.folder("classify").result.exists()
    assert not lab.folder("consistency").result.exists() and not lab.results.eval_job("job").exists()

    before = _stamps(lab.folder("classify").folder)
    lab.evaluate(*lab.planned("classify", "consistency"))

    assert computed == ["consistency"]
    assert _stamps(lab.folder("classify").folder) == before
    assert lab.results.eval_job("job").exists()


def test_kill__while_computing_again_for_other_weights__leaves_no_result_of_the_old_ones(lab):
    lab.evaluate(*lab.planned("classify", "consistency"))
    lab.change_weights()
    kill(lab, "its files are written")
    assert lab.folder("classify").result.exists() and not lab.folder("consistency").result.exists()


class Killed(Exception):
    pass


def test_parts__of_a_killed_evaluation__serve_the_same_inputs_and_config_alone(lab, monkeypatch):
    kept = []

    def compute(self, model):
        self.parts.once("half", lambda: kept.append(self.cfg.seed) or {"half": np.zeros(1)})
        raise Killed

    monkeypatch.setattr(Classify, "compute", compute)
    (planned,) = lab.planned("classify")
    other = replace(planned, cfg=planned.cfg.model_copy(update={"seed": 6}))
    for each in (planned, planned, other, planned):
        with pytest.raises(Killed):
            lab.evaluate(each)
    assert kept == [5, 6]
    lab.change_weights()
    with pytest.raises(Killed):
        lab.evaluate(planned)
    assert kept == [5, 6, 5]


def test_parts__of_a_finished_evaluation__are_deleted(lab, monkeypatch):
    compute = Classify.compute

    def kept(self, model):
        self.parts.once("half", lambda: {"half": np.zeros(1)})
        assert lab.folder("classify").parts.is_dir()
        return compute(self, model)

    monkeypatch.setattr(Classify, "compute", kept)
    lab.evaluate(*lab.planned("classify"))
    assert lab.result("classify").metrics and not lab.folder("classify").parts.exists()


# What training writes


def test_train__finished__says_what_it_was_made_from_and_what_validation_found(lab):
    run, paths = lab.run, lab.results.run(lab.run.name)
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
