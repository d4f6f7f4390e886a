"""The numbers of all tables without anything around them, for tools that compare two versions of them."""

import csv
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from pipeline.core.files import remove, write_json, write_text
from pipeline.report.records import FilledTable

Numbers = dict[str, dict[str, dict[str, float]]]
MOST_FILES = 5000  # of one number each; a report with more numbers has none of them


class Number(NamedTuple):
    """A cell that has our number."""

    table: str
    row: str  # within the table
    column: str
    ours: float
    paper: float | None

    @property
    def name(self) -> str:
        return f"{self.table}.{self.row}.{self.column}"


def write_numbers(tables: list[FilledTable], page: Path) -> list[Path]:
    """As JSON, as CSV and as a folder of metrics, beside the page that shows them; returns all files."""
    files = [page.with_suffix(".json"), page.with_suffix(".csv")]
    write_json(files[0], numbers(tables))
    write_text(files[1], numbers_csv(tables))
    return [*files, *write_metrics(tables, page.with_suffix(".numbers"))]


def write_metrics(tables: list[FilledTable], folder: Path) -> list[Path]:
    """One file for each number: `dvc metrics show` prints a line for each file, however many numbers it has."""
    obtained = _obtained(tables)
    found = {folder / f"{each.name}.json": each for each in obtained if len(obtained) <= MOST_FILES}
    for path in folder.glob("*.json"):
        if path not in found:
            remove(path)
    for path, each in found.items():
        compared = {} if each.paper is None else {"paper": each.paper}
        text = json.dumps({"ours": each.ours, **compared}) + "\n"
        if not path.exists() or path.read_text() != text:
            write_text(path, text)
    return [*found]


def numbers(tables: list[FilledTable]) -> Numbers:
    """Table -> row -> column -> our number; cells without one are left out."""
    found: Numbers = defaultdict(lambda: defaultdict(dict))
    for each in _obtained(tables):
        found[each.table][each.row][each.column] = each.ours
    return found


def numbers_csv(tables: list[FilledTable]) -> str:
    """One line a cell: its name, our number and the paper's, which may be empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", "ours", "paper"])
    writer.writerows([each.name, each.ours, each.paper] for each in _obtained(tables))
    return text.getvalue()


def _obtained(tables: list[FilledTable]) -> list[Number]:
    return [
        Number(table.id, row.id.removeprefix(f"{table.id}."), column.id, cell.ours, cell.paper)
        for table in tables
        for row, column, cell in table.cells()
        if cell.ours is not None
    ]
