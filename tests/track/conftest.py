"""A copy of the project whose results a test writes itself, an MLflow database, and an MLflow server."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_until
from project import Project, copy_project

from pipeline.records import write_record
from pipeline.study import graph as graph_module
from pipeline.study.entries import Graph
from pipeline.study.graph import Kept, build_graph
from pipeline.track.store import Experiment


@pytest.fixture(scope="session")
def copy(tmp_path_factory) -> Project:
    return copy_project(tmp_path_factory.mktemp("track") / "clone")


@pytest.fixture(scope="session")
def kept(copy) -> Kept:
    """What the copy's configs say, kept where its commands look for it."""
    graph = build_graph("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "CONFIGS", copy.root / "configs")
        kept = Kept(key=graph_module._source_key(), graph=graph)
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
        write_record(graph.results.graph, Kept(key=kept.key, graph=graph))
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.results.RESULTS", copy.root / "results")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield make


@pytest.fixture(scope="session")
def database(copy) -> Path:
    """The database that is used where no server is named; making one takes seconds, so there is one."""
    path = copy.root / "results/mlflow.db"
    path.parent.mkdir(exist_ok=True)
    Experiment(f"sqlite:///{path}", "empty", copy.root)
    return path


class Server:
    """A real MLflow server on this machine, that can be down."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri, self.folder = f"http://127.0.0.1:{self.port}", folder
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1"]
        places = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db", "--artifacts-destination", self.folder]
        with (self.folder / "server.log").open("ab") as log:
            # One group, so that the workers end with it.
            self.process = subprocess.Popen(
                [*command, *places],
                stdout=log,
                stderr=log,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        said = (self.folder / "server.log").read_text
        wait_until(lambda: self._answers() or self.process.poll() is not None, said, every_s=0.3)
        assert self.process.poll() is None, said()

    def stop(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(timeout=PATIENCE_S)

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
