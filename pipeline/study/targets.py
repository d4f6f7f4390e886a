"""The names people type for studies, tables and figures: one place for Snakemake, plan, summary and messages."""

from collections.abc import Iterable
from typing import NamedTuple

from pipeline.config import nearest
from pipeline.errors import ConfigError
from pipeline.study.entries import Graph


class Chosen(NamedTuple):
    """A table, and which of its rows: `headline` or `all`."""

    table: str
    rows: str


def target_name(table_id: str) -> str:
    """mjp.t4 -> mjp_table4, droppos.ts1 -> droppos_table_s1, mjp.f3a -> mjp_figure3a."""
    study, key = table_id.split(".", 1)
    kind, number = {"t": "table", "f": "figure"}[key[0]], key[1:]
    return f"{study}_{kind}{number}" if number[:1].isdigit() else f"{study}_{kind}_{number}"


def targets_of(graph: Graph) -> dict[str, list[Chosen]]:
    """Every target of this scale, and the tables behind it."""
    targets = {"all": [Chosen(table, "all") for table in graph.tables]}
    targets |= {study: [Chosen(table, "all") for table in graph.selected("all", study)] for study in graph.studies()}
    targets |= {target_name(table): [Chosen(table, "all")] for table in graph.tables}
    if graph.scale == "demo":
        targets["demo"] = [Chosen(table, "headline") for table in graph.selected("headline")]
    return targets


def tables_of(graph: Graph, targets: Iterable[str]) -> list[Chosen]:
    """The tables behind these targets, each once; a mistyped target is an error with near names."""
    known, chosen = targets_of(graph), []
    for target in targets:
        check_target(target, known, graph.scale)
        chosen += known[target]
    return list(dict.fromkeys(chosen))


def command_for(target: str, scale: str) -> str:
    """What to type for a target of this scale."""
    return f"snakemake {target}" if scale == "demo" else f"snakemake {target} --config scale={scale}"


def report_target(rows: str, scale: str) -> str:
    """What makes the report with these rows; only the demo has a name for its headline."""
    if rows == "all":
        return "all"
    return "demo" if scale == "demo" else f"results/{scale}/report/{rows}.html"


def check_target(target: str, known: Iterable[str], scale: str) -> None:
    if target not in known:
        raise ConfigError(f"no target {target!r} at scale {scale}; {nearest(target, known)}")
