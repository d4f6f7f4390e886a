"""`merge`: finished results of another machine, compared with their records and with what is here."""

import json
import shutil
from pathlib import Path

import pytest
from result_files import SITE, finish, finish_one, write_training

from pipeline.audit.merge import carry_out, find_results, plan_merge
from pipeline.audit.status import read_status
from pipeline.cli import main
from pipeline.core.errors import CheckpointError, DataError
from pipeline.core.files import write_text
from pipeline.freshness.outputs import job_file, run_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.publishing.folder import check, publish
from pipeline.publishing.ready import require_ready
from pipeline.results import ScaleFolder
from pipeline.results.records import Inputs, TrainRecord, read_record, write_record
from pipeline.study.resolve.graph import load_graph

SHOWN = table_file("mjp.t1", "all")
pytestmark = pytest.mark.slow
NOT_BROUGHT = shutil.ignore_patterns("state", "*.safetensors", "tables", "graph.json")


@pytest.fixture
def graph(project):
    return load_graph("demo")


@pytest.fixture
def there(graph, tmp_path) -> ScaleFolder:
    """All that one table needs, computed elsewhere; weights and checkpoints stayed there."""
    finish(graph, [SHOWN], {"top1": 70.0, "params_m": 1.0})
    here = graph.results.folder
    shutil.copytree(here, tmp_path / "brought" / "results" / "demo", ignore=NOT_BROUGHT)
    for each in ("runs", "evals", "data", "state", "tables"):
        shutil.rmtree(here / each)
    return find_results(tmp_path / "brought", "demo")


@pytest.fixture
def run(graph):
    return graph.tables["mjp.t1"].rows["mjp.t1.deit-s"].runs[""][0]


@pytest.fixture
def evaluation(graph, run):
    """An evaluation of this run that the table shows."""
    job = next(each for each in graph.eval_jobs if run in graph.eval_jobs[each].runs and _is_shown(graph, each))
    return graph.eval_jobs[job].evaluations[0]


def _is_shown(graph, job: str) -> bool:
    return job_file(job) in graph.files("mjp.t1", "all")


def test_publish__merged_results_whose_weights_are_elsewhere__needs_no_weights(graph, there):
    merged(graph, there)

    freshness = Freshness(graph, SITE)
    (line,) = require_ready(freshness, is_partial=True)
    folder = publish(graph, graph.results)
    assert "results of the headline are missing, and published as such" in line and check("demo") == []
    tables = json.loads((folder / "tables.json").read_text())
    assert tables["mjp.t1"]["cells"]["mjp.t1.deit-s:top1"]["ours"] == 70.0
    with pytest.raises(DataError, match="results of the headline are missing; run `snakemake demo`, or accept it"):
        require_ready(freshness, is_partial=False)


def test_publish__stale_result__is_refused(graph, there):
    run = graph.tables["mjp.t1"].rows["mjp.t1.deit-s"].runs[""][0]
    merged(graph, there)
    graph.results.run(run).metrics.write_text("{}")

    with pytest.raises(DataError, match=r"must be made again \(`snakemake demo`\)"):
        require_ready(Freshness(graph, SITE), is_partial=True)


def merged(graph, there) -> list[str]:
    merge = plan_merge(graph, there)
    assert merge.conflicts == []
    return [*carry_out(merge, "login1:/scratch")]


def test_merge__results_without_weights__leaves_only_drawings_to_make(graph, there):
    folders = merged(graph, there)
    assert {folder.split("/")[0] for folder in folders} == {"data", "runs", "evals"}
    assert [*Freshness(graph, SITE).stale([SHOWN])] == [SHOWN]


def test_merge__again__copies_nothing(graph, there):
    count = len(merged(graph, there))
    again = plan_merge(graph, there)
    assert (again.files, again.conflicts, again.num_same) == ({}, [], count)


