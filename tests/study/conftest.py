"""A copy of the project's configs, with one study, that a test may break; an empty results folder beside it."""

import shutil
from pathlib import Path

import pytest
import yaml
from report_content import content, make_claims, make_tables, read_picture
from result_files import finish
from toy_study import measure, toy_graph

from pipeline import site
from pipeline.audit import check, explain, valid_names
from pipeline.core import config
from pipeline.core.errors import ConfigError
from pipeline.freshness.outputs import table_file
from pipeline.report.site.page import write_single
from pipeline.report.tables import seed_noise
from pipeline.study import overrides, scales, spec
from pipeline.study.resolve import draft, graph
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph


class Project:
    """The folder that holds configs/ and results/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.configs = root / "configs"
        self.results = root / "results"

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that is there exactly once."""
        path = self.configs / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times; the test wants it once"
        path.write_text(text.replace(old, new))

    def write(self, file: str, content: dict) -> None:
        path = self.configs / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    def read(self, file: str) -> dict:
        return yaml.load((self.configs / file).read_text(), config.SafeLoader)

    def only_study(self, name: str, study: dict, expected: dict) -> None:
        """Put one study in place of all others."""
        for path in (self.configs / "study").glob("*.yaml"):
            path.unlink()
        self.write(f"study/{name}.yaml", {"title": name, **study})
        self.write(f"expected/{name}.yaml", {"source": "a test", "rows": expected})

    def problems(self, scale: str = "demo") -> list[str]:
        """The lines of the one error that resolving these configs ends in."""
        with pytest.raises(ConfigError) as caught:
            graph.build_graph(scale)
        return str(caught.value).splitlines()


@pytest.fixture(scope="session")
def kept_graph(tmp_path_factory) -> bytes:
    """The graph file of an unchanged copy, as `load_graph` keeps it: resolving configs takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        copy = copy_configs(tmp_path_factory.mktemp("kept"), patch)
        load_graph("demo")
    return (copy.results / "demo/graph.json").read_bytes()


@pytest.fixture
def project(tmp_path, monkeypatch, kept_graph) -> Project:
    """A copy of the configs with one study, and its graph at scale demo."""
    copy = copy_configs(tmp_path, monkeypatch)
    (copy.results / "demo").mkdir(parents=True)
    (copy.results / "demo/graph.json").write_bytes(kept_graph)
    return copy


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The results of one table of the demo, mjp.t1, and of all that it needs; to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        copy = copy_configs(tmp_path_factory.mktemp("finished"), patch)
        finish(load_graph("demo"), [table_file("mjp.t1", "all")], {"top1": 70.25, "params_m": 1.0})
    return copy.results


@pytest.fixture
def finished_table(project, finished) -> Graph:
    """The demo's graph, with these results."""
    shutil.copytree(finished, project.results, dirs_exist_ok=True)
    return load_graph("demo")


def copy_configs(root: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    shutil.copytree(config.CONFIGS, root / "configs", ignore=left_out, copy_function=shutil.copyfile)
    copy = Project(root)
    for module in (check, config, explain, seed_noise, site, valid_names, draft, graph, overrides, scales, spec):
        monkeypatch.setattr(module, "CONFIGS", copy.configs)
    for name in ("derived", "start", "study"):
        monkeypatch.setattr(f"pipeline.sweep.{name}.CONFIGS", copy.configs)
    monkeypatch.setattr("pipeline.results.RESULTS", copy.results)
    monkeypatch.delenv("PATCHWORK_SITE", raising=False)
    return copy


def left_out(folder: str, names: list[str]) -> set[str]:
    """All studies but one, and what was measured of noise: verdicts of tests do not depend on that."""
    if Path(folder).name in ("study", "expected"):
        return {*names} - {"mjp.yaml"}
    return {"noise"} & {*names}


@pytest.fixture
def toy(project) -> Graph:
    """The toy study without results."""
    return toy_graph()


@pytest.fixture
def measured(toy) -> Graph:
    """The toy study with everything trained and evaluated."""
    return measure(toy)


@pytest.fixture
def render(tmp_path):
    """The text of a report; without runs, so that no curve has to be drawn."""

    def write(tables=None, claims=None, runs=()):
        tables = make_tables() if tables is None else tables
        claims = make_claims() if claims is None else claims
        page = write_single(content(tables, claims, runs), tmp_path / "report.html", "Title", "demo", read_picture)
        return page.read_text("utf-8")

    return write
