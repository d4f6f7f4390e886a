"""`merge` of a published folder: what is in git becomes results again, to which seeds can be added."""

import json
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from result_files import SITE, write_evaluation, write_training
from toy_study import A, B, name_of

from pipeline.audit.merge import Merge, carry_out, open_results, plan_merge
from pipeline.audit.status import read_status
from pipeline.audit.verify import problems_of
from pipeline.cli import main
from pipeline.core.errors import DataError
from pipeline.freshness.outputs import job_file, run_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.publishing import metrics as published_files
from pipeline.publishing.folder import check, publish, published_scales
from pipeline.publishing.metrics import read_metrics
from pipeline.report.collect import collect
from pipeline.report.site.page import write_single
from pipeline.results.records import FilesElsewhere, TrainRecord, read_record
from pipeline.study.resolve.entries import StudyEntry
from pipeline.study.resolve.graph import load_graph
from workflow import invocation
from workflow.dependencies import Dependencies

pytestmark = pytest.mark.slow
OTHER_SEED = A.replace("s0-aaaaaa", "s1-aaaaa1")
HEADLINE = table_file("mjp.t1", "headline")


def evaluate(graph, run: str, right: np.ndarray) -> None:
    values = 100.0 * right
    about = {"errors": {"top1": 2.9}, "count": 200, "images": "the same"}
    per_image = {"top1": values, "top5": values}  # of which claims compare the first
    write_evaluation(graph, name_of("classify", run), {"top1": values.mean()}, per_image, **about)


@pytest.fixture
def measured(measured):
    """The toy study, whose first claim is decided by pairs of images, with values per image."""
    every = np.arange(200)
    evaluate(measured, A, every % 5 > 0)
    evaluate(measured, B, (every % 5 > 0) | (every % 25 == 0))
    measured.stories["toy"] = StudyEntry(title="Toy study", main_claim="toy.c1")
    return measured


@pytest.fixture
def made(measured, tmp_path) -> Path:
    """What was published of it, as another project has it; here, nothing is left."""
    publish(measured, measured.results).rename(tmp_path / "theirs")
    clear(measured)
    return tmp_path / "theirs"


def clear(graph) -> None:
    for kind in ("runs", "evals", "data", "state", "tables", "figures", "report"):
        shutil.rmtree(graph.results.folder / kind, ignore_errors=True)


def merged(graph, folder: Path) -> Merge:
    with open_results(folder, None) as (scale, there):
        merge = plan_merge(graph, there)
        assert scale == graph.scale and merge.conflicts == []
        assert [*carry_out(merge, "login1:/scratch")] == [*merge.files]
    return merge


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Once published, merged and published again


def test_publish__what_was_merged_from_a_published_folder__is_the_same_again(measured, made):
    assert merged(measured, made).counted("runs") == 2
    before, after = contents(made), contents(publish(measured, measured.results))
    # A record says of the files beside it, and of the values per image only those are published that are compared.
    records = [json.loads(each.pop("metrics.json"))["evaluations"] for each in (before, after)]
    assert after == before and check("toy") == []
    for record in records:
        for each in record.values():
            del each["files"], each["per_image"]
    assert records[0] == records[1]
    clear(measured)
    once = contents(measured.results.folder.parent / "published/toy")
    merged(measured, measured.results.folder.parent / "published/toy")
    assert contents(publish(measured, measured.results)) == once


def test_merge__published_run__has_every_file_but_its_weights_as_training_wrote_it(measured, made):
    merged(measured, made)
    folder = measured.results.run(A)
    known = read_record(folder.elsewhere, FilesElsewhere)
    assert known.place == "login1:/scratch" and {*known.files} == {folder.encoder.name, folder.heads.name}
    assert folder.timing.read_text() == f"content of timing.jsonl of {A}"
    record = read_record(folder.done, TrainRecord)
    assert folder.reason_to_repeat(record, record.inputs) == ""
    assert merged(measured, made).num_same == 6


