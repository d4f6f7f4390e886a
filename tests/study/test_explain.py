"""`explain`: from a number to the lines and files that it comes from."""

from importlib.metadata import version

import pytest
from result_files import ORIGIN, SITE, finish, write_training

from pipeline.audit.explain import explain
from pipeline.cli import main
from pipeline.core.errors import ConfigError
from pipeline.core.files import digest
from pipeline.freshness.outputs import job_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.results.records import Inputs

CELL = "mjp.t1.deit-s:top1"

pytestmark = pytest.mark.slow


@pytest.fixture
def graph(finished_table):
    return finished_table


@pytest.fixture
def run(graph):
    return graph.tables["mjp.t1"].rows["mjp.t1.deit-s"].runs[""][0]


def lines_of(graph, *what) -> dict[str, str]:
    """The first line of each name, by that name."""
    found: dict[str, str] = {}
    for line in explain(Freshness(graph, SITE), *what).splitlines():
        found.setdefault(
            line[:14].strip() if line.startswith("  ") else "", line[14:] if line.startswith("  ") else line
        )
    return found


@pytest.mark.parametrize("number", [CELL, "mjp.t1.deit-s.top1", "t1.deit-s:top1"])
def test_explain__a_cell__leads_from_the_study_to_the_result_and_its_run(graph, run, number, project):
    said = explain(Freshness(graph, SITE), number)
    found = lines_of(graph, number)
    assert found[""] == f"{CELL} is 70.25, in the paper 79.8: difference -9.55"
    line = int(found["study"].split("(line ")[1].rstrip(")"))
    written = (project.configs / "study/mjp.yaml").read_text().splitlines()
    assert written[line - 1].strip().startswith("deit-s:")
    (source,) = graph.tables["mjp.t1"].rows["mjp.t1.deit-s"].cells["top1"].sources
    assert found["result"] == f"results/demo/{source}" and "configs/eval/classify.yaml" in found["evaluation"]
    assert f"\n{run} (DeiT-S)\n" in said and "since then  nothing that it depends on has changed" in said


def test_explain__weights_changed_since__says_that_and_why(graph, run):
    graph.results.run(run).encoder.write_text("other")
    said = explain(Freshness(graph, SITE), CELL)
    assert f"must be made again: results/demo/runs/{run}/train.json is made again" in said
    assert "must be made again: encoder.safetensors has SHA-256" in said


def test_explain__code_changed_since__shows_both_digests(graph, run):
    inputs = Inputs(data="data fashion_mnist", init=None)
    write_training(graph, run, {}, inputs=inputs, provenance={**ORIGIN, "code": "0123"})
    assert lines_of(graph, run)["code"] == f"method supervised 0123; today's code is {graph.code_of_run(run)}"


def test_explain__code_changed_since__does_not_say_that_nothing_has_changed(graph, run):
    inputs = Inputs(data="data fashion_mnist", init=None)
    write_training(graph, run, {}, inputs=inputs, provenance={**ORIGIN, "code": "0123"})
    assert lines_of(graph, run)["since then"] == "its code has changed; nothing else that it depends on has"
    write_training(graph, run, {}, inputs=inputs, provenance=ORIGIN)  # from before digests of code were kept
    assert lines_of(graph, run)["since then"] == "nothing that it depends on has changed"


def with_versions(graph, run, **versions):
    inputs = Inputs(data="data fashion_mnist", init=None)
    write_training(graph, run, {}, inputs=inputs, provenance={**ORIGIN, "versions": versions})
    return lines_of(graph, run)


def test_explain__made_with_another_torch__names_both_versions_and_passes_no_verdict(graph, run):
    found = with_versions(graph, run, torch="1.0", timm=version("timm"), numpy="1.0")
    assert found["versions"] == f"torch 1.0, installed is {version('torch')}"
    assert found["since then"] == "nothing that it depends on has changed"


def test_explain__made_with_what_is_installed_or_not_recorded__says_nothing_of_versions(graph, run):
    assert "versions" not in with_versions(graph, run, torch=version("torch"), timm=version("timm"))
    assert "versions" not in with_versions(graph, run)


def test_explain__evaluation_with_data_of_its_own__names_each_with_its_digest(graph):
    name, entry = next((name, entry) for name, entry in graph.evals.items() if entry.data)
    row, column = next(
        (row_id, column)
        for table in graph.tables.values()
        for row_id, row in table.rows.items()
        for column, cell in row.cells.items()
        if f"evals/{name}/result.json" in cell.sources
    )
    finish(graph, [job_file(entry.job)], {})
    said = explain(Freshness(graph, SITE), f"{row}:{column}")
    for role, config in entry.data.items():
        assert f"{config['name']} data {config['name']}"[: len(config["name"]) + 13] in said and f"as {role}" in said


