"""The numbers of all tables without anything around them, for tools that compare two versions of them."""

import csv
import io
from collections import defaultdict
from pathlib import Path

from pipeline.core.files import write_json, write_text
from pipeline.report.records import FilledTable

Numbers = dict[str, dict[str, dict[str, float]]]


def write_numbers(tables: list[FilledTable], page: Path) -> list[Path]:
    """As JSON and as CSV, beside the page that shows them; returns both files."""
    files = [page.with_suffix(".json"), page.with_suffix(".csv")]
    write_json(files[0], numbers(tables))
    write_text(files[1], numbers_csv(tables))
    return files


def numbers(tables: list[FilledTable]) -> Numbers:
    """Table -> row -> column -> our number; cells without one are left out."""
    found: Numbers = defaultdict(lambda: defaultdict(dict))
    for table, row, column, ours, _ in _obtained(tables):
        found[table][row][column] = ours
    return found


def numbers_csv(tables: list[FilledTable]) -> str:
    """One line a cell: its name, our number and the paper's, which may be empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", "ours", "paper"])
    for table, row, column, ours, paper in _obtained(tables):
        writer.writerow([f"{table}.{row}.{column}", ours, paper])
    return text.getvalue()


def _obtained(tables: list[FilledTable]) -> list[tuple[str, str, str, float, float | None]]:
    """(table, row within it, column, ours, paper) of every cell that has our number."""
    return [
        (table.id, row.id.removeprefix(f"{table.id}."), column.id, cell.ours, cell.paper)
        for table in tables
        for row, column, cell in table.cells()
        if cell.ours is not None
    ]
