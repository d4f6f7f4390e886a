"""Figures of a study as SVG that follows the page's colours: lines, bars, heat maps and curves.

Sizes are in units of the drawing, of which it is WIDTH wide. Everything stands at fixed places: the bytes must not
depend on how wide a font is.
"""

import math
import textwrap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipeline.core.errors import ConfigError
from pipeline.report.figures import svg
from pipeline.report.figures.lines import TEXT_HEIGHT, WIDTH, draw_curves, draw_lines
from pipeline.report.records import Cell, Drawing, FilledTable, Read
from pipeline.report.tables.view import ShownColumn, ShownRow, TableView, view
from pipeline.report.words import error, number, signed

FONTS = {"font.size": 12, "lines.linewidth": 1.8}
BAR_CHARACTERS = 40  # of a bar's name, so that its number fits next to it
BAR_HEIGHT = 8
BAR_STEP = TEXT_HEIGHT + BAR_HEIGHT + 8
CELL_HEIGHT = 28
CHARACTER = 7.2  # units that a character takes at most
STRONGEST = 0.45  # tint of a heat map: text on it still has contrast, in light and in dark


def draw_figure(table: FilledTable, read: Read, prefix: str) -> str:
    """The figure as an element of a page; `prefix` keeps its ids apart from those of other figures."""
    figure = table.figure
    if figure is None or figure.kind == "pictures":
        raise ConfigError(f"{table.id} is not drawn as SVG; found {figure and figure.kind}, expected lines, bars, ...")
    with svg.style(**FONTS):
        if figure.kind == "curves":
            drawing = draw_curves(table, figure, read)
        else:
            drawing = {"lines": draw_lines, "bars": draw_bars, "heatmap": draw_heatmap}[figure.kind](table, figure)
        return svg.inline(drawing, prefix, f"{table.label}: {table.title}")


class Bar(NamedTuple):
    label: str
    cell: Cell
    decimals: int
    colour: str


def draw_bars(table: FilledTable, figure: Drawing) -> Figure:
    """Horizontal bars, each below its name and its number: long names fit, on a phone too."""
    groups = _bars(view(table), figure)
    bars = [bar for group in groups.values() for bar in group]
    has_headings = len(bars) > len(groups)
    ends = [end for bar in bars for end in _ends(bar.cell)]
    low, high = min([0.0, *ends]), max([0.0, *ends]) or 1.0
    papers = "open diamond: the paper's" + ("" if table.comparable else ", for its own model and data")
    remark = "; ".join(filter(None, [figure.y_label, papers * _has_paper(bars)]))
    height = len(bars) * BAR_STEP + len(groups) * (TEXT_HEIGHT + 8) * has_headings + TEXT_HEIGHT * bool(remark) + 4
    drawing, canvas = _canvas(height)
    y = 12.0
    for heading, group in groups.items():
        if has_headings:
            canvas.text(0, y, heading, color=svg.INK, weight="bold")
            y += TEXT_HEIGHT + 2
        for bar in group:
            _draw_bar(canvas, bar, y, (WIDTH - 8) / (high - low), low)
            y += BAR_STEP
        y += 6 * has_headings
    canvas.text(0, y, remark)
    return drawing


def _bars(shown: TableView, figure: Drawing) -> dict[str, list[Bar]]:
    """By group: a column, or a row where the x values are those of rows."""
    groups: dict[str, list[Bar]] = {}
    by_row = figure.x_from == "rows"
    alone = len(shown.columns if by_row else shown.rows) == 1
    one_group = len(shown.rows if by_row else shown.columns) == 1
    for index, row in enumerate(shown.rows):
        for place, column in enumerate(shown.columns):
            cell = shown.cell(row, column)
            if cell is None or cell.ours is None:
                continue
            group, series, colour = (row.label, column.label, place) if by_row else (column.label, row.label, index)
            colour = 0 if one_group else colour % len(svg.SERIES)  # with one group, colour would mean nothing
            bar = Bar(group if alone else series, cell, column.first.decimals, svg.SERIES[colour])
            groups.setdefault(group, []).append(bar)
    return groups


def _ends(cell: Cell) -> list[float]:
    """The outermost marks of a bar."""
    ours, deviation = cell.ours or 0.0, cell.error or 0.0
    return [ours - deviation, ours + deviation, *([] if cell.paper is None else [cell.paper])]


def _has_paper(bars: list[Bar]) -> bool:
    return any(bar.cell.paper is not None for bar in bars)


def _canvas(height: float) -> tuple[Figure, Axes]:
    """Axes without marks, whose coordinates are the units of the drawing, downwards."""
    drawing = Figure(figsize=(WIDTH / 72, height / 72))
    canvas = drawing.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    canvas.axis("off")
    return drawing, canvas


def _draw_bar(canvas: Axes, bar: Bar, y: float, unit: float, low: float) -> None:
    ours, middle = bar.cell.ours or 0.0, y + 6 + BAR_HEIGHT / 2
    canvas.text(0, y, textwrap.shorten(bar.label, BAR_CHARACTERS, placeholder=" ..."))
    text = f"{number(ours, bar.decimals)} {error(bar.cell.error, bar.decimals)}".strip()
    canvas.text(WIDTH - 2, y, text, ha="right", color=svg.INK, weight="bold")
    start, end = sorted((4 - low * unit, 4 + (ours - low) * unit))
    canvas.add_patch(Rectangle((4, y + 6), WIDTH - 8, BAR_HEIGHT, facecolor=svg.GRID, alpha=0.5, linewidth=0))
    canvas.add_patch(Rectangle((start, y + 6), end - start, BAR_HEIGHT, facecolor=bar.colour, linewidth=0))
    if bar.cell.error:
        ends = [4 + (ours - low + sign * bar.cell.error) * unit for sign in (-1, 1)]
        canvas.plot(ends, [middle, middle], color=svg.INK, linewidth=1.2, marker="|", markersize=6)
    if bar.cell.paper is not None:
        look: dict[str, Any] = {
            "marker": "D",
            "markersize": 5.5,
            "markerfacecolor": svg.PAGE,
            "markeredgecolor": svg.MUTED,
        }
        canvas.plot([4 + (bar.cell.paper - low) * unit], [middle], **look)


