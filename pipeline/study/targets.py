"""The names people type for studies, tables and figures: one place for Snakemake, plan, summary and messages."""

from collections.abc import Iterable
from typing import NamedTuple

from pipeline.core.config import nearest
from pipeline.core.errors import ConfigError
from pipeline.study.resolve.entries import Graph
from pipeline.study.scales import DEFAULT, OWN, default_scale, has_paper, stated_scales, study_of

ROWS = ("headline", "all")


class RowSelection(NamedTuple):
    """A table, and which of its rows: `headline` or `all`."""

    table: str
    rows: str


def target_name(table_id: str) -> str:
    """mjp.t4 -> mjp_table4, droppos.ts1 -> droppos_table_s1, mjp.f3a -> mjp_figure3a."""
    study, key = table_id.split(".", 1)
    kind, number = {"t": "table", "f": "figure"}[key[0]], key[1:]
    return f"{study}_{kind}{number}" if number[:1].isdigit() else f"{study}_{kind}_{number}"


def targets_of(graph: Graph) -> dict[str, list[RowSelection]]:
    """Every target of this scale, and the tables behind it."""
    targets = {"all": [RowSelection(table, "all") for table in graph.tables]}
    targets |= {
        study: [RowSelection(table, "all") for table in graph.selected("all", study)] for study in graph.studies()
    }
    targets |= {target_name(table): [RowSelection(table, "all")] for table in graph.tables}
    targets["headline"] = [RowSelection(table, "headline") for table in graph.selected("headline")]
    if graph.scale == DEFAULT:
        targets["demo"] = targets["headline"]
    return targets


def tables_of(graph: Graph, targets: Iterable[str]) -> list[RowSelection]:
    """The tables behind these targets, each once; a mistyped target is an error with near names."""
    known, chosen = targets_of(graph), []
    for target in targets:
        check_target(target, known, graph.scale)
        chosen += known[target]
    return list(dict.fromkeys(chosen))


def command_for(target: str, scale: str) -> str:
    """What to type for a target of this scale."""
    is_default = scale == default_scale(target.split())
    return f"snakemake {target}" if is_default else full_command(target, scale)


def full_command(target: str, scale: str) -> str:
    """The same with its scale, which stays right whatever the default of a study becomes."""
    return f"snakemake {target} --config scale={scale}"


def rows_and_study(report: str) -> tuple[str, str]:
    """Which rows a report shows, and of which study; empty means every study."""
    return (report, "") if report in ROWS else ("all", report)


def report_target(report: str, scale: str) -> str:
    """What makes a report: a target of its name; at scale demo the headline is the demo."""
    return "demo" if (report, scale) == ("headline", DEFAULT) else report


def check_target(target: str, known: Iterable[str], scale: str) -> None:
    if target in known:
        return
    study = study_of(target)
    if study and study not in known:
        raise ConfigError(f"no target {target!r} at scale {scale}: study {study} {_scales_in_words(study, scale)}")
    raise ConfigError(f"no target {target!r} at scale {scale}; {nearest(target, known)}")


def _scales_in_words(study: str, scale: str) -> str:
    """Why a study is not at a scale, and what to do."""
    if scales := stated_scales(study):
        return f"has scales: [{', '.join(scales)}]; choose one of them, or add {scale}"
    if has_paper(study):
        return "is of a paper, and this scale has none; choose another scale"
    return f"has no paper and runs at scale {OWN}; choose no scale, or write scales: [{OWN}, {scale}] into its file"
