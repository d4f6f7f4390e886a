"""What MLflow shows of the results, read back through MLflow's own client."""

import json
import math

import pytest
from result_writers import COMMIT, begin, classify_of, draw_table, evaluate, finish, log_steps

from pipeline.core.errors import DataError
from pipeline.engine.meters import MetricsFile
from pipeline.site import Site
from pipeline.tracking.follow import mirror_once
from pipeline.tracking.mirror import Mirror
from pipeline.tracking.store import KEY
from pipeline.tracking.tail import Tail
from pipeline.tracking.workers import Workers


@pytest.fixture
def scale(new_scale, database, request):
    """An empty scale of its own."""
    return new_scale(request.function.__name__.lower()[:60])


@pytest.fixture
def mirror(scale, database):
    return Mirror(scale, f"sqlite:///{database}", Workers(scale.results, Site()))


@pytest.fixture
def client(mirror):
    return mirror.runs.experiment.client


def baseline(graph):
    """The run that Table 4 of MJP shows first."""
    return next(iter(graph.tables["mjp.t4"].rows.values())).runs[""][0]


def runs_of(mirror):
    """MLflow's runs by the name of what they show; a name that is there twice fails."""
    experiments = [mirror.runs.experiment.id, mirror.tables.experiment.id]
    found = mirror.runs.experiment.client.search_runs(experiments, max_results=1000)
    names = [run.data.tags[KEY].partition("@")[0] for run in found]
    assert len(set(names)) == len(names), sorted(names)
    return dict(zip(names, found, strict=True))


def curve(mirror, name, metric="curves/loss"):
    history = mirror.runs.experiment.client.get_metric_history(runs_of(mirror)[name].info.run_id, metric)
    return [(point.step, point.value) for point in sorted(history, key=lambda point: point.step)]


def artifacts(mirror, name):
    return {file.path for file in mirror.runs.experiment.client.list_artifacts(runs_of(mirror)[name].info.run_id)}


@pytest.mark.slow
def test_mirror__running_run__is_at_the_top_with_its_curve_config_and_tags(scale, mirror):
    name = baseline(scale)
    log_steps(begin(scale, name), range(1, 31))
    mirror.update()
    run = runs_of(mirror)[name]
    assert curve(mirror, name) == [(step, 1 / step) for step in range(1, 31)]
    assert run.info.status == "RUNNING" and artifacts(mirror, name) == {"config.resolved.yaml"}
    assert run.data.params["optim.epochs"] == str(scale.runs[name].config["optim"]["epochs"])
    tags, label = run.data.tags, scale.runs[name].label
    assert tags["study"] == ",".join(scale.runs[name].studies) and tags["label"] == label
    assert tags["commit"] == COMMIT and tags["scale"] == scale.scale and "mjp.t4" in tags["table"].split(",")
    assert run.info.run_name == f"{label} ({name})" and "mlflow.parentRunId" not in tags


@pytest.mark.slow
def test_mirror__runs_and_tables__no_table_or_claim_is_among_the_runs_with_curves(scale, mirror, client):
    name = baseline(scale)
    folder = begin(scale, name)
    log_steps(folder, range(1, 11))
    finish(folder)
    evaluate(scale, name, top1=70.5)
    draw_table(scale, "mjp.t4")
    mirror.update()
    runs, tables = (client.search_runs([other.experiment.id]) for other in (mirror.runs, mirror.tables))
    assert {run.data.tags[KEY].partition("@")[0] for run in runs} == {name, f"{name}/{classify_of(scale, name)}"}
    by_name = {run.info.run_name: run for run in tables}
    assert by_name["mjp.t4"].data.tags["mlflow.parentRunId"] == by_name["mjp"].info.run_id
    assert "mlflow.parentRunId" not in by_name["mjp"].data.tags


