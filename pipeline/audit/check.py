"""Every config at every scale: a mistake that only the largest scale shows is found before a cluster meets it."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.config import CONFIGS, Layers, names, nearest, parse_as_meant, read_yaml, shown
from pipeline.core.errors import ConfigError
from pipeline.freshness.outputs import run_file
from pipeline.freshness.remake import Freshness
from pipeline.site import Site, load_site, site_path
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph
from pipeline.study.study_file import read_study


def all_scales() -> list[str]:
    return names(CONFIGS / "scale")


def check_configs(scales: Iterable[str]) -> list[Graph]:
    """The graph of each scale; raises one ConfigError with every mistake in every file, each of them once."""
    scales, graphs = [*scales], []
    found_at: dict[str, list[str]] = {}  # a mistake -> the scales that show it

    def collect(where: str, read: Callable[[], object]) -> None:
        try:
            read()
        except ConfigError as error:
            for line in str(error).splitlines():
                found_at.setdefault(line, []).append(where)

    for path in {CONFIGS / "site" / f"{name}.yaml": None for name in names(CONFIGS / "site")} | {site_path(): None}:
        collect("", functools.partial(check_site, path))
    for scale in scales:
        collect(scale, lambda: graphs.append(load_graph(scale, check=True)))  # noqa: B023 - called at once
    if found_at:
        empty = {graph.scale for graph in graphs if not graph.tables}
        scales = [scale for scale in scales if scale not in empty]
        raise ConfigError("\n".join(_line(line, where, scales) for line, where in found_at.items()))
    return graphs


def runs_trained(graph: Graph) -> set[str]:
    """The runs that `all` trains; a study may define others, which no table shows at this scale."""
    needed = {*Freshness(graph, load_site()).needed_at_all()}
    return {name for name in graph.runs if run_file(name) in needed}


def check_site(path: Path) -> None:
    """A site file; a folder under a name that no data set has would be missed when jobs start."""
    (site, lines), known = parse_as_meant(Site, Layers((shown(path), read_yaml(path)))), _data_names()
    unknown = [key for key in site.data if key not in known] if site else []
    lines += [f"{shown(path)}: data.{key}: no data set {key!r}; {nearest(key, known)}" for key in unknown]
    if lines:
        raise ConfigError("\n".join(lines))


def _data_names() -> set[str]:
    """Names under which a site may have the folder of a data set; a set that is part of another has that one's."""
    found: list[Any] = []
    for name in names(CONFIGS / "data"):
        content = read_yaml(CONFIGS / "data" / f"{name}.yaml").get("data")
        found += [content.get("name"), content.get("part_of")] if isinstance(content, dict) else []
    return {name for name in found if isinstance(name, str)}


def expanded_studies(name: str = "") -> str:
    """A study file, or all of them, as YAML with every short form written out."""
    studies = [name] if name else names(CONFIGS / "study")
    contents = {study: read_study(CONFIGS / "study" / f"{study}.yaml").expanded.content for study in studies}
    texts = [
        f"# configs/study/{study}.yaml, expanded\n{yaml.safe_dump(content, sort_keys=False, width=120)}"
        for study, content in contents.items()
    ]
    return "\n".join(texts)


def _line(line: str, where: list[str], scales: list[str]) -> str:
    """A mistake, and the scales that show it unless all of them do."""
    shown = [scale for scale in dict.fromkeys(where) if scale]
    return f"{line} (at scale {', '.join(shown)})" if shown and shown != scales else line
