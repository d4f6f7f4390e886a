"""The numbers of results here next to the published ones of the same scale: which differ by more than their errors.

The error of a single run is that of its images. Another processor rounds differently, which changes a short training as
another seed would: such numbers may be further apart.
"""

import math
from typing import Any

from pipeline.publishing.folder import TABLES, read_json
from pipeline.publishing.from_metrics import same
from pipeline.publishing.selection import ROWS
from pipeline.report.collect import collect_tables
from pipeline.report.records import Cell, FilledColumn
from pipeline.report.site.findings import value_of
from pipeline.report.words import counted
from pipeline.results import published_folder
from pipeline.study.resolve.entries import Graph

WITHIN = 2.0  # standard errors of a difference


def compare(graph: Graph) -> list[str]:
    """A line that counts, then the numbers that differ by more than their noise, in the order of the tables."""
    published = {
        name: cell
        for table in read_json(published_folder(graph.scale) / TABLES).values()
        for name, cell in table["cells"].items()
        if cell["ours"] is not None
    }
    tables, _ = collect_tables(graph, ROWS)
    here = {
        f"{row.id}:{column.id}": (column, cell)
        for table in tables
        for row, column, cell in table.cells()
        if cell.ours is not None
    }
    both = [name for name in published if name in here]
    equal = [name for name in both if same(here[name][1].ours, published[name]["ours"])]
    near = [name for name in both if name not in equal and _is_near(here[name][1], published[name])]
    far = [name for name in both if name not in equal and name not in near]
    counts = f"{len(equal)} equal, {len(near)} within {WITHIN:g} standard errors, {len(far)} further apart"
    head = f"scale {graph.scale}, {len(both)} of {counted(len(published), 'published number')} are here: {counts}"
    return [head, *(f"- {name}: {_in_words(*here[name], published[name])}" for name in far)]


def _is_near(cell: Cell, published: dict[str, Any]) -> bool:
    noise = math.hypot(cell.error or 0.0, published.get("error", 0.0))
    return abs((cell.ours or 0.0) - published["ours"]) <= WITHIN * noise


def _in_words(column: FilledColumn, cell: Cell, published: dict[str, Any]) -> str:
    theirs = cell.model_copy(update={"ours": published["ours"], "error": published.get("error")})
    return f"{value_of(cell, column.decimals)} here, {value_of(theirs, column.decimals)} published"
