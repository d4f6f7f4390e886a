"""Every config at every scale: a mistake that only the largest scale shows is found before a cluster meets it."""

import functools
from collections.abc import Callable, Iterable

import yaml

from pipeline.config import CONFIGS, names, parse_file
from pipeline.errors import ConfigError
from pipeline.freshness import Freshness, run_file
from pipeline.site import Site, load_site
from pipeline.study.entries import Graph
from pipeline.study.graph import load_graph
from pipeline.study.written import read_study


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

    for name in names(CONFIGS / "site"):
        collect("", functools.partial(parse_file, Site, CONFIGS / "site" / f"{name}.yaml"))
    collect("", load_site)  # the chosen one may lie elsewhere
    for scale in scales:
        collect(scale, lambda: graphs.append(load_graph(scale)))  # noqa: B023 - called at once
    if found_at:
        raise ConfigError("\n".join(_line(line, where, scales) for line, where in found_at.items()))
    return graphs


def runs_trained(graph: Graph) -> set[str]:
    """The runs that `all` trains; a study may define others, which no table shows at this scale."""
    needed = {*Freshness(graph, load_site()).needed_at_all()}
    return {name for name in graph.runs if run_file(name) in needed}


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