def test_explain__run_that_starts_from_a_file__has_the_digest_it_started_from(graph, run, tmp_path):
    init = f"file:{tmp_path}/start.pth"
    graph.runs[run].config["init"] = init
    write_training(graph, run, {}, inputs=Inputs(data="data fashion_mnist", init="ab" * 32))
    assert lines_of(graph, run)["starts from"] == f"{init} abababababab"


def test_explain__weight_file_that_is_evaluated_as_it_is__has_its_digest(graph, run, tmp_path):
    (tmp_path / "start.pth").write_text("weights")
    graph.runs[run].config["init"] = f"file:{tmp_path}/start.pth"
    graph.runs[run].trained = False
    assert lines_of(graph, run)["starts from"].endswith(f"start.pth {digest(tmp_path / 'start.pth')[:12]}")
    (tmp_path / "start.pth").unlink()
    assert lines_of(graph, run)["starts from"].endswith("start.pth, not on this machine")


def test_explain__difference_to_another_row__explains_both_cells(graph):
    table_id, row_id, key, column = next(
        (table_id, row_id, key, column)
        for table_id, table in graph.tables.items()
        for row_id in table.rows
        for key, column in table.columns.items()
        if column.against and not row_id.endswith(f".{column.against}") and table.rows[row_id].runs
    )
    finish(graph, [table_file(table_id, "all")], {graph.tables[table_id].columns[column.delta].metric: 70.25})
    said = explain(Freshness(graph, SITE), f"{row_id}:{key}")
    assert said.startswith(f"{row_id}:{key} is 0")
    other = f"{table_id}.{column.against}:{column.delta}"
    assert f"column      {column.label}: {row_id}:{column.delta} minus {other}" in said
    assert f"\n{row_id}:{column.delta} is 70.25" in said and f"\n{other} is 70.25" in said
    assert said.count("result      ") == 2


def test_explain__difference_to_another_column__explains_both_cells_of_the_row(graph):
    table = graph.tables["mjp.t1"]
    plain = next(key for key, column in table.columns.items() if column.eval and key != "top1")
    given = {"eval": None, "metric": None, "delta": "top1", "minus": plain}
    table.columns["gain"] = table.columns["top1"].model_copy(update=given)
    said = explain(Freshness(graph, SITE), "mjp.t1.deit-s:gain")
    assert f": {CELL} minus mjp.t1.deit-s:{plain}\n{CELL} is 70.25" in said
    assert f"\nmjp.t1.deit-s:{plain} is " in said


def test_explain__another_result_of_the_table_damaged__is_explained_all_the_same(graph):
    rows = graph.tables["mjp.t1"].rows
    other = next(row for row_id, row in rows.items() if row_id != "mjp.t1.deit-s" and row.cells["top1"].sources)
    path = graph.results.folder / other.cells["top1"].sources[0]
    path.write_text(path.read_text()[:-20])
    assert lines_of(graph, CELL)[""].startswith(f"{CELL} is 70.25")
    other_id = next(row_id for row_id, row in rows.items() if row is other)
    assert "changed or damaged" in lines_of(graph, f"{other_id}:top1")[""]


def test_explain__a_key_that_several_files_give__lists_them_in_order_and_the_one_that_won(graph, run, project):
    said = explain(Freshness(graph, SITE), run, "optim.base_lr").splitlines()
    value = graph.runs[run].config["optim"]["base_lr"]
    assert said[0] == f"optim.base_lr of {run} is {value!r}"
    assert said[1].startswith("  1. configs/recipe/") and "<- in effect" not in said[1]
    assert said[-1] == f"  {len(said) - 1}. configs/scale/demo.yaml: run: {value!r}  <- in effect"


def test_explain__a_key_of_a_run_of_the_study__names_its_line(graph, project):
    name = next(name for name, run in graph.runs.items() if run.config["method"].get("shuffle") == "none")
    last = explain(Freshness(graph, SITE), name, "method.shuffle").splitlines()[-1]
    assert "configs/study/mjp.yaml" in last and "(line " in last and last.endswith("'none'  <- in effect")


def test_explain__a_key_that_no_file_gives__is_the_default(graph, run):
    assert explain(Freshness(graph, SITE), run, "optim.eps").splitlines()[1] == "  the default: no config names it"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (["mjp.t1.deit-s:topp1"], "did you mean 'mjp.t1.deit-s:top1'"),
        (["mjp-vit"], "begin or end with it"),
        (["RUN", "optim.base_lrr"], "optim has no 'base_lrr'; did you mean 'base_lr'"),
    ],
)
def test_explain__mistyped__names_what_is_near(graph, run, what, words):
    with pytest.raises(ConfigError, match=words):
        explain(Freshness(graph, SITE), *[run if each == "RUN" else each for each in what])


def test_explain__on_the_command_line__prints_it(graph, run, capsys):
    assert main(["explain", run[-6:]]) == 0
    assert capsys.readouterr().out.startswith(f"{run} (DeiT-S)\n")
