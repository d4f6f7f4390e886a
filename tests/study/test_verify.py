"""`verify` on the command line."""

import pytest
from result_files import finish_run

from pipeline.cli import main
from pipeline.core.code import PluginNames, code_of_run
from pipeline.core.registry import TASKS
from pipeline.study.resolve.graph import load_graph

pytestmark = pytest.mark.slow

TABLE, ROW = "mjp.t1", "mjp.t1.deit-s"
PER_IMAGE = {"top1": [100.0, 0.0, 100.0]}


@pytest.fixture
def graph(project):
    """One run trained and evaluated."""
    graph = load_graph("demo")
    (name,) = graph.tables[TABLE].rows[ROW].runs[""]
    finish_run(graph, name, PER_IMAGE)
    return graph


@pytest.fixture
def folder(graph):
    return graph.results.run(graph.tables[TABLE].rows[ROW].runs[""][0])


def test_verify__a_result_cut_short__is_one_line_not_a_traceback(graph, folder, capsys):
    folder.done.write_text(folder.done.read_text()[:-20])
    assert main(["verify"]) == 1
    out, err = capsys.readouterr()
    assert "changed or damaged after it was written" in out and "Traceback" not in out + err
    assert f"`snakemake results/demo/runs/{folder.name}/train.json` makes it again" in out
    assert "1 finished runs compared with their records" in out


def test_code_of_run__of_every_entry__is_that_of_its_method_task_and_kind(graph):
    assert {run.task for run in graph.runs.values()} <= {*TASKS.names()}
    run = next(name for name, entry in graph.runs.items() if entry.method == "mjp")
    assert graph.code_of_run(run) == code_of_run(PluginNames("mjp", "classify", "images"))
