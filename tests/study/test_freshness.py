"""What must be remade, and why; and `verify`, which says so with the command that makes it."""

from itertools import pairwise
from pathlib import Path

import pytest
from result_files import SITE, finish, write_evaluation, write_training

from pipeline.audit.verify import problems_of
from pipeline.core.errors import CheckpointError
from pipeline.core.files import digest, held, write_text
from pipeline.data.store.manifest import read_manifest, write_manifest
from pipeline.engine.inputs import find_inputs
from pipeline.freshness.outputs import (
    claims_file,
    data_file,
    drawing_record,
    drawings,
    files_of_targets,
    is_output,
    job_file,
    report_file,
    run_file,
    table_file,
)
from pipeline.freshness.remake import Freshness
from pipeline.report import drawing
from pipeline.report.drawing import draw_report, draw_table
from pipeline.report.tables.fill import fill_table
from pipeline.results.records import EvalInputs, EvalJobRecord, Inputs, write_record
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph
from pipeline.study.targets import report_target

TABLE, ROW = "mjp.t1", "mjp.t1.deit-s"
SHOWN = table_file(TABLE, "all")


@pytest.fixture
def graph(finished_table):
    return finished_table


@pytest.fixture
def run(graph):
    return graph.tables[TABLE].rows[ROW].runs[""][0]


@pytest.fixture
def folder(graph, run):
    return graph.results.run(run)


@pytest.fixture
def job(graph, run):
    return next(name for name, job in graph.eval_jobs.items() if run in job.runs and table_needs(graph, name))


def table_needs(graph, job: str) -> bool:
    return job_file(job) in graph.files(TABLE, "all")


@pytest.fixture
def evaluation(graph, job):
    """The first evaluation of the row's job."""
    return graph.results.evaluation(graph.eval_jobs[job].evaluations[0])


def now(graph) -> Freshness:
    return Freshness(graph, SITE)


@pytest.mark.slow
def test_why__everything_as_recorded__is_empty_and_verify_finds_nothing(graph):
    assert not now(graph).stale([SHOWN]) and problems_of(now(graph)) == []


@pytest.mark.slow
def test_why__chain_of_many_runs__needs_no_deep_recursion(graph, run):
    """Each starts from the one before."""
    names = [f"run{number}" for number in range(2000)]
    graph.runs |= {name: graph.runs[run].model_copy(update={"init": None}) for name in names}
    for before, name in pairwise(names):
        graph.runs[name].init = before
    files = [data_file(graph.runs[run].data), *map(run_file, names)]
    found = Freshness(graph, SITE, own_reasons={**dict.fromkeys(files, ""), files[1]: "damaged"})
    assert found.needed_for([files[-1]]) == files
    assert found.why(files[-1]) == f"results/demo/{files[-2]} is made again"


@pytest.mark.slow
def test_stale__many_questions__looks_up_what_a_table_is_made_from_once(graph, monkeypatch):
    asked, files = [], Graph.files
    monkeypatch.setattr(Graph, "files", lambda *given: asked.append(given[1:]) or files(*given))
    found = now(graph)
    for _ in range(2):
        found.stale([SHOWN, report_file("all")])
    assert asked and len(asked) == len({*asked})


def test_why__nothing_made_yet__is_not_found_and_no_problem(project):
    graph = load_graph("demo")
    found = now(graph)
    assert found.why(report_file("all")) == "not found" and problems_of(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder", "heads", "metrics", "config"])
@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_run__a_file_of_it_damaged__is_stale_with_all_that_is_made_from_it(graph, folder, job, name, damage):
    path = getattr(folder, name)
    path.unlink() if damage == "deleted" else path.write_text("other")
    found = now(graph)
    why = found.why(run_file(folder.name))
    assert why.startswith(f"{path.name} ") and ("not found" if damage == "deleted" else "recorded was") in why
    assert found.why(job_file(job)) == f"results/demo/{run_file(folder.name)} is made again"
    assert found.why(SHOWN) == f"results/demo/{job_file(job)} is made again"
    (problem,) = problems_of(now(graph))
    assert problem.file == f"results/demo/{run_file(folder.name)}"
    assert problem.remedy == "`snakemake mjp_table1` makes it again"


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "", "{", "[]"], ids=["deleted", "empty", "cut", "other"])
def test_record__of_any_kind_damaged__is_stale(graph, folder, job, content):
    data = graph.runs[folder.name].data
    for file in (data_file(data), run_file(folder.name), job_file(job), SHOWN):
        path = graph.results.folder / file
        before = path.read_text()
        path.unlink() if content is None else path.write_text(content)
        assert now(graph).why(file) and now(graph).why(SHOWN), file
        named = [problem.file for problem in problems_of(now(graph))]
        assert f"results/demo/{file}" in named or (file == SHOWN and content is None)  # nothing is drawn from a table
        path.write_text(before)
    assert not now(graph).why(SHOWN)


