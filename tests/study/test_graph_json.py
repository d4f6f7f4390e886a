"""graph.json: the resolved graph is kept, read in parts by jobs, and made anew when anything behind it has changed."""

import json

import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.files import write_json
from pipeline.study.resolve import graph as graph_module
from pipeline.study.resolve.graph import build_graph, load_for_job, load_for_run, load_graph

STUDY, EXPECTED, DEMO, MJP = "study/mjp.yaml", "expected/mjp.yaml", "scale/demo.yaml", "method/mjp.yaml"


def test_load_for_run__of_a_graph_that_is_kept__reads_that_run_only(project, monkeypatch):
    graph = load_graph("demo")
    monkeypatch.setattr("pipeline.study.resolve.graph.load_graph", lambda scale: pytest.fail("read as a whole"))
    for name in (next(iter(graph.runs)), next(reversed(graph.runs))):
        assert load_for_run("demo", name).runs == {name: graph.runs[name]}


@pytest.mark.slow
def test_load_for_job__of_a_graph_that_is_kept__reads_its_evaluations_and_their_runs_only(project, monkeypatch):
    graph = load_graph("demo")
    monkeypatch.setattr("pipeline.study.resolve.graph.load_graph", lambda scale: pytest.fail("read as a whole"))
    for name, job in graph.eval_jobs.items():
        found = load_for_job("demo", name)
        assert found.eval_jobs == {name: job} and found.evals == {each: graph.evals[each] for each in job.evaluations}
        subjects = {run for each in job.evaluations for run in graph.evals[each].subjects.values()}
        assert found.runs == {run: graph.runs[run] for run in subjects} and found.scale == "demo"


@pytest.mark.slow
@pytest.mark.parametrize("change", ["another config", "indented", "cut", "unknown"])
def test_load_for_run__graph_not_as_it_is_kept__is_loaded_as_a_whole(project, change):
    graph = load_graph("demo")
    path, name = graph.results.graph, next(iter(graph.runs))
    if change == "another config":
        path_of_scale = project.configs / DEMO
        path_of_scale.write_text(f"{path_of_scale.read_text()}\n# a comment\n")
    elif change == "indented":
        write_json(path, json.loads(path.read_text()))
    elif change == "cut":
        path.write_text(path.read_text().partition('"runs"')[0])
    else:
        with pytest.raises(ConfigError, match=f"did you mean '{name}'"):
            load_for_run("demo", f"{name}x").run(f"{name}x")
        return
    found = load_for_run("demo", name)
    assert found.run(name) == graph.run(name) and len(found.runs) == len(graph.runs)


@pytest.fixture
def builds(monkeypatch):
    """The scales that were resolved from configs, not read from graph.json."""
    scales = []

    def build(scale):
        scales.append(scale)
        return build_graph(scale)

    monkeypatch.setattr(graph_module, "build_graph", build)
    return scales


@pytest.mark.slow
def test_graph_json__nothing_changed__is_reused_and_the_same(project, builds):
    (project.results / "demo/graph.json").unlink()

    first, second = load_graph("demo"), load_graph("demo")

    assert builds == ["demo"]
    assert second == first


@pytest.mark.slow
@pytest.mark.parametrize("file", [MJP, STUDY, EXPECTED, DEMO, "data/cifar10.yaml"])
def test_graph_json__a_config_changed__is_made_anew(project, builds, file):
    load_graph("demo")
    path = project.configs / file

    path.write_text(path.read_text() + "# a comment\n")
    load_graph("demo")

    assert builds == ["demo"]


@pytest.mark.slow
def test_graph_json__a_config_added_or_code_changed__is_made_anew(project, builds):
    load_graph("demo")
    (project.configs / "model" / "new.yaml").write_text("model: {name: new, arch: vit_tiny_patch16_224}\n")
    load_graph("demo")
    (project.root / "pipeline").mkdir()
    (project.root / "pipeline" / "code.py").write_text("x = 1\n")
    load_graph("demo")

    assert builds == ["demo"] * 2


@pytest.mark.slow
def test_graph_json__a_mistake_after_it_was_written__is_found(project):
    load_graph("demo")

    project.edit(MJP, "dal_weight", "dal_wait")

    with pytest.raises(ConfigError, match=r"method\.dal_wait"):
        load_graph("demo")


def without_note(content: bytes) -> bytes:
    kept = json.loads(content)
    del kept["graph"]["note"]
    return json.dumps(kept).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c[: len(c) // 2],
        lambda c: b"",
        lambda c: b"[]",
        lambda c: b"null",
        lambda c: b"\xff\xfe{}",
        without_note,
    ],
    ids=["cut", "empty", "a list", "null", "not text", "a part missing"],
)
def test_graph_json__damaged__is_made_anew(project, builds, damage):
    whole = load_graph("demo")
    path = project.results / "demo" / "graph.json"
    path.write_bytes(damage(path.read_bytes()))

    again = load_graph("demo")

    assert builds == ["demo"]
    assert again == whole
