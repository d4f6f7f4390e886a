"""What a drawn table, a judged study and a finished run hold: written as JSON by one step, read by the next."""

from typing import Any, Literal

from pydantic import Field

from pipeline.config import Record
from pipeline.study.claims import JudgedClaim
from pipeline.study.spec import Direction

Verdict = Literal["match", "differs", "not comparable", "no paper value", "not run"]


class Cell(Record):
    """One number of a table beside the paper's, or the reason why there is none."""

    ours: float | None = None
    run: str | None = None
    paper: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    verdict: Verdict = "not run"
    reason: str = ""
    provenance: dict[str, Any] | None = Field(None, description="file, metric and run, then the facts of the result")


class FilledColumn(Record):
    id: str
    label: str
    direction: Direction = "none"
    decimals: int = 1


class FilledRow(Record):
    id: str
    label: str
    runs: dict[str, str]  # by role
    fidelity: str
    cells: dict[str, Cell]  # by column


class FilledTable(Record):
    id: str
    study: str
    study_title: str
    label: str
    title: str
    scale: str
    comparable: bool
    scale_note: str
    note: str
    columns: list[FilledColumn]
    rows: list[FilledRow]

    def cells(self) -> list[tuple[FilledRow, FilledColumn, Cell]]:
        """Every (row, column, cell) that the table has; a row need not fill every column."""
        return [
            (row, column, row.cells[column.id])
            for row in self.rows
            for column in self.columns
            if column.id in row.cells
        ]


class JudgedStudy(Record):
    """The claims of one study at one scale."""

    study: str
    scale: str
    claims: list[JudgedClaim]


class RunSummary(Record):
    """A finished run, as the page shows it."""

    name: str
    label: str
    studies: list[str]
    metrics_file: str | None
    summary: dict[str, Any]
    provenance: dict[str, Any]
    config: str
