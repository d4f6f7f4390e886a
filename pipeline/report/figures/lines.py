"""Figures with axes: lines over the rows or columns of a table, and curves over the epochs of training.

A series is known by its marker and its dashes as well as by its colour. Everything stands at fixed places: the bytes
must not depend on how wide a font is.
"""

import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pipeline.core.files import parse_lines
from pipeline.report.figures import curves, svg
from pipeline.report.records import Cell, Drawing, FilledColumn, FilledRow, FilledTable, Read
from pipeline.report.tables.view import join_labels, view

WIDTH = 400  # units; on a phone one is a bit less than a pixel
PLOT_HEIGHT = 200
TEXT_HEIGHT = 17
LEFT, RIGHT, BELOW = 40, 10, 42
LEGEND_CHARACTERS = 54
MARKERS = ["o", "s", "^", "D", "v", "P"]
DASHES: list[Any] = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]
# Markers alone: a paper often prints only the ends of a curve, and a line between them would be made up.
PAPER: dict[str, Any] = {"color": svg.MUTED, "linestyle": "none", "markerfacecolor": "none", "markersize": 5.5}
LEVEL: dict[str, Any] = {"color": svg.MUTED, "linewidth": 1.2, "linestyle": (0, (4, 3))}
# Beyond this the paper's numbers would press ours into a flat line; the table of numbers still has them.
MOST_TIMES_WIDER = 4


class Point(NamedTuple):
    x: float
    ours: float | None
    error: float
    paper: float | None


class Series(NamedTuple):
    label: str
    points: list[Point]


class Level(NamedTuple):
    """A horizontal line, such as a baseline; with the index of the series it belongs to, if any."""

    label: str
    value: float
    series: int | None


class Entry(NamedTuple):
    """A line of the legend, and how what it names is drawn."""

    label: str
    look: dict[str, Any]


def draw_lines(table: FilledTable, figure: Drawing) -> Figure:
    across, series, levels, ticks = _read_table(table, figure)
    with_paper = _paper_fits(series, levels)
    legend = [Entry(one.label, _look(index)) for index, one in enumerate(series)]
    legend += [Entry(label, LEVEL) for label in dict.fromkeys(level.label for level in levels)]
    legend += [Entry("the paper's numbers", PAPER | {"marker": "o"})] * with_paper
    drawing, axes = frame(figure, legend)
    for index, one in enumerate(series):
        _draw_series(axes, index, one, with_paper)
    for level in levels:
        colour = {} if level.series is None else {"color": _look(level.series)["color"]}
        axes.axhline(level.value, **LEVEL | colour, zorder=1)
    _set_ticks(axes, across, ticks, figure.log_x)
    return drawing


