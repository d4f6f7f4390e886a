"""Draws one table of a study as CSV, Markdown or HTML. Formatting only: nothing is computed or judged here.

The HTML of a table exists once, as a macro in `macros.html.j2`; the report page and `to_html` both use it.
A number that is missing reads "n/a", and its reason is always given with it.
"""

import csv
import functools
import io
import json
import re
from pathlib import Path

import jinja2

from pipeline.report.records import Cell, FilledRow, FilledTable

MISSING = "n/a"
CSV_HEADER = ["row", "column", "ours", "paper", "difference", "tolerance", "verdict", "reason", "run"]
# What a reader asks first comes first; any other key follows in the order it was recorded.
PROVENANCE_ORDER = [
    "file",
    "metric",
    "run",
    "commit",
    "config_fingerprint",
    "data_fingerprint",
    "seed",
    "device",
    "wall_s",
]


def to_csv(table: FilledTable) -> str:
    """Long format, one line per cell, numbers at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for row, column, cell in table.cells():
        numbers = [cell.ours, cell.paper, cell.difference, cell.tolerance]
        shown = [MISSING if value is None else value for value in numbers]
        writer.writerow([row.id, column.id, *shown, cell.verdict, cell.reason, cell.run or ""])
    return text.getvalue()


def to_markdown(table: FilledTable) -> str:
    """One line per row; reasons are numbered notes below the table."""
    header = ["", "Fidelity"]
    for column in table.columns:
        header += [column.label, "paper", "difference", "verdict"]
    reasons: list[str] = []
    lines = [_markdown_line(header), "|" + " --- |" * len(header)]
    for row in table.rows:
        entries = [row.label, row.fidelity]
        for column in table.columns:
            entries += _markdown_cell(row.cells.get(column.id), column.decimals, reasons)
        lines.append(_markdown_line(entries))
    heading = [
        f"### {_markdown(table.label)}: {_markdown(table.title)}",
        "",
        _markdown(scale_line(table)),
    ]
    notes = [f"{number}. {_markdown(reason)}" for number, reason in enumerate(reasons, start=1)]
    notes_of = [_markdown(text) for text in (table.scale_note, table.note) if text]
    remark = [" ".join(notes_of), ""] if notes_of else []
    return "\n".join([*heading, "", *lines, "", *remark, *notes]).rstrip() + "\n"


def to_html(table: FilledTable) -> str:
    """A page of its own, with the same cells and the same provenance on click as in the report."""
    return environment().get_template("table.html.j2").render(table=table, title=f"{table.label}: {table.title}")


@functools.cache
def environment() -> jinja2.Environment:
    """Templates beside this file. Everything inserted is escaped; a misspelt name is an error."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        # Not select_autoescape: it goes by the ending of the file, and ".j2" would switch escaping off.
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"number": number, "signed": signed, "plain": plain, "duration": duration}
    env.globals |= {"facts": facts, "hint": hint, "scale_line": scale_line, "only_reason": only_reason}
    return env


def number(value: float | None, decimals: int) -> str:
    if value is None:
        return MISSING
    # Adding 0.0 turns the -0.0 that rounding leaves behind into 0.0.
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float | None, decimals: int) -> str:
    if value is None:
        return MISSING
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def plain(value: object) -> str:
    """Any JSON value as one line of text."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
        return ", ".join(f"{name} {plain(part)}" for name, part in value.items())
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def facts(provenance: dict) -> list[tuple[str, str]]:
    """Provenance as (name, text) pairs in reading order."""
    names = [name for name in PROVENANCE_ORDER if name in provenance]
    names += [name for name in provenance if name not in PROVENANCE_ORDER]
    return [
        ("wall time", duration(provenance[name]))
        if name == "wall_s"
        else (name.replace("_", " "), plain(provenance[name]))
        for name in names
    ]


def hint(provenance: dict) -> str:
    """One line for the pointer that rests on a cell."""
    known = [
        f"{name} {plain(provenance[name])}" for name in ("metric", "commit", "seed", "device") if name in provenance
    ]
    return "; ".join([plain(provenance["file"]), *known] if "file" in provenance else known)


def only_reason(row: FilledRow) -> str:
    """Why a row has no number at all, where all its cells say the same; else nothing."""
    reasons = {cell.reason if cell.ours is None else "" for cell in row.cells.values()}
    return reasons.pop() if len(reasons) == 1 else ""


def scale_line(table: FilledTable) -> str:
    comparable = "comparable" if table.comparable else "not comparable"
    return f"Scale {table.scale}: numbers are {comparable} with the paper's."


def _markdown_cell(cell: Cell | None, decimals: int, reasons: list[str]) -> list[str]:
    if cell is None:
        return ["", "", "", ""]
    entries = [number(cell.ours, decimals), number(cell.paper, decimals), signed(cell.difference, decimals)]
    entries.append(cell.verdict)
    if cell.tolerance is not None and cell.difference is not None:
        entries[2] += f" (tolerance {plain(cell.tolerance)})"
    if cell.reason:
        if cell.reason not in reasons:
            reasons.append(cell.reason)
        # The mark goes to what is missing; with both numbers there, the reason is about the verdict.
        place = 0 if cell.ours is None else 1 if cell.paper is None else 3
        entries[place] += f" ({reasons.index(cell.reason) + 1})"
    return entries


def _markdown_line(entries: list[str]) -> str:
    return "| " + " | ".join(_markdown(entry) for entry in entries) + " |"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no column break, no line break."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))