def test_merge__published_evaluation__has_a_record_of_the_values_that_were_published(measured, made):
    merged(measured, made)
    folder = measured.results.evaluation(name_of("classify", B))
    result = json.loads(folder.result.read_text())
    assert result["per_image"] == ["top1"] and [*result["files"]] == ["per_image.npz"]
    with np.load(folder.per_image) as values:
        assert values.files == ["top1"] and values["top1"].mean() == result["metrics"]["top1"]


def test_publish__seed_of_another_machine__is_beside_the_published_one(measured, made):
    merged(measured, made)
    row = measured.tables["toy.t1"].rows["toy.t1.a"]
    row.runs[""].append(OTHER_SEED)
    measured.runs[OTHER_SEED] = measured.runs[A]
    for key, cell in row.cells.items():
        cell.sources += [source.replace("aaaaaa", "aaaaa1").replace("s0-", "s1-") for source in cell.sources]
        if key != "params_m":
            name, entry = {"top1": "classify"}.get(key, "consistency"), {"model": OTHER_SEED}
            found = measured.evals[name_of(name, A)].model_copy(update={"subjects": entry})
            measured.evals[name_of(name, OTHER_SEED)] = found
    write_training(measured, OTHER_SEED, {"params_m": 22.05})
    evaluate(measured, OTHER_SEED, np.arange(200) % 10 > 0)

    folder = publish(measured, measured.results)
    cells = json.loads((folder / "tables.json").read_text())["toy.t1"]["cells"]
    assert (cells["toy.t1.a:top1"]["ours"], cells["toy.t1.a:top1"]["n"]) == (85.0, 2)
    assert {*read_metrics(folder / "metrics.json").runs} == {A, B, OTHER_SEED} and check("toy") == []
    with np.load(folder / "per_image.npz") as values:
        assert {f"{name_of('classify', run)}/top1" for run in (A, B, OTHER_SEED)} == {*values.files}


# Folders without the files of runs, from before they were published


def test_merge__folder_without_files_of_runs__has_records_and_says_so_where_they_are_shown(measured, made, tmp_path):
    (made / "runs.zip").unlink()
    merged(measured, made)
    folder = measured.results.run(A)
    assert {*read_record(folder.elsewhere, FilesElsewhere).files} == {*read_record(folder.done, TrainRecord).files}

    content = collect(measured, "headline")
    assert "fidelity: paper" in content.runs[0].config  # the configs have it
    page = write_single(content, tmp_path / "report.html", "Title", "toy", measured.results.read)
    assert page.read_text().count("The learning curve was not published.") == 2
    text = (publish(measured, measured.results) / "README.md").read_text()
    assert "The learning curves of 2 runs were not kept." in text


# What contradicts, and what comes from people who mean harm


def conflicts(graph, folder: Path) -> list[str]:
    with open_results(folder, None) as (_, there):
        return plan_merge(graph, there).conflicts


def test_merge__published_results_that_contradict_those_here__are_refused(measured, made):
    write_training(measured, A, {"params_m": 1.0}, files={"encoder.safetensors": "0" * 64})
    name = name_of("classify", B)
    known = read_metrics(made / "metrics.json").evaluations[name]
    write_evaluation(measured, name, {"top1": 1.0}, inputs=known.inputs)
    found = "\n".join(conflicts(measured, made))
    assert f"runs/{A}: trained here, too, to other weights" in found
    assert f"evals/{name}: computed here, too, with other inputs or numbers" in found


