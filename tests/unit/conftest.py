"""The graph of the demo, for tests of what people see of a scale and of what they delete."""

import pickle

import pytest

from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph


@pytest.fixture(scope="session")
def demo() -> bytes:
    """The graph of scale demo: to unpickle it is faster than to read it from its file."""
    return pickle.dumps(load_graph("demo"))


@pytest.fixture
def graph(demo, tmp_path, monkeypatch) -> Graph:
    """Scale demo, of which nothing has run."""
    found = pickle.loads(demo)  # noqa: S301
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    monkeypatch.setattr("pipeline.study.resolve.graph.load_graph", lambda scale: found)
    return found