def draw_curves(table: FilledTable, figure: Drawing, read: Read) -> Figure:
    """The validation metric of each row's runs against the epoch; of several seeds the mean, and a band around it."""
    found = read_curves(table, figure.curve, read)
    drawing, axes = frame(figure, [Entry(label, _look(index)) for index, label in enumerate(found)], "epoch")
    for index, runs in enumerate(found.values()):
        epochs = runs[0][0]
        mean = np.mean([np.interp(epochs, *run) for run in runs], axis=0)
        band = curves.band(runs)
        if band is not None:
            axes.fill_between(*band, color=_look(index)["color"], alpha=0.15, linewidth=0)
        axes.plot(epochs, mean, **_look(index), markevery=max(1, len(epochs) // 8))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return drawing


def read_curves(table: FilledTable, metric: str, read: Read) -> dict[str, list[curves.Series]]:
    """Label of a row -> the curves of its runs that logged the metric; the same runs once."""
    labels: dict[tuple[str, ...], str] = {}
    for row in [row for row in table.rows if row.selected]:
        runs = tuple(name for names in row.runs.values() for name in names)
        labels[runs] = join_labels([*filter(None, [labels.get(runs)]), row.name])
    found = {label: [_read_curve(run, metric, read) for run in runs] for runs, label in labels.items()}
    return {label: kept for label, series in found.items() if (kept := [one for one in series if one is not None])}


def _read_curve(run: str, metric: str, read: Read) -> curves.Series | None:
    name = f"runs/{run}/metrics.jsonl"
    try:
        records = parse_lines(read(name), Path(name))
    except FileNotFoundError:
        return None
    points = [(record["epoch"], record[metric]) for record in records if record.get(metric) is not None]
    return curves.thin(np.array(points, dtype=float)) if points else None


def frame(figure: Drawing, legend: list[Entry], x_label: str = "") -> tuple[Figure, Axes]:
    """A drawing with its legend on top, and axes below it."""
    lines = [textwrap.wrap(entry.label, LEGEND_CHARACTERS) or [""] for entry in legend]
    top = 18 + TEXT_HEIGHT * (sum(map(len, lines)) + bool(figure.y_label))
    height = top + PLOT_HEIGHT + BELOW
    drawing = Figure(figsize=(WIDTH / 72, height / 72))
    axes = drawing.add_axes((LEFT / WIDTH, BELOW / height, (WIDTH - LEFT - RIGHT) / WIDTH, PLOT_HEIGHT / height))
    y = 12.0
    for entry, texts in zip(legend, lines, strict=True):
        sample = Line2D([3 / WIDTH, 15 / WIDTH, 27 / WIDTH], [1 - y / height] * 3, markevery=[1], **entry.look)
        drawing.add_artist(sample)
        for text in texts:
            drawing.text(34 / WIDTH, 1 - y / height, text, va="center_baseline", color=svg.INK)
            y += TEXT_HEIGHT
    if figure.y_label:
        drawing.text(0, 1 - (y + 6) / height, figure.y_label, va="center_baseline")
    drawing.text(1 - RIGHT / WIDTH, 6 / height, figure.x_label or x_label, ha="right")
    axes.grid(axis="y", color=svg.GRID, linewidth=0.6)
    axes.tick_params(length=3, width=0.6)
    axes.margins(x=0.04, y=0.08)
    return drawing, axes


def _look(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a series; no two of the first 12 look alike, even without colour."""
    marker = MARKERS[index % len(MARKERS)]
    dashes = DASHES[(index + index // len(MARKERS)) % len(DASHES)]
    return {"color": svg.SERIES[index % len(svg.SERIES)], "marker": marker, "linestyle": dashes, "markersize": 5}


def _read_table(table: FilledTable, figure: Drawing) -> tuple[list[float], list[Series], list[Level], dict[float, str]]:
    """Places on the x axis, series, levels, and the names of places that have no number of their own."""
    shown = view(table)
    is_level = {row.first.id: row.first.id.removeprefix(f"{table.id}.") in figure.levels for row in shown.rows}
    rows = [row for row in shown.rows if not is_level[row.first.id]]
    baselines = [row.first for row in shown.rows if is_level[row.first.id]]
    by_row = figure.x_from == "rows"
    across = [(side.first.x, side.label) for side in (rows if by_row else shown.columns)]
    named = any(x is None for x, _ in across)
    places = [float(index) if x is None or named else x for index, (x, _) in enumerate(across)]
    if by_row:
        lines = {column.label: [shown.cell(row, column) for row in rows] for column in shown.columns}
        levels = [level for row in baselines for level in _levels(row, [column.first for column in shown.columns])]
    else:
        lines = {row.label: [shown.cell(row, column) for column in shown.columns] for row in rows}
        levels = [Level(row.label, _first_number(row), None) for row in baselines]
    series = [Series(label, [*map(_point, places, cells)]) for label, cells in lines.items()]
    return places, series, levels, dict(zip(places, [label for _, label in across], strict=True)) if named else {}


def _levels(row: FilledRow, columns: list[FilledColumn]) -> list[Level]:
    """One for each series; they are told apart only where there are several."""
    numbers = [(index, row.cells[column.id].ours) for index, column in enumerate(columns)]
    return [Level(row.label, ours, index if len(columns) > 1 else None) for index, ours in numbers if ours is not None]


def _first_number(row: FilledRow) -> float:
    return next(cell.ours for cell in row.cells.values() if cell.ours is not None)


def _point(x: float, cell: Cell | None) -> Point:
    if cell is None:
        return Point(x, None, 0, None)
    return Point(x, cell.ours, cell.error or 0.0, cell.paper)


def _paper_fits(series: list[Series], levels: list[Level]) -> bool:
    """Whether the paper's numbers can share an axis with ours."""
    points = [point for one in series for point in one.points]
    ours = [point.ours for point in points if point.ours is not None] + [level.value for level in levels]
    papers = [point.paper for point in points if point.paper is not None]
    if not papers or not ours:
        return False
    return float(np.ptp([*ours, *papers])) <= MOST_TIMES_WIDER * float(np.ptp(ours))


def _draw_series(axes: Axes, index: int, series: Series, with_paper: bool) -> None:
    points = sorted((point for point in series.points if point.ours is not None), key=lambda point: point.x)
    xs, ours, errors = ([getattr(point, name) for point in points] for name in ("x", "ours", "error"))
    axes.errorbar(xs, ours, yerr=errors, **_look(index), elinewidth=1, capsize=2.5, capthick=1, clip_on=False)
    papers = sorted((point.x, point.paper) for point in series.points if point.paper is not None)
    if with_paper and papers:
        axes.plot(*zip(*papers, strict=True), **PAPER, marker=_look(index)["marker"], zorder=1)


def _set_ticks(axes: Axes, across: list[float], names: dict[float, str], log_x: bool) -> None:
    axes.locator_params(axis="y", nbins=6)
    if names:
        labels = [textwrap.fill(name, max(6, 56 // len(names))) for name in names.values()]
        axes.set_xticks(list(names), labels, fontsize=9.5)
    elif log_x:
        axes.set_xscale("log")
        axes.set_xticks(sorted(set(across)), [f"{x:g}" for x in sorted(set(across))])
        axes.minorticks_off()
    elif across and all(float(x).is_integer() for x in across):  # counts: layers, severities, dimensions
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