def test_merge__interrupted__continues(graph, there):
    every = len(plan_merge(graph, there).files)
    first = next(carry_out(plan_merge(graph, there), "elsewhere"))
    rest = merged(graph, there)
    assert first not in rest and len(rest) == every - 1
    assert [*Freshness(graph, SITE).stale([SHOWN])] == [SHOWN]


def test_weights__left_elsewhere__are_named_where_they_are_needed(graph, there, run):
    merged(graph, there)
    folder = graph.results.run(run)
    with pytest.raises(CheckpointError, match=r"merged without its weights, which are at login1:/scratch; copy"):
        folder.verified(folder.encoder)
    assert "weights       of 6 finished runs are elsewhere: login1:/scratch" in str(read_status(Freshness(graph, SITE)))


def test_weights__brought_later__count_if_they_are_those_of_the_record(graph, there, run):
    merged(graph, there)
    folder = graph.results.run(run)
    write_text(folder.encoder, f"content of {folder.encoder.name} of {run}")
    assert folder.verified(folder.encoder) == folder.encoder
    assert "weights       of 5 finished runs are elsewhere" in str(read_status(Freshness(graph, SITE)))
    write_text(folder.encoder, "other weights")
    assert "encoder.safetensors has SHA-256" in Freshness(graph, SITE).why(run_file(run))


def test_merge__everything_that_contradicts__is_said_at_once_and_nothing_is_copied(graph, there, run, evaluation):
    data, other = (
        graph.runs[run].data,
        next(name for name in graph.runs if (there.run(name).done).exists() and name != run),
    )
    write_text(there.run(other).metrics, "changed on the way")
    finish_one(graph, f"data/{data}/manifest.json", {})
    write_training(graph, run, {"top1": 1.0}, inputs=Inputs(data="other data", init=None))
    found = "\n".join(plan_merge(graph, there).conflicts)
    assert f"runs/{run}: trained here, too, to other weights" in found
    assert f"runs/{other}: metrics.jsonl has SHA-256" in found
    assert main(["merge", str(there.folder)]) == 1
    assert not graph.results.evaluation(evaluation).result.exists()


def test_merge__evaluation_of_other_weights__is_refused(graph, there, run, evaluation):
    record = read_record(there.run(run).done, TrainRecord)
    files = {**record.files, "encoder.safetensors": "0" * 64}
    write_record(there.run(run).done, record.model_copy(update={"files": files}))
    assert any(
        each.startswith(f"evals/{evaluation}: computed with weights") for each in plan_merge(graph, there).conflicts
    )


def test_merge__run_of_other_data_than_here__is_refused(graph, there, run):
    data = graph.runs[run].data
    shutil.copytree(there.folder / "data" / data, graph.results.folder / "data" / data)
    record = read_record(there.run(run).done, TrainRecord)
    write_record(there.run(run).done, record.model_copy(update={"inputs": Inputs(data="f00", init=None)}))
    assert f"runs/{run}: made from data f00 of {data}" in "\n".join(plan_merge(graph, there).conflicts)


def test_merge__run_that_trains_here__is_refused(graph, there, run):
    write_text(graph.results.run(run).state / f"step-000000100-{'0' * 16}.pt", "a checkpoint")
    assert f"runs/{run}: its training has begun here" in plan_merge(graph, there).conflicts[0]


def test_merge__record_that_names_files_outside_its_folder__is_refused(graph, there, run, tmp_path):
    record = read_record(there.run(run).done, TrainRecord)
    write_record(there.run(run).done, record.model_copy(update={"files": {"../../../graph.json": "0" * 64}}))
    assert "expected files of its own folder" in plan_merge(graph, there).conflicts[0]


def test_merge__results_that_no_config_names__are_left_out(graph, there, run):
    there.run(run).folder.rename(there.folder / "runs" / "old-run-0000")
    found = plan_merge(graph, there)
    assert found.unknown == ["runs/old-run-0000"]


def test_find_results__folder_without_any__says_what_is_expected(tmp_path):
    with pytest.raises(DataError, match="found neither runs nor evals, expected results of scale demo"):
        find_results(Path(tmp_path), "demo")