@pytest.mark.parametrize("file", ["run", "evaluation", "job", "data"])
def test_record__one_digit_changed_by_hand__is_noticed(graph, folder, evaluation, job, file):
    paths = {"run": folder.done, "evaluation": evaluation.result, "job": graph.results.eval_job(job)}
    path = paths.get(file, graph.results.manifest(graph.runs[folder.name].data))
    old, new = {"run": ("1.0", "2.0"), "evaluation": ("70.25", "71.25")}.get(file, ("1", "2"))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert "changed or damaged" in "".join(now(graph).stale([SHOWN]).values()) or "recorded was" in "".join(
        now(graph).stale([SHOWN]).values()
    )


def test_run__data_prepared_anew_with_other_samples__is_stale(graph, run):
    path = graph.results.manifest(graph.runs[run].data)
    write_manifest(path, read_manifest(path).model_copy(update={"fingerprint": "other samples"}))
    assert now(graph).why(run_file(run)).startswith("the data changed from data fashion")


def test_run__the_one_it_starts_from_was_trained_again__is_stale(graph, run):
    start = next(name for name in graph.runs if name != run)
    graph.runs[run].init = graph.runs[run].config["init"] = start
    finish(graph, [SHOWN])
    assert not now(graph).why(run_file(run))
    folder = graph.results.run(start)
    write_text(folder.encoder, "other weights")
    files = {**folder.trained().files, folder.encoder.name: digest(folder.encoder)}
    record = folder.trained().model_copy(update={"files": files})
    write_record(folder.done, record)
    assert not now(graph).why(run_file(start))
    assert now(graph).why(run_file(run)).startswith("the weights it starts from changed from ")


def test_evaluation__missing_changed_or_without_a_file__is_stale(graph, evaluation, job):
    text = evaluation.result.read_text()
    evaluation.result.unlink()
    assert now(graph).why(job_file(job)) == "result.json not found"
    evaluation.result.write_text(text[:-9])
    assert "recorded was" in now(graph).why(job_file(job))
    evaluation.result.write_text(text)
    assert not now(graph).why(job_file(job))


def test_evaluation__computed_with_other_weights_or_data__is_stale(graph, evaluation, run, job):
    weights = {"model": digest(graph.results.run(run).encoder)}
    for inputs, words in (
        (EvalInputs(weights={"model": "0" * 64}, data={}), "was computed with weights 000000000000 of"),
        (EvalInputs(weights=weights, data={graph.runs[run].data: "1" * 64}), "was computed with data 111111111111 of"),
    ):
        write_evaluation(graph, evaluation.name, {"top1": 70.0}, inputs=inputs)
        finish_job_record(graph, job)
        assert words in now(graph).why(job_file(job))


def finish_job_record(graph, job: str) -> None:
    names = graph.eval_jobs[job].evaluations
    results = {name: digest(graph.results.evaluation(name).result) for name in names}
    write_record(graph.results.eval_job(job), EvalJobRecord(results=results))


def test_evaluation__of_a_config_that_came_later__is_asked_for(graph, job):
    graph.eval_jobs[job].evaluations.append("classify-00000000")
    assert now(graph).why(job_file(job)) == "classify-00000000 is not among its results"


@pytest.mark.slow
def test_init_file__replaced__makes_the_run_stale_and_absent_does_not(graph, run, tmp_path):
    weights = tmp_path / "start.pth"
    weights.write_text("weights")
    graph.runs[run].config["init"] = f"file:{weights}"
    inputs = Inputs(data=f"data {graph.runs[run].data}", init=digest(weights))
    write_training(graph, run, {}, inputs=inputs)
    found = now(graph)
    assert not found.why(run_file(run)) and found.files_elsewhere(run_file(run)) == [weights]
    weights.write_text("other weights")
    assert now(graph).why(run_file(run)).startswith("the weights it starts from changed from ")
    weights.unlink()
    assert not now(graph).why(run_file(run))


