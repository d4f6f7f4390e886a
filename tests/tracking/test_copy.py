"""A project that was copied or moved, with the MLflow database and the artifacts of the original."""

import hashlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from project import Project
from result_writers import begin, draw_table, finish, log_steps

from pipeline.site import Site
from pipeline.tracking.follow import mirror_once
from pipeline.tracking.moved_database import database_of, is_moved


def digests(folder):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


def artifacts(root, scale):
    """Artifact -> where MLflow's own client finds it, and what is in it; of all runs of a scale."""
    from mlflow import MlflowClient
    from mlflow.artifacts import download_artifacts

    uri = f"sqlite:///{root}/results/mlflow.db"
    client, found = MlflowClient(uri), {}
    experiments = client.search_experiments(filter_string=f"name LIKE 'patchwork-{scale}%'")
    for run in client.search_runs([experiment.experiment_id for experiment in experiments]):
        for file in client.list_artifacts(run.info.run_id):
            path = download_artifacts(f"{run.info.artifact_uri}/{file.path}")
            found[f"{run.info.run_name}: {file.path}"] = (Path(path), Path(path).read_bytes())
    return found


def locations(root, scale):
    with sqlite3.connect(root / "results/mlflow.db") as database:
        query = "select {} from experiments left join runs using (experiment_id) where experiments.name like ?"
        places = database.execute(query.format("artifact_location, artifact_uri"), [f"patchwork-{scale}%"])
        return {place for pair in places for place in pair}


@pytest.fixture(scope="module")
def copied(copy, new_scale, database, tmp_path_factory):
    """A project with a finished and a begun run, and a copy without the table's artifacts, in which the run ends."""
    graph = new_scale("copied")
    first, second, *_ = graph.runs
    log_steps(begin(graph, first), range(1, 11))
    finish(graph.results.run(first))
    log_steps(begin(graph, second), range(1, 11))
    draw_table(graph, "mjp.t4")
    mirror_once(graph, Site())
    original = digests(copy.root / "results"), artifacts(copy.root, "copied")

    root = tmp_path_factory.mktemp("copied") / "a copy"
    shutil.copytree(copy.root, root, symlinks=True)
    drawn, _ = original[1]["mjp.t4: mjp.t4.html"]
    shutil.rmtree(root / drawn.relative_to(copy.root).parent)
    runs = root / "results/copied/runs"
    shutil.copy(runs / first / "train.json", runs / second / "train.json")
    process = Project(root).run("python", "-m", "pipeline", "track", "--scale", "copied")
    assert process.returncode == 0, process.stderr
    return {
        "root": root,
        "before": original,
        "after": (digests(copy.root / "results"), artifacts(root, "copied")),
        "locations": locations(root, "copied"),
        "new": f"({second}): curve.svg",
    }


@pytest.mark.slow
def test_copy__mirrors_its_results__the_original_stays_as_it_was(copied):
    assert copied["after"][0] == copied["before"][0]


@pytest.mark.slow
def test_copy__its_artifacts__are_those_of_the_original_and_its_own_and_open_from_its_own_folder(copied):
    old, new = copied["before"][1], copied["after"][1]
    (added,) = new.keys() - old.keys()
    assert added.endswith(copied["new"])
    assert {name: content for name, (_, content) in new.items() if name != added} == {
        name: content for name, (_, content) in old.items()
    }
    assert all(path.is_relative_to(copied["root"]) for path, _ in new.values())


@pytest.mark.slow
def test_copy__stored_locations__none_leads_out_of_it(copied):
    ours = (copied["root"] / "results/mlflow-artifacts").as_uri()
    assert len(copied["locations"]) > 3 and all(place.startswith(ours) for place in copied["locations"])


@pytest.mark.parametrize("location", ["mlflow-artifacts:/1", "s3://bucket/1", "file:///p/a%20b", "/p/a b"])
def test_is_moved__place_that_is_not_another_folder__is_unchanged(location):
    assert not is_moved(location, Path("/p/a b"))


def test_is_moved__folder_of_another_project__is_moved():
    assert is_moved("file:///q/results/a", Path("/p/results/a"))


def test_is_moved__same_folder_by_another_path__is_unchanged(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert not is_moved((tmp_path / "real/a").as_uri(), tmp_path / "link/a")


def test_database_of__server__is_none():
    assert database_of("http://127.0.0.1:5000") is None and database_of("postgresql://host/mlflow") is None
    assert database_of("sqlite:////p/mlflow.db") == Path("/p/mlflow.db")
