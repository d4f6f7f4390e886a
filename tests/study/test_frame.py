"""All metrics of a scale as one long frame: the numbers of the result files, and tables as pivots of it."""

import csv
import io
import shutil

import pandas as pd
import pytest
import yaml
from result_files import SITE, finish, write_evaluation, write_training

from pipeline.cli import main
from pipeline.core.config import read_yaml
from pipeline.core.errors import ConfigError
from pipeline.frame import FRAME_COLUMNS, frame
from pipeline.freshness.outputs import table_file
from pipeline.report.tables.fill import fill_table
from pipeline.results.records import EvalResult, TrainRecord, read_record
from pipeline.study.resolve.graph import load_graph

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
    assert [*lines[0]] == [*expected.columns] and [*expected.columns][: len(FRAME_COLUMNS)] == FRAME_COLUMNS
    for key in ("value", "error"):
        assert [float(line[key]) for line in lines if line[key]] == expected[key].dropna().tolist()
    assert [line["file"] for line in lines] == expected.file.tolist()


@pytest.mark.slow
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


@pytest.fixture
def finished(project, monkeypatch):
    """One table of the demo, and all that it needs, on a machine without data."""
    monkeypatch.setattr("pipeline.frame.load_site", lambda: SITE)
    graph = load_graph("demo")
    finish(graph, [table_file("mjp.t1", "all")], {"top1": 70.0})
    return graph


@pytest.fixture
def run(finished):
    return finished.tables["mjp.t1"].rows["mjp.t1.deit-s"].runs[""][0]


@pytest.mark.slow
def test_frame__stale_results__say_why_and_others_are_empty(finished, run):
    assert set(frame("demo").stale) == {""}
    finished.results.run(run).encoder.write_text("other")
    lines = frame("demo")
    own, others = lines[lines.run == run], lines[lines.run != run]
    (trained,) = own[own.evaluation == "train"].stale
    assert trained.startswith("encoder.safetensors has SHA-256")
    assert set(own[own.evaluation == "classify"].stale) == {f"results/demo/runs/{run}/train.json is made again"}
    assert set(others.stale) == {""}


@pytest.mark.slow
def test_frame__damaged_result__is_a_line_without_a_number(finished, run):
    path = finished.results.run(run).done
    path.write_text(path.read_text()[:-20])
    (line,) = [line for line in frame("demo").itertuples() if (line.run, line.evaluation) == (run, "train")]
    assert pd.isna(line.value) and "changed or damaged" in line.stale and line.file == f"runs/{run}/train.json"


@pytest.mark.slow
def test_frame__result_that_no_config_names__says_so(finished, run):
    folder = finished.results.run(run).folder
    folder.rename(folder.with_name("old-run"))
    lines = frame("demo")
    assert set(lines[lines.file == "runs/old-run/train.json"].stale) == {"no config names it any more"}


@pytest.mark.slow
def test_frame__result_that_no_config_names_as_csv__is_not_said_to_be_made_again(finished, run, capsys):
    folder = finished.results.run(run).folder
    shutil.copytree(folder, folder.with_name("old-run"))
    assert main(["frame"]) == 0
    out, err = capsys.readouterr()
    assert "no config names it any more" in out and err == ""


@pytest.mark.slow
def test_frame__stale_results_as_csv__says_so_next_to_it(finished, run, capsys):
    finished.results.run(run).encoder.write_text("other")
    assert main(["frame"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(",".join(FRAME_COLUMNS))
    assert "of the results shown here must be made again: `snakemake all`" in err


@pytest.mark.slow
def test_frame__runs_that_differ_in_config__have_the_keys_and_only_those_as_columns(graph):
    lines = frame("demo")
    runs = {name: read_yaml(graph.results.run(name).config) for name in lines.run.unique()}
    added = [*lines.columns[len(FRAME_COLUMNS) :]]
    assert (
        {"method.shuffle_ratio", "model.pos_embed"} <= {*added}
        and "optim.base_lr" not in added
        and "method.name" not in added
    )
    for name, config in runs.items():
        (ratio,) = {*lines[lines.run == name]["method.shuffle_ratio"].fillna(-1)}
        assert ratio == config["method"].get("shuffle_ratio", -1)
    told_apart = lines.drop_duplicates("run")[added].astype(str).drop_duplicates()
    assert len(told_apart) == len(runs)


@pytest.mark.slow
def test_frame__labels_and_studies__are_those_of_the_graph(graph):
    lines = frame("demo")
    for name in lines.run.unique():
        (found,) = {*lines[lines.run == name][["label", "studies"]].itertuples(index=False, name=None)}
        assert found == (graph.runs[name].label, ", ".join(graph.runs[name].studies))


@pytest.mark.slow
def test_frame__value_that_is_a_list__is_text_that_can_be_grouped_by(graph):
    names = frame("demo").run.unique()
    path = graph.results.run(names[0]).config
    config = read_yaml(path)
    path.write_text(yaml.safe_dump({**config, "optim": {**config["optim"], "betas": [0.5, 0.6]}}))
    lines = frame("demo")
    assert {*lines.groupby("optim.betas").size().index} == {"[0.5, 0.6]", "[0.9, 0.999]"}
