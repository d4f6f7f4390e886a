"""A copy of the project whose results a test writes itself, an MLflow database, and an MLflow server."""

import os
import shutil
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S, wait_until
from project import Project, copy_project, made_once
from warm_client import Asked
from warm_python import ask_with_forks

from pipeline.core.files import write_json
from pipeline.results.records import read_record, write_record
from pipeline.study.resolve import graph as graph_module
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import StoredGraph, build_graph
from pipeline.tracking.store import Experiment


@pytest.fixture(scope="session")
def copy(tmp_path_factory) -> Project:
    return copy_project(tmp_path_factory.mktemp("track") / "clone")


@pytest.fixture(scope="session")
def kept(copy, tmp_path_factory) -> StoredGraph:
    """What the copy's configs say, kept where its commands look for it."""
    made = made_once(tmp_path_factory, "demo", write_demo)
    graph = read_record(made / "graph.json", StoredGraph).graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "CONFIGS", copy.root / "configs")
        kept = StoredGraph(key=graph_module._source_key(), graph=graph)
    write_record(copy.root / "results/demo/graph.json", kept)
    return kept


@pytest.fixture(scope="session")
def demo(kept) -> Graph:
    return kept.graph


@pytest.fixture(scope="module")
def new_scale(copy, demo, kept) -> Iterator[Callable[[str], Graph]]:
    """The runs and tables of the demo as another scale, without results: every test has its own experiment."""

    def make(name: str) -> Graph:
        graph = demo.model_copy(update={"scale": name})
        write_json(graph.results.graph, StoredGraph(key=kept.key, graph=graph).model_dump(mode="json"))
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.results.RESULTS", copy.root / "results")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield make


@pytest.fixture(scope="session")
def database(copy, tmp_path_factory) -> Path:
    """The database that is used where no server is named; making one takes seconds, so there is one."""
    made = made_once(tmp_path_factory, "database", write_database)
    path = copy.root / "results/mlflow.db"
    path.parent.mkdir(exist_ok=True)
    shutil.copy(made / path.name, path)
    return path


def write_demo(folder: Path) -> None:
    write_record(folder / "graph.json", StoredGraph(key="", graph=build_graph("demo")))


def write_database(folder: Path) -> None:
    folder.mkdir()
    Experiment(f"sqlite:///{folder}/mlflow.db", "empty", folder)


class Server:
    """A real MLflow server on this machine, that can be down."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri, self.folder = f"http://127.0.0.1:{self.port}", folder
        self.process: Asked | None = None

    def start(self) -> None:
        places = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        places += ["--artifacts-destination", str(self.folder)]
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "server.log").open("ab") as log:
            arguments = ["server", "--port", str(self.port), "--workers", "1", *places]
            self.process = ask_with_forks("mlflow", arguments, self.folder, env, log)
        said = (self.folder / "server.log").read_text
        wait_until(lambda: self._answers() or not psutil.pid_exists(self.process.pid), said, every_s=0.3)
        assert psutil.pid_exists(self.process.pid), said()

    def stop(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.exit_code(PATIENCE_S)

    def _answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.uri}/health", timeout=2).status == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def server(tmp_path_factory, database) -> Iterator[Server]:
    """Down until it is started; its database is ready, for making one takes as long as the whole test."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "mlflow.db").write_bytes(database.read_bytes())
    server = Server(folder)
    yield server
    server.stop()
