"""A copy of the project's configs that a test may break, with an empty results folder beside it."""

import shutil
from pathlib import Path

import pytest

from pipeline import config, site
from pipeline.errors import ConfigError
from pipeline.study import graph


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

    def problems(self, scale: str = "demo") -> list[str]:
        """The lines of the one error that resolving these configs ends in."""
        with pytest.raises(ConfigError) as caught:
            graph.build_graph(scale)
        return str(caught.value).splitlines()


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    shutil.copytree(config.CONFIGS, tmp_path / "configs")
    copy = Project(tmp_path)
    for module in (config, site, graph):
        monkeypatch.setattr(module, "CONFIGS", copy.configs)
    monkeypatch.setattr(graph, "ROOT", copy.root)
    monkeypatch.setattr(graph, "RESULTS", copy.results)
    monkeypatch.delenv("PATCHWORK_SITE", raising=False)
    return copy
