"""Tables and claims drawn from published metrics, as small JSON, and what differs from those that were published."""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.publishing.metrics import lay_out
from pipeline.publishing.selection import ROWS, place_results
from pipeline.report.collect import collect_tables
from pipeline.report.records import Cell, FilledTable, JudgedStudy
from pipeline.report.tables.fill import LEFT_OUT
from pipeline.results import ScaleFolder
from pipeline.study.claims.decide import JudgedClaim
from pipeline.study.resolve.entries import Graph

OUTSIDE = "it is outside the headline, which alone is published"
SHOWN = ("ours", "error", "n", "paper", "verdict", "reason")  # of a cell
ROUNDING = 1e-9  # of sums in another order, on another processor


def hide_commands(tables: list[FilledTable]) -> list[FilledTable]:
    """Tables without the commands that run what is outside the headline: these follow from the configs of the day."""
    for table in tables:
        for _, _, cell in table.cells():
            cell.reason = OUTSIDE if cell.reason.endswith(LEFT_OUT) else cell.reason
    return tables


class PublishedTables(NamedTuple):
    tables: list[FilledTable]
    studies: list[JudgedStudy]


def draw_from(graph: Graph, published: Path) -> PublishedTables:
    """Fill every table and judge every claim, from nothing but the results in a published folder."""
    with tempfile.TemporaryDirectory() as folder:
        results = ScaleFolder(Path(folder))
        lay_out(published, results)
        tables, studies = collect_tables(place_results(graph, results.folder), ROWS)
        return PublishedTables(hide_commands(tables), studies)


def tables_as_data(tables: list[FilledTable]) -> dict[str, Any]:
    """Table -> its title and its cells; what is empty is left out."""
    return {table.id: {"label": table.label, "title": table.title, "cells": _cells(table)} for table in tables}


def _cells(table: FilledTable) -> dict[str, Any]:
    return {f"{row.id}:{column.id}": _cell(cell) for row, column, cell in table.cells() if row.selected}


def _cell(cell: Cell) -> dict[str, Any]:
    return {key: value for key in SHOWN if (value := getattr(cell, key)) not in (None, "", 0) or key == "ours"}


def claims_as_data(studies: list[JudgedStudy]) -> dict[str, Any]:
    """Study -> its claims as they were judged."""
    return {study.study: [claim.model_dump(mode="json") for claim in study.claims] for study in studies}


def claims_from_data(content: dict[str, Any]) -> dict[str, list[JudgedClaim]]:
    return {study: [JudgedClaim.model_validate(claim) for claim in claims] for study, claims in content.items()}


def differences(drawn: PublishedTables, tables: dict[str, Any], claims: dict[str, Any]) -> list[str]:
    """What was published otherwise than it is drawn now: cells first, then verdicts and the numbers behind them."""
    now = tables_as_data(drawn.tables)
    lines = _unequal_keys("table", tables, now)
    for key in [key for key in now if key in tables]:
        lines += _unequal_keys("cell", tables[key]["cells"], now[key]["cells"])
        lines += _unequal_cells(tables[key]["cells"], now[key]["cells"])
    before = {claim["id"]: claim for each in claims.values() for claim in each}
    after = {claim["id"]: claim for each in claims_as_data(drawn.studies).values() for claim in each}
    lines += _unequal_keys("claim", before, after)
    for key in [key for key in after if key in before]:
        lines += _unequal_claims(before[key], after[key])
    return lines


def _unequal_keys(what: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = [f"{what} {key}: published, and not drawn from the metrics" for key in before if key not in after]
    return lines + [f"{what} {key}: drawn from the metrics, and not published" for key in after if key not in before]


def _unequal_cells(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name in [name for name in after if name in before]:
        for key in SHOWN:
            old, new = before[name].get(key), after[name].get(key)
            if not same(old, new):
                yield f"{name}: {key} is {new} from the metrics, published is {old}"


def _unequal_claims(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Texts with drawn noise are left out: their last digit may depend on the processor."""
    for key in ("statement", "verdict"):
        if before[key] != after[key]:
            yield f"claim {after['id']}: {key} is {after[key]!r} from the metrics, published is {before[key]!r}"
    numbers, now = ([(p["text"], p["verdict"], p["cells"]) for p in each["predicates"]] for each in (before, after))
    for (text, verdict, cells), (text_now, verdict_now, cells_now) in zip(numbers, now, strict=False):
        if (text, verdict) != (text_now, verdict_now) or not _same_numbers(cells, cells_now):
            yield f"claim {after['id']}: {text_now} {verdict_now} of {cells_now}, published is {verdict} of {cells}"
    if len(numbers) != len(now):
        yield f"claim {after['id']}: {len(now)} comparisons, published are {len(numbers)}"


def _same_numbers(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return bool(one == other)