def draw_heatmap(table: FilledTable, figure: Drawing) -> Figure:
    """Every number in its cell; the stronger the tint, the larger the number, the better in its column, or the more it
    gains over the first column.

    Where the x values are those of rows, a row of the table is drawn as a column.
    """
    shown = view(table)
    sides: list[list[Any]] = [[*shown.rows], [*shown.columns]]
    down, across = reversed(sides) if figure.x_from == "rows" else sides
    left = min(0.4 * WIDTH, 8 + CHARACTER * max([0, *[len(side.label) for side in down]]))
    width = (WIDTH - left) / max(1, len(across))
    heads = [textwrap.wrap(side.label, max(4, int(width / CHARACTER)), break_long_words=False) for side in across]
    longest = max([1, *[len(line) for lines in heads for line in lines]])
    top = TEXT_HEIGHT * (max([1, *map(len, heads)]) + bool(figure.x_label)) + 6
    drawing, canvas = _canvas(top + CELL_HEIGHT * len(down) + 4)
    canvas.text(left, 11, figure.x_label)
    canvas.text(0, top - 9, textwrap.shorten(figure.y_label, max(4, int(left / CHARACTER)), placeholder=""))
    for place, lines in enumerate(heads):
        about: dict[str, Any] = {"ha": "center", "color": svg.INK}
        about["fontsize"] = min(FONTS["font.size"], 1.6 * width / longest)
        canvas.text(left + (place + 0.5) * width, top - 9, "\n".join(lines), **about)
    for line, side in enumerate(down):
        y = top + CELL_HEIGHT * line
        label = textwrap.shorten(side.label, int(left / CHARACTER) + 1, placeholder="...")
        canvas.text(0, y + CELL_HEIGHT / 2, label, va="center", color=svg.INK)
        for place, other in enumerate(across):
            row, column = (other, side) if figure.x_from == "rows" else (side, other)
            _draw_heat(canvas, shown, row, column, (left + place * width, y, width), figure.shade)
    return drawing


def _draw_heat(
    canvas: Axes, shown: TableView, row: ShownRow, column: ShownColumn, box: tuple[float, float, float], shade: str
) -> None:
    x, y, width = box
    cell = shown.cell(row, column)
    ours, decimals = None if cell is None else cell.ours, column.first.decimals
    gain = _gain(shown, row, column) if shade == "gain" else None
    text = number(ours, decimals) + ("" if gain is None else f" ({signed(gain, decimals)})")
    share = 0.0
    if shade == "gain":
        share = _better(gain, column) / (_largest_gain(shown) or 1.0)
    elif ours is not None:
        share = _share(shown, ours, column if shade == "columns" else None)
    patch: dict[str, Any] = {"facecolor": svg.ACCENT, "alpha": STRONGEST * share, "linewidth": 0}
    canvas.add_patch(Rectangle((x + 1, y + 1), width - 2, CELL_HEIGHT - 2, **patch))
    size = min(11.0, 1.6 * width / max(4, len(text)))
    about: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size}
    about["color"] = svg.MUTED if ours is None else svg.INK
    canvas.text(x + width / 2, y + CELL_HEIGHT / 2, text, **about)


def _gain(shown: TableView, row: ShownRow, column: ShownColumn) -> float | None:
    """What a number is more than that of the first column in its row."""
    cell, first = shown.cell(row, column), shown.cell(row, shown.columns[0])
    if column is shown.columns[0] or cell is None or first is None or cell.ours is None or first.ours is None:
        return None
    return cell.ours - first.ours


def _better(gain: float | None, column: ShownColumn) -> float:
    """By how much a number is better; 0 where it is worse."""
    return max(0.0, (gain or 0.0) * (-1 if column.first.direction == "down" else 1))


def _largest_gain(shown: TableView) -> float:
    return max(_better(_gain(shown, row, column), column) for row in shown.rows for column in shown.columns)


def _share(shown: TableView, ours: float, column: ShownColumn | None) -> float:
    """Where a number is between the lowest and the highest of all, or between the worst and the best of a column.

    A column whose numbers differ by less than their noise has no best one.
    """
    columns = [column] if column else shown.columns
    cells = [shown.cell(row, other) for row in shown.rows for other in columns]
    found = [cell for cell in cells if cell is not None and cell.ours is not None]
    numbers = [cell.ours or 0.0 for cell in found]
    if column and np.ptp(numbers) <= _noise(found):
        return 0.0
    share = (ours - min(numbers)) / (float(np.ptp(numbers)) or 1.0)
    return 1 - share if column and column.first.direction == "down" and np.ptp(numbers) else share


def _noise(cells: list[Cell]) -> float:
    """The 95 % interval of the difference between the lowest and the highest; 0 where an error is not known."""
    ends = [end(cells, key=lambda cell: cell.ours or 0.0) for end in (min, max)]
    return 1.96 * math.hypot(*[cell.error or 0.0 for cell in ends])