@pytest.fixture
def leaking(graph, evaluation, job, run, tmp_path):
    """The evaluation as one that reads the site's `lpips`, computed with it; (site, what a job would compute from)."""
    name, weights = evaluation.name, tmp_path / "alexnet.pth"
    graph.evals[name].site_files = ["lpips"]
    weights.write_text("alexnet")
    encoder, data = graph.results.run(run).encoder, graph.runs[run].data
    inputs = EvalInputs(
        weights={"model": digest(encoder)}, data={data: f"data {data}"}, site_files={"lpips": digest(weights)}
    )
    write_evaluation(graph, name, {"top1": 70.0}, {"top1": [1.0]}, inputs=inputs)
    finish_job_record(graph, job)
    return SITE.model_copy(update={"lpips": weights}), inputs


@pytest.mark.parametrize(
    ("change", "is_finished"),
    [
        ({}, True),
        ({"site_files": {}}, True),  # the file is not on this machine: what is finished does not need it
        ({"site_files": {"lpips": "0" * 64}}, False),
        ({"weights": {"model": "0" * 64}}, False),
        ({"data": {"fashion_mnist": "other"}}, False),
    ],
    ids=["nothing", "lpips missing", "lpips replaced", "weights", "data"],
)
def test_evaluation__inputs_changed__its_job_and_freshness_decide_the_same(
    graph, evaluation, job, run, leaking, change, is_finished
):
    site, inputs = leaking
    if "site_files" in change:
        site.lpips.write_text("other") if change["site_files"] else site.lpips.unlink()
        change = {"site_files": {"lpips": digest(site.lpips)} if change["site_files"] else {}}
    if "weights" in change:
        write_training(graph, run, {}, files={"encoder.safetensors": "0" * 64}, inputs=Inputs(data="d", init=None))
    if "data" in change:
        path = graph.results.manifest("fashion_mnist")
        write_manifest(path, read_manifest(path).model_copy(update={"fingerprint": "other"}))
    found = evaluation.finished(inputs.model_copy(update=change))
    assert bool(found) == (not Freshness(graph, site).own_reason(job_file(job))) == is_finished


def test_run__init_file_not_on_this_machine__training_and_freshness_find_it_finished(graph, run, tmp_path):
    weights = tmp_path / "start.pth"
    weights.write_text("weights")
    graph.runs[run].config["init"] = init = f"file:{weights}"
    data = graph.runs[run].data
    folder = write_training(graph, run, {}, inputs=Inputs(data=f"data {data}", init=digest(weights)))
    folder.finished.unlink()
    weights.unlink()
    assert not now(graph).why(run_file(run)) and folder.is_finished(find_inputs(folder, SITE, data, init))
    folder.unpublish()
    with pytest.raises(CheckpointError, match=r"start\.pth not found"):
        find_inputs(folder, SITE, data, init)


@pytest.mark.slow
def test_drawing__a_file_of_it_deleted_or_another_definition__is_stale(graph):
    draw_table(now(graph), TABLE, "all")
    assert not now(graph).why(SHOWN)
    graph.results.table(TABLE, "all").with_suffix(".csv").unlink()
    assert now(graph).why(SHOWN) == f"{TABLE}.csv not found"
    draw_table(now(graph), TABLE, "all")
    graph.tables[TABLE].note = "another note"
    assert now(graph).why(SHOWN) == "its definition or the code that draws it has changed"


@pytest.mark.slow
def test_drawing__a_result_that_changes_while_it_is_drawn__is_stale(graph, job, monkeypatch):
    fill, path = drawing.fill_table, graph.results.eval_job(job)

    def fill_then_change(*given):
        filled = fill(*given)
        path.write_text(path.read_text() + "\n")
        return filled

    monkeypatch.setattr(drawing, "fill_table", fill_then_change)
    draw_table(now(graph), TABLE, "all")
    assert now(graph).own_reason(SHOWN) == f"results/demo/{job_file(job)} has changed since it was drawn"


@pytest.mark.slow
def test_report__page_deleted__is_a_problem_with_the_command_that_draws_it(graph):
    for file in (SHOWN, claims_file("mjp", "all"), report_file("all")):
        finish(graph, [file])
        (graph.results.folder / file).unlink()
        assert now(graph).own_reason(file) == "deleted"
        found = {problem.file: problem for problem in problems_of(now(graph))}
        assert found[f"results/demo/{file}"].found == "deleted"
    assert found[f"results/demo/{file}"].remedy == "`snakemake all` makes it again"
    (graph.results.folder / drawing_record(file)).unlink()
    assert now(graph).own_reason(file) == "not found"


