"""What the report shows of a run: curves, its config beside its nearest neighbour's, its numbers, its evaluations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.report.figures import curves
from pipeline.report.figures.curves import Curve, Logged
from pipeline.report.records import Cell, EvaluationSummary, FilledTable, RunSummary
from pipeline.report.site.configs import ConfigLine, Neighbour, config_lines, nearest_runs
from pipeline.report.site.links import OTHERS, host_of
from pipeline.report.tables.view import ShownColumn, ShownRow, TableView, view


class NumberLine(NamedTuple):
    """A number of a table, and where it comes from."""

    shown: TableView
    row: ShownRow
    column: ShownColumn
    cell: Cell


class RunPage(NamedTuple):
    run: RunSummary
    curve: Curve
    neighbour: Neighbour | None
    config: list[ConfigLine]
    started: list[RunSummary]  # runs that start from it
    numbers: list[NumberLine]
    evaluations: list[EvaluationSummary]


class OtherEvaluations(NamedTuple):
    """Evaluations of no run of the report, such as of the costs of a method."""

    numbers: list[NumberLine]
    evaluations: list[EvaluationSummary]


def run_pages(
    runs: list[RunSummary],
    tables: list[FilledTable],
    evaluations: Iterable[EvaluationSummary],
    hosts: Mapping[str, str],
) -> tuple[list[RunPage], OtherEvaluations]:
    numbers, own = _numbers(tables, hosts), defaultdict(list)
    for each in evaluations:
        own[hosts[each.name]].append(each)
    neighbours = nearest_runs(runs)
    logged = [Logged(run.name, run.label, Path(run.metrics_file or "")) for run in runs]
    pages = []
    for run, curve in zip(runs, curves.draw(logged, "curve"), strict=True):
        host, neighbour = hosts[run.name], neighbours.get(run.name)
        started = [other for other in runs if other.init == run.name]
        config = config_lines(run, neighbour)
        pages.append(RunPage(run, curve, neighbour, config, started, numbers[host], own[host]))
    return pages, OtherEvaluations(numbers[OTHERS], own[OTHERS])


def _numbers(tables: list[FilledTable], hosts: Mapping[str, str]) -> dict[str, list[NumberLine]]:
    """Page -> the numbers and pictures of all tables that come from there."""
    found: dict[str, list[NumberLine]] = defaultdict(list)
    for shown in map(view, tables):
        for row in shown.rows:
            for column in shown.columns:
                cell = shown.cell(row, column)
                if cell is not None and cell.provenance:
                    found[host_of(cell, hosts)].append(NumberLine(shown, row, column, cell))
    return found
