"""Which part of a table is shown: the rows and columns that have numbers, and the same runs only once.

Rows and columns without any number are folded away; those that are the very same runs at this scale, such as ViT-B and
ViT-L where both are one small ViT, are one row or column with both names.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipeline.report.records import Cell, FilledColumn, FilledRow, FilledTable

Side = TypeVar("Side", FilledRow, FilledColumn)


@dataclass(frozen=True)
class Shown(Generic[Side]):
    """A row or a column, and later ones that are the same runs."""

    sides: list[Side]

    @property
    def first(self) -> Side:
        return self.sides[0]

    @property
    def others(self) -> list[Side]:
        return self.sides[1:]

    @property
    def label(self) -> str:
        return join_labels([side.name for side in self.sides])

    @property
    def paper_label(self) -> str:
        """The paper's name, where it is not what ran."""
        return join_labels(side.label for side in self.sides) if any(side.here for side in self.sides) else ""


class ShownRow(Shown[FilledRow]):
    """A row of a table."""

    def runs(self) -> dict[str, str]:
        """Each run once, with its role, and its seed where the role has several seeds."""
        found: dict[str, str] = {}
        for role, names in self.first.runs.items():
            for seed, name in enumerate(names):
                text = f"{role} seed {seed}".strip() if len(names) > 1 else role
                found[name] = f"{found[name]}, {text}" if name in found else text
        return found


class ShownColumn(Shown[FilledColumn]):
    """A column of a table."""


@dataclass(frozen=True)
class TableView:
    table: FilledTable
    columns: list[ShownColumn]
    rows: list[ShownRow]
    folded: list[FilledRow]  # rows without a number
    empty: list[FilledColumn]  # columns without a number in any shown row

    def cell(self, row: ShownRow, column: ShownColumn) -> Cell | None:
        return row.first.cells.get(column.first.id)

    def merged(self, row: ShownRow, column: ShownColumn) -> list[tuple[FilledRow, FilledColumn, Cell]]:
        """Every cell that this one stands for, itself first."""
        return [
            (one, other, one.cells[other.id]) for one in row.sides for other in column.sides if other.id in one.cells
        ]

    def papers(self, row: ShownRow, column: ShownColumn) -> list[float]:
        """The paper's numbers for a cell; several where it stands for several."""
        return list(dict.fromkeys(c.paper for _, _, c in self.merged(row, column) if c.paper is not None))

    @property
    def is_relative(self) -> bool:
        """Whether differences are ordered as shares of the paper's number, because they have several units."""
        return len({_unit(column.first.label) for _, column, _ in self._compared()}) > 1

    def distance(self, column: ShownColumn, cell: Cell) -> float | None:
        """How far a number is from the paper's; None for what is not ordered, such as a number of parameters."""
        if cell.difference is None or column not in self._ordered():
            return None
        return abs(cell.difference) / ((abs(cell.paper or 0.0) or 1.0) if self.is_relative else 1.0)

    def most_different(self) -> tuple[ShownRow, ShownColumn, Cell] | None:
        """The number that is furthest from the paper's; None where none has a difference."""
        return max(self._compared(), key=lambda each: self.distance(*each[1:]) or 0.0, default=None)

    def _compared(self) -> list[tuple[ShownRow, ShownColumn, Cell]]:
        cells = [(row, column, self.cell(row, column)) for row in self.rows for column in self._ordered()]
        return [(row, column, cell) for row, column, cell in cells if cell and cell.difference is not None]

    def _ordered(self) -> list[ShownColumn]:
        """The columns with a direction; all, where none has one."""
        return [column for column in self.columns if column.first.direction != "none"] or self.columns

    @property
    def terms(self) -> dict[str, str]:
        """The words of its labels that need an explanation, with what they mean."""
        sides: list[ShownRow | ShownColumn] = [*self.rows, *self.columns]
        figure = self.table.figure
        axes = [figure.x_label, figure.y_label] if figure else []
        folded = [row.name for row in self.folded]  # what is shown may refer to them, as in "J: G + DAL"
        labels = "\n".join([*axes, *folded, *(text for side in sides for text in (side.label, side.paper_label))])
        return {word: text for word, text in self.table.terms.items() if _has_word(labels, word)}

    @property
    def runnable(self) -> bool:
        """Whether running every row of the table would fill some of what is folded; a quoted row has no run."""
        return any(not row.selected or row.runs for row in self.folded)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w+])", text) is not None


def _unit(label: str) -> str:
    """What stands in brackets at the end of a label; a label without one has a unit of its own."""
    return label[label.rindex("(") :] if label.endswith(")") else label


def view(table: FilledTable) -> TableView:
    ran = [row for row in table.rows if row.has_curve or any(has_content(cell) for cell in row.cells.values())]
    filled = [column for column in table.columns if any(has_content(row.cells.get(column.id)) for row in ran)]
    return TableView(
        table,
        [ShownColumn(group) for group in _once(filled)],
        [ShownRow(group) for group in _once(ran)],
        [row for row in table.rows if row not in ran],
        [column for column in table.columns if column not in filled],
    )


def drawing_suffix(table: FilledTable) -> str:
    """Figures are drawn as SVG; tables and pictures need a page."""
    return ".html" if table.figure is None or table.figure.kind == "pictures" else ".svg"


def has_content(cell: Cell | None) -> bool:
    return cell is not None and (cell.ours is not None or bool(cell.picture) or bool(cell.stale))


def _once(sides: Sequence[Side]) -> list[list[Side]]:
    """Each that is not the same as an earlier one, with the later ones that are."""
    groups: list[list[Side]] = []
    for side in sides:
        # The first of them may itself be the same as one that did not run.
        known = [group for group in groups if side.same_as and side.same_as in (group[0].label, group[0].same_as)]
        if known:
            known[0].append(side)
        else:
            groups.append([side])
    return groups


def join_labels(labels: Iterable[str]) -> str:
    """Names of one thing, the words that all of them end with only once: "ViT-B, ViT-L top-1 (%)"."""
    words = [label.split() for label in dict.fromkeys(labels)]
    if len(words) == 1:
        return " ".join(words[0])
    shared = 0
    while all(len(label) > shared + 1 for label in words) and len({label[-1 - shared] for label in words}) == 1:
        shared += 1
    starts = [" ".join(label[: len(label) - shared]) for label in words]
    starts = [start.removesuffix(",") for start in starts]
    return " ".join([", ".join(starts), *words[0][len(words[0]) - shared :]])