@pytest.mark.slow
def test_mirror__metrics_of_a_run__loss_and_validation_are_the_first_group_of_charts(scale, mirror):
    name = baseline(scale)
    folder = begin(scale, name)
    MetricsFile(folder.metrics).append(
        step=1, epoch=0.1, loss=2.0, lr=0.1, skipped=0, grad_norm=1.0, class_loss=1.5, val_top1=70.0, broken=None
    )
    MetricsFile(folder.timing).append(step=1, images_per_s=4000.5)
    finish(folder, val_top1=71.5)
    mirror.update()
    assert sorted(runs_of(mirror)[name].data.metrics) == [
        *("curves/loss", "curves/val_top1", "method/class_loss"),
        *("optimiser/epoch", "optimiser/grad_norm", "optimiser/lr", "optimiser/skipped"),
        *("result/params_m", "result/val_top1", "speed/images_per_s"),
    ]


@pytest.mark.slow
def test_mirror__label_of_a_run_changes__its_mlflow_run_is_renamed(scale, mirror, database):
    name = baseline(scale)
    log_steps(begin(scale, name), range(1, 3))
    mirror.update()
    renamed = scale.model_copy(
        update={"runs": {**scale.runs, name: scale.runs[name].model_copy(update={"label": "Another"})}}
    )
    again = Mirror(renamed, f"sqlite:///{database}", Workers(scale.results, Site()))
    again.update()
    assert runs_of(again)[name].info.run_name == f"Another ({name})"


@pytest.mark.slow
def test_note__page_of_the_experiment__links_curves_and_tables_and_leaves_what_a_person_wrote(scale, mirror, client):
    def note(part):
        return client.get_experiment(part.experiment.id).tags["mlflow.note.content"]

    charts = f"#/experiments/{mirror.runs.experiment.id}/runs?workflowType=machine_learning&compareRunsMode=CHART"
    assert f"]({charts})" in note(mirror.runs) and f"]({charts})" in note(mirror.tables)
    assert f"{charts}&searchFilter=tags.study+LIKE+%27%25mjp%25%27)" in note(mirror.runs)
    assert f"](#/experiments/{mirror.tables.experiment.id}/runs" in note(mirror.runs)
    client.set_experiment_tag(mirror.runs.experiment.id, "mlflow.note.content", "mine")
    client.set_experiment_tag(mirror.tables.experiment.id, "patchwork.note", "as an older version wrote it")
    client.set_experiment_tag(mirror.tables.experiment.id, "mlflow.note.content", "as an older version wrote it")
    mirror_once(scale, Site())
    assert note(mirror.runs) == "mine" and f"]({charts})" in note(mirror.tables)


@pytest.mark.slow
def test_mirror__run_finishes_and_is_evaluated__is_finished_with_picture_and_child(scale, mirror):
    name = baseline(scale)
    folder = begin(scale, name)
    log_steps(folder, range(1, 31))
    mirror.update()
    log_steps(folder, range(31, 101))
    MetricsFile(folder.timing).append(step=100, images_per_s=4000.5)
    finish(folder, val_top1=71.5)
    evaluate(scale, name, top1=70.5, unknown=None)
    mirror.update()
    run, child = runs_of(mirror)[name], runs_of(mirror)[f"{name}/{classify_of(scale, name)}"]
    assert [step for step, _ in curve(mirror, name)] == list(range(1, 101))
    assert curve(mirror, name, "speed/images_per_s") == [(100, 4000.5)]
    assert curve(mirror, name, "result/val_top1") == [(0, 71.5)]
    assert run.info.status == "FINISHED" and run.data.tags["device"] == "cpu"
    assert run.info.end_time == folder.done.stat().st_mtime_ns // 1_000_000
    assert artifacts(mirror, name) == {"config.resolved.yaml", "curve.svg"}
    assert child.data.metrics == {"top1": 70.5} and child.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert child.info.run_name == f"classify of {run.info.run_name}"


@pytest.mark.slow
def test_mirror__resumed_run__continues_its_mlflow_run_with_each_step_once(scale, mirror):
    name = baseline(scale)
    folder = begin(scale, name)
    size = log_steps(folder, range(1, 31))
    log_steps(folder, range(31, 51))
    mirror.update()
    # Between two looks the file is cut back and grows beyond what it was, with other numbers.
    log_steps(folder, range(31, 71), keep_bytes=size, lift=1e-3)
    mirror.update()
    before = [(step, 1 / step) for step in range(1, 51)]
    assert curve(mirror, name) == [*before, *((step, 1 / step + 1e-3) for step in range(51, 71))]


