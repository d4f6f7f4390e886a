"""All metrics of a scale as one long frame: the numbers of the result files, and tables as pivots of it."""

import csv
import io

import pandas as pd
import pytest
from result_files import write_evaluation, write_training

from pipeline.cli import main
from pipeline.errors import ConfigError
from pipeline.records import EvalResult, TrainRecord, read_record
from pipeline.report.tables import fill_table
from pipeline.results import FRAME_COLUMNS, frame
from pipeline.study.graph import load_graph

TABLE = "mjp.t4"


@pytest.fixture
def graph(project):
    """Every run and evaluation behind Table 4 finished, with numbers that tell them apart; one metric is missing."""
    graph = load_graph("demo")
    names = dict.fromkeys(name for row in graph.tables[TABLE].rows.values() for name in row.run_names())
    for number, name in enumerate(names):
        write_training(graph, name, {"params_m": 22.0 + number / 3}, errors={"params_m": 0.0})
        for each in graph.evaluations_of(name):
            metrics = {"top1": 70 + number / 7, "consistency": 60 + number / 9, "shuffled_ratio": None}
            write_evaluation(graph, each, metrics, errors={"top1": 1.25 + number / 11}, count=1000)
    return graph


@pytest.mark.slow
def test_frame__every_metric_of_every_result__is_one_line_with_its_number(graph):
    found = {(line.file, line.metric): (line.value, line.error) for line in frame("demo").itertuples()}

    expected = {}
    for path in graph.results.folder.rglob("*.json"):
        kind = {"train.json": TrainRecord, "result.json": EvalResult}.get(path.name)
        record = read_record(path, kind) if kind else None
        for metric, value in (record.metrics if record else {}).items():
            expected[str(path.relative_to(graph.results.folder)), metric] = value, record.errors.get(metric)
    assert len(expected) == len(frame("demo")) > 30
    assert {key: (pd.isna(value), pd.isna(error)) for key, (value, error) in found.items()} == {
        key: (value is None, error is None) for key, (value, error) in expected.items()
    }
    assert {key: value for key, (value, _) in found.items() if value == value} == {
        key: value for key, (value, _) in expected.items() if value is not None
    }
    assert {key: error for key, (_, error) in found.items() if error == error} == {
        key: error for key, (_, error) in expected.items() if error is not None
    }


@pytest.mark.slow
def test_frame__line__says_what_the_number_is_of(graph):
    lines = frame("demo")
    name = next(iter(graph.tables[TABLE].rows.values())).runs[""][0]
    line = lines[(lines.run == name) & (lines.evaluation == "classify") & (lines.metric == "top1")].iloc[0]
    assert (line.scale, line.method, line.model, line.data, line.seed) == (
        "demo",
        "supervised",
        "vit_demo",
        "fashion_mnist",
        0,
    )
    assert (line.subjects, line["count"]) == (f"model={name}", 1000)
    trained = lines[(lines.run == name) & (lines.evaluation == "train")]
    assert list(trained.metric) == ["params_m"] and trained.file.iloc[0] == f"runs/{name}/train.json"


@pytest.mark.slow
def test_frame__pivot_of_it__has_the_cells_of_a_table(graph):
    wide = frame("demo").pivot(index="run", columns=["evaluation", "metric"], values="value")

    table = fill_table(graph, TABLE, "all")

    compared = 0
    for row in table.rows:
        for column, evaluation in (("top1", "classify"), ("consistency", "consistency")):
            assert row.cells[column].ours == wide.loc[row.runs[""][0], (evaluation, column)]
            compared += 1
    assert compared == 2 * len(table.rows) > 10


@pytest.mark.slow
def test_frame__as_csv__has_every_digit_and_the_same_lines(graph, capsys):
    assert main(["frame", "--scale", "demo"]) == 0
    lines = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    expected = frame("demo")
    assert [*lines[0]] == [*expected.columns] == FRAME_COLUMNS
    for key in ("value", "error"):
        assert [float(line[key]) for line in lines if line[key]] == expected[key].dropna().tolist()
    assert [line["file"] for line in lines] == expected.file.tolist()


def test_frame__nothing_finished__is_empty_with_its_columns(project, capsys):
    empty = frame("demo")
    assert empty.empty and list(empty.columns) == FRAME_COLUMNS
    assert main(["frame"]) == 0
    assert capsys.readouterr().out == ",".join(FRAME_COLUMNS) + "\n"


@pytest.mark.slow
def test_frame__run_that_is_still_training_and_result_not_written__are_left_out(graph):
    name = next(iter(graph.tables[TABLE].rows.values())).runs[""][0]
    graph.results.run(name).done.unlink()
    each = graph.evaluations_of(name)[0]
    graph.results.evaluation(each).result.unlink()
    lines = frame("demo")
    assert f"runs/{name}/train.json" not in set(lines.file) and f"evals/{each}/result.json" not in set(lines.file)
    assert f"evals/{graph.evaluations_of(name)[1]}/result.json" in set(lines.file)


def test_frame__mistyped_scale__names_the_nearest(project, capsys):
    with pytest.raises(ConfigError, match="no scale 'demoo'; did you mean 'demo'"):
        frame("demoo")
    assert main(["frame", "--scale", "demoo"]) == 1
    assert "did you mean 'demo'" in capsys.readouterr().err