@pytest.mark.slow
def test_number__whose_run_has_other_weights_now__is_stale_and_is_not_compared_image_by_image(graph, folder):
    name = graph.tables[TABLE].rows[ROW].cells["top1"].sources[0].split("/")[1]
    write_evaluation(graph, name, {"top1": 70.0}, {"top1": [100.0, 40.0]}, images="val", count=2)
    job = graph.evals[name].job
    names = graph.eval_jobs[job].evaluations
    results = {each: digest(graph.results.evaluation(each).result) for each in names}
    write_record(graph.results.eval_job(job), EvalJobRecord(results=results))

    def cell():
        return next(row for row in fill_table(graph, TABLE, "all", now(graph)).rows if row.id == ROW).cells["top1"]

    assert (cell().stale, cell().images, len(cell().per_image)) == ("", "val", 1)
    folder.encoder.write_text("other")
    assert cell().stale and (cell().images, cell().per_image) == ("", [])


@pytest.mark.slow
def test_difference__to_a_stale_number__is_stale(graph):
    key, column, table_id = next(
        (key, column, table_id)
        for table_id, table in graph.tables.items()
        for key, column in table.columns.items()
        if column.against and column.direction != "none"
    )
    table, base = graph.tables[table_id], f"{table_id}.{column.against}"
    finish(graph, [table_file(table_id, "all")], {table.columns[column.delta].metric: 70.25})
    for run in table.rows[base].run_names():
        graph.results.run(run).encoder.write_text("other")
    others = {row for row in table.rows if not {*table.rows[row].run_names()} & {*table.rows[base].run_names()}}
    rows = [row for row in fill_table(graph, table_id, "all", now(graph)).rows if row.id in others]
    differences = [row.cells[key] for row in rows if row.cells[key].ours is not None]
    assert differences and all(cell.stale for cell in differences)
    assert not any(row.cells[column.delta].stale for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "target"), [("all", "all"), ("headline", "demo")])
def test_report__written_by_hand_over_a_stale_result__names_the_target_that_was_made(graph, folder, rows, target):
    assert "must be made again" not in draw_report(now(graph), rows).read_text()
    folder.encoder.write_text("other")
    words = f"of the results shown here must be made again: <code>snakemake {target}</code>; their numbers are marked *"
    page = draw_report(now(graph), rows)
    assert words in page.read_text()
    table = (page.with_suffix("") / "study-mjp.html").read_text()
    assert '<abbr class="stale" title="must be made again: ' in table


def test_report_target__of_another_scale__has_the_name_of_the_report(graph):
    assert report_target("headline", "tiny") == "headline" and report_target("headline", "demo") == "demo"
    assert report_target("all", "tiny") == "all"


def test_files__written_again_or_copied_with_other_times__are_fresh(graph):
    for path in sorted(graph.results.folder.rglob("*.json"), reverse=True):
        path.write_bytes(path.read_bytes())
    assert not now(graph).stale([SHOWN])


def test_targets__of_the_demo__name_files_that_rules_make(graph):
    targets = files_of_targets(graph)
    assert targets["demo"] == [report_file("headline")] and targets["mjp_table1"] == [SHOWN]
    assert claims_file("mjp", "all") in targets["mjp"]
    assert all(is_output(file) for files in targets.values() for file in files)
    assert all(map(is_output, drawings(graph)))
    assert not is_output("tables/all/mjp.t1.made.json") and not is_output("report/all.csv")


def test_verify__both_reports_drawn__names_the_command_that_brings_both_up_to_date(graph, folder, monkeypatch):
    folder.encoder.write_text("other")
    monkeypatch.setattr(Freshness, "problems", lambda self, files: {run_file(folder.name): "damaged"})
    monkeypatch.setattr(Freshness, "exists", lambda self, file: True)
    assert problems_of(now(graph))[0].remedy == "`snakemake all demo` makes it again"


@pytest.mark.slow
def test_verify__while_nothing_writes__changes_nothing_on_disk(graph, folder):
    folder.encoder.write_text("other")
    before = {path: path.stat().st_mtime_ns for path in Path(graph.results.folder).rglob("*")}
    with held(graph.results.workflow_lock, "a test"):
        assert problems_of(now(graph))
    after = {path: path.stat().st_mtime_ns for path in Path(graph.results.folder).rglob("*")}
    assert before.items() <= after.items()