@pytest.mark.slow
def test_mirror__run_trained_anew__is_another_mlflow_run_and_the_first_is_over(scale, mirror, client):
    name = baseline(scale)
    log_steps(begin(scale, name, identity="first"), range(1, 11))
    mirror.update()
    folder = begin(scale, name, identity="second")
    log_steps(folder, range(1, 6), keep_bytes=0, lift=1.0)
    mirror.update()
    found = client.search_runs([mirror.runs.experiment.id], f"tags.`{KEY}` LIKE '{name}@%'")
    by_status = {run.info.status: run.data.metrics["curves/loss"] for run in found}
    assert by_status == {"KILLED": 0.1, "RUNNING": 1.2}


@pytest.mark.slow
def test_mirror__table_drawn_anew__shows_the_new_numbers_and_keeps_the_old_as_steps(scale, mirror):
    name = baseline(scale)
    row = next(key for key, row in scale.tables["mjp.t4"].rows.items() if name in row.run_names())
    cell = f"{row.removeprefix('mjp.t4.')}.top1"
    folder = begin(scale, name)
    finish(folder)
    for top1 in (70.5, 71.5):
        evaluate(scale, name, top1=top1)
        draw_table(scale, "mjp.t4")
        mirror.update()
        assert runs_of(mirror)["mjp.t4"].data.metrics[cell] == top1
    assert curve(mirror, "mjp.t4", cell) == [(0, 70.5), (1, 71.5)]
    assert curve(mirror, f"{name}/{classify_of(scale, name)}", "top1") == [(0, 70.5), (1, 71.5)]
    # A cell that has no number any more does not show its last one.
    evaluate(scale, name, consistency=50.0)
    draw_table(scale, "mjp.t4")
    mirror.update()
    assert math.isnan(runs_of(mirror)["mjp.t4"].data.metrics[cell])
    assert artifacts(mirror, "mjp.t4") == {"mjp.t4.html", "mjp.t4.csv", "mjp.t4.md"}
    assert artifacts(mirror, "mjp") == {"claims.json", "report.html"}
    verdicts = json.loads((scale.results.folder / "tables/all/mjp.claims.json").read_text())["claims"]
    counted = {key: value for key, value in runs_of(mirror)["mjp"].data.metrics.items() if key.startswith("claims.")}
    assert sum(counted.values()) == len(verdicts) > 0


@pytest.mark.slow
def test_mirror__finished_scale_seen_by_a_new_process__asks_for_no_curve_and_writes_nothing(
    scale, mirror, client, monkeypatch
):
    name = baseline(scale)
    folder = begin(scale, name)
    log_steps(folder, range(1, 31))
    finish(folder)
    evaluate(scale, name, top1=70.5)
    draw_table(scale, "mjp.t4")
    mirror.update()
    calls = []
    writing = ("log_batch", "log_text", "set_tag", "set_experiment_tag", "create_run", "set_terminated", "update_run")
    for call in ("get_metric_history", *writing):
        monkeypatch.setattr(type(client), call, lambda *_, call=call, **__: calls.append(call))
    assert "runs so far: 1;" in mirror_once(scale, Site())
    assert calls == []


@pytest.mark.slow
def test_mirror__damaged_metrics_file__other_runs_are_mirrored_and_the_error_names_the_line(scale, mirror):
    name, other = baseline(scale), next(reversed(scale.runs))
    folder = begin(scale, name)
    log_steps(folder, range(1, 4))
    with folder.metrics.open("ab") as file:
        file.write(b"{broken\n")
    log_steps(begin(scale, other), range(1, 4))
    with pytest.raises(DataError, match=r"metrics.jsonl, line 4: found '\{broken'"):
        mirror_once(scale, Site())
    assert len(curve(mirror, other)) == 3


def test_tail__line_still_being_written__is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_bytes(b'{"step": 1}\n{"st')
    assert tail.read() == [{"step": 1}] and tail.read() == []
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    assert tail.read() == [{"step": 2}]


def test_tail__file_cut_back__is_read_from_the_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    tail = Tail(path)
    tail.read()
    path.write_bytes(b'{"step": 1}\n')
    assert tail.read() == [{"step": 1}]