def rewrite(path: Path, **changed: str) -> None:
    """Some files of an archive with other contents; new ones at the end."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()} | changed
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def test_merge__published_file_that_is_not_as_recorded__is_refused(measured, made):
    rewrite(made / "runs.zip", **{f"{A}/metrics.jsonl": '{"loss": 0}\n'})
    assert conflicts(measured, made)[0].startswith(f"runs/{A}: metrics.jsonl has SHA-256")


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside-of-patchwork"])
def test_merge__archive_with_a_name_that_leads_outside__is_refused(measured, made, name):
    rewrite(made / "runs.zip", **{name: "harm"})
    with pytest.raises(DataError, match=r"runs.zip cannot be read \('.*outside.*' is not a plain file or folder"):
        conflicts(measured, made)
    assert not Path("/tmp/outside-of-patchwork").exists()


def test_merge__record_of_a_run_whose_name_leads_outside__is_refused(measured, made):
    path = made / "metrics.json"
    path.write_text(path.read_text().replace(f'"{A}": {{', '"../outside": {', 1))
    with pytest.raises(DataError, match=r"metrics.json cannot be read"):
        conflicts(measured, made)


@pytest.mark.parametrize(("file", "most"), [("per_image.npz", 100), ("runs.zip", 5_000)])
def test_merge__archive_that_would_fill_the_disk__is_refused(measured, made, monkeypatch, file, most):
    rewrite(made / "runs.zip", **{f"{A}/timing.jsonl": "x" * 10_000})
    monkeypatch.setattr(published_files, "MOST_UNPACKED", most)
    with pytest.raises(DataError, match=rf"{file} cannot be read \(its files have .* bytes, expected {most:,} at most"):
        conflicts(measured, made)


# The project afterwards


@pytest.fixture
def clone(finished_table):
    """The demo's graph in a clone, where nothing has run; one table of numbers is published."""
    publish(finished_table, finished_table.results)
    clear(finished_table)
    return finished_table


def test_merge__published_results_in_a_clone__are_finished_without_data_and_weights(clone, project, capsys):
    folder = project.results / "published/demo"
    assert (
        main(["merge", str(folder), "--scale", "tiny"]) == 1 and "has results of scale demo" in capsys.readouterr().err
    )
    assert main(["merge", str(folder)]) == 0 and "stay elsewhere" in capsys.readouterr().out

    graph, now = load_graph("demo"), Freshness(load_graph("demo"), SITE)
    runs = [*read_metrics(folder / "metrics.json").runs]
    results = [f"runs/{name}/train.json" for name in runs]
    assert not any(map(now.why_number, results)) and problems_of(now) == [] and published_scales() == ["demo"]
    assert f"weights       of {len(runs)} finished runs are elsewhere" in str(read_status(now))
    assert {each.split("/")[0] for each in now.stale([HEADLINE])} <= {"data", "tables"}

    forced: list[str] = []
    jobs = Dependencies(lambda scale: now, SITE, forced.append)
    assert jobs.train_inputs(SimpleNamespace(scale="demo", run=runs[0])) == [] and forced == []
    graph.results.run(runs[1]).config.write_text("changed, so it is trained again")
    jobs = Dependencies(lambda scale: Freshness(graph, SITE), SITE, forced.append)
    for name in (runs[1], next(name for name in graph.trained_runs() if name not in runs)):
        assert "manifest.json" in str(jobs.train_inputs(SimpleNamespace(scale="demo", run=name))[0])


def test_workflow__jobs_that_need_weights_of_merged_runs__are_announced(clone, project):
    main(["merge", str(project.results / "published/demo")])
    graph = load_graph("demo")
    assert invocation.problems_of(Freshness(graph, SITE), [f"results/demo/{HEADLINE}"], {}) == []

    job = next(name for name in graph.eval_jobs if graph.results.eval_job(name).exists())
    run = graph.eval_jobs[job].runs[0]
    graph.results.eval_job(job).unlink()
    (line,) = invocation.problems_of(Freshness(graph, SITE), [f"results/demo/{job_file(job)}"], {})
    assert line.startswith("1 job will fail: merged runs whose weights are elsewhere are needed") and line.endswith(run)
    shutil.rmtree(graph.results.run(run).folder)  # it is trained again
    assert invocation.problems_of(Freshness(graph, SITE), [f"results/demo/{job_file(job)}"], {}) == []
    assert Freshness(graph, SITE).why(run_file(run)) == "not found"
