"""What a sweep found, on the terminal: each combination of values with mean and deviation over seeds, best marked."""

from pipeline.core.config import shown
from pipeline.freshness.remake import Freshness
from pipeline.report.records import Cell, FilledTable
from pipeline.report.tables.fill import fill_table
from pipeline.report.tables.view import drawing_suffix
from pipeline.report.words import MARK, MARKED, aligned, counted

VALUE = "value"  # the one column of a sweep's table
BEST = {"up": "highest", "down": "lowest"}


def ranking(freshness: Freshness, study: str) -> str:
    """The tables of a sweep, as far as it is finished, and where its figures are."""
    graph = freshness.graph
    tables = [fill_table(graph, key, "all", freshness) for key in graph.selected("all", study)]
    parts = [_ranked(table) for table in tables if table.figure is None]
    return "\n\n".join([*parts, *[_place(freshness, table) for table in tables if table.figure is not None]])


def _ranked(table: FilledTable) -> str:
    (column,) = table.columns
    cells = {row.label: row.cells[VALUE] for row in table.rows}
    best = _best(cells, column.direction)
    lines: list[tuple[str, ...]] = [("", f"{column.label}, mean +/- deviation over seeds", "")]
    for label, cell in cells.items():
        mark = f"<- {BEST[column.direction]}" if label == best else cell.reason if cell.ours is None else ""
        lines.append((label, _number(cell, column.decimals), mark))
    notes = [f"no table shows whether high or low values of {column.label} are good: none is marked"] * (
        column.direction == "none"
    )
    notes += [MARKED] * any(cell.stale for cell in cells.values())
    return "\n".join([table.title, aligned(lines), *notes])


def _best(cells: dict[str, Cell], direction: str) -> str | None:
    """Among those that have all their seeds."""
    complete = {label: cell for label, cell in cells.items() if cell.n == cell.planned and not cell.stale}
    known = {label: cell.ours for label, cell in complete.items() if cell.ours is not None}
    if direction not in BEST or not known:
        return None
    return (max if direction == "up" else min)(known, key=lambda label: known[label])


def _number(cell: Cell, decimals: int) -> str:
    if cell.ours is None:
        return "n/a"
    spread = f" +/- {cell.spread:.{decimals}f}" if cell.spread is not None else ""
    seeds = counted(cell.n, "seed") if cell.n == cell.planned else f"{cell.n} of {cell.planned} seeds so far"
    return f"{cell.ours:.{decimals}f}{MARK * bool(cell.stale)}{spread} ({seeds})"


def _place(freshness: Freshness, figure: FilledTable) -> str:
    drawn = freshness.results.table(figure.id, "all").with_suffix(drawing_suffix(figure))
    return f"picture: {shown(drawn)}" if drawn.exists() else "picture: drawn when all of it is finished"
