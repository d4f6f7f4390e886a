"""The first screen: every claim as a mark, our numbers against the papers', and the claims to look at first."""

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.report.records import Cell, FilledTable
from pipeline.report.site.findings import ClaimInWords, surprises, verdict_counts
from pipeline.report.tables.view import ShownColumn, ShownRow, view
from pipeline.report.words import counted

SIGNS = {
    "true": "\u2713",
    "false": "\u2715",
    "within noise": "\u2248",
    "not run yet": "\u00b7",
    "not testable": "\u2013",
}
PERCENT = "(%)"
SIDE = 100.0  # of the scatter: both axes are percentages


class Marks(NamedTuple):
    """The claims of one study, the decided ones first."""

    study: str
    title: str
    claims: list[ClaimInWords]

    @property
    def counts(self) -> list[str]:
        return verdict_counts(one.claim for one in self.claims)


class Point(NamedTuple):
    """One number of ours against the paper's."""

    study: int  # which, for its colour
    row: str
    column: str
    cell: Cell
    label: str

    @property
    def x(self) -> float:
        return self.cell.paper or 0.0

    @property
    def y(self) -> float:
        return self.cell.ours or 0.0


class Scatter(NamedTuple):
    points: list[Point]
    studies: list[tuple[int, str]]  # colour and title of each study that has points
    num_others: int  # numbers in other units

    @property
    def note(self) -> str:
        others = counted(self.num_others, "number")
        return f"{others[:1].upper()}{others[1:]} in other units are in the tables." if self.num_others else ""


def scatter(tables: list[FilledTable], titles: dict[str, str]) -> Scatter | None:
    """Every percentage that the papers print, too, once; None without one. `titles` are those of the studies."""
    order, points, seen, num_others = [*titles], list[Point](), set[tuple[object, ...]](), 0
    for table, row, column, label, cell in _compared(tables):
        key = (cell.paper, str((cell.provenance or {}).get("file")), cell.metric)
        if key in seen:
            continue
        seen.add(key)
        if PERCENT in label and _fits(cell):
            text = f"{titles[table.study].partition(':')[0]} {table.label}, {row.label}, {column.label}"
            points.append(Point(order.index(table.study), row.first.id, column.first.id, cell, text))
        else:
            num_others += 1
    studies = dict.fromkeys(point.study for point in points)
    return Scatter(points, [(place, titles[order[place]]) for place in studies], num_others) if points else None


def _compared(tables: list[FilledTable]) -> Iterator[tuple[FilledTable, ShownRow, ShownColumn, str, Cell]]:
    """Every number that has the paper's next to it, where it is shown, and the label of its own column."""
    for shown in map(view, tables):
        for row in shown.rows:
            for column in shown.columns:
                for _, other, cell in shown.merged(row, column):
                    if cell.ours is not None and cell.paper is not None:
                        yield shown.table, row, column, other.label, cell


def _fits(cell: Cell) -> bool:
    return 0 <= (cell.ours or 0) <= SIDE and 0 <= (cell.paper or 0) <= SIDE


class Overview(NamedTuple):
    marks: list[Marks]
    scatter: Scatter | None
    surprises: list[ClaimInWords]


def overview(claims: dict[str, list[ClaimInWords]], titles: dict[str, str], tables: list[FilledTable]) -> Overview:
    """`claims` are those of each study, in the order of the verdicts."""
    marks = [Marks(study, titles[study], found) for study, found in claims.items() if found]
    everything = [one for found in claims.values() for one in found]
    return Overview(marks, scatter(tables, titles), surprises(everything))
