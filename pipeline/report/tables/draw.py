"""Draws one table or figure of a study as CSV, Markdown, HTML or SVG. Formatting only: nothing is computed or judged.

The HTML of a table exists once, as a macro in `macros.html.j2`; the report page and `to_html` both use it.
A number that is missing reads "n/a", and its reason is always given with it.
"""

import csv
import functools
import io
import re
from collections.abc import Iterable
from typing import NamedTuple

import jinja2

from pipeline.report import TEMPLATES
from pipeline.report.figures.pictures import Place, Shot, embed, grid
from pipeline.report.records import Cell, FilledColumn, FilledRow, FilledTable, Read
from pipeline.report.tables.view import TableView, drawing_suffix, has_content, view
from pipeline.report.words import (
    AGAIN,
    MARK,
    MISSING,
    counted,
    duration,
    error,
    number,
    plain,
    sentences,
    short,
    signed,
    with_code,
)
from pipeline.study.targets import command_for, target_name

CSV_OURS = ["row", "column", "ours", "error", "n", "spread", "values"]
CSV_PAPER = ["paper", "difference", "tolerance", "verdict"]  # only of tables of which the paper has numbers
CSV_ABOUT = ["reason", "run", "picture"]
# What the tint of a heat map means, by its `shade`.
TINTS = {
    "all": "The stronger the tint, the larger the number.",
    "columns": "The stronger the tint, the better. Numbers that differ by less than their noise have none.",
    "gain": "The stronger the tint, the larger the gain over the first column.",
}
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


def files_of(table: FilledTable, read: Read) -> dict[str, str]:
    """Suffix -> text of every file that a table or a figure is drawn as."""
    suffix = drawing_suffix(table)
    is_page = suffix == ".html"
    drawing = to_html(table, read) if is_page else _standalone(table, read)
    return {".csv": to_csv(table), ".md": to_markdown(table), suffix: drawing}


def _standalone(table: FilledTable, read: Read) -> str:
    from pipeline.report.figures import svg  # matplotlib takes a second, and tables do without it
    from pipeline.report.figures.figures import draw_figure

    return svg.standalone(draw_figure(table, read, "figure"))


def to_csv(table: FilledTable) -> str:
    """Long format, one line per cell, numbers at full precision; the seeds' own numbers are separated by spaces."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*CSV_OURS, *CSV_PAPER * table.has_paper, *CSV_ABOUT])
    for row, column, cell in table.cells():
        values = [cell.ours, cell.error, cell.n, cell.spread, " ".join(map(repr, cell.values))]
        values += [cell.paper, cell.difference, cell.tolerance, cell.verdict] * table.has_paper
        shown = [MISSING if value is None else value for value in values]
        writer.writerow([row.id, column.id, *shown, cell.reason, cell.run or "", cell.picture])
    return text.getvalue()


def _both(label: str, here: str) -> str:
    """What ran, and what the paper has in its place."""
    return f"{here} (paper: {label})" if here else label


def to_markdown(table: FilledTable) -> str:
    """One line per row, ours with its error, beside the paper's if it has any; reasons are numbered notes below."""
    header = ["", "Fidelity"]
    for column in table.columns:
        header += [_both(column.label, column.here), *["paper", "difference", "verdict"] * table.has_paper]
    reasons: list[str] = []
    lines = [_markdown_line(header), "|" + " --- |" * len(header)]
    for row in table.rows:
        entries = [_both(row.label, row.here), row.fidelity]
        for column in table.columns:
            entries += _markdown_cell(row.cells.get(column.id), column.decimals, reasons, table.has_paper)
        lines.append(_markdown_line(entries))
    title = f"{table.label}: {_both(table.title, table.here)}"
    heading = [f"### {_markdown(title)}", "", _markdown(scale_line(table))]
    notes = [f"{number}. {_markdown(reason)}" for number, reason in enumerate(reasons, start=1)]
    remarks = [*same_runs(view(table)), few_seeds([table]), table.scale_note, table.note]
    remark = [" ".join(_markdown(text) for text in remarks if text), ""]
    return "\n".join([*heading, "", *lines, "", *remark, *notes]).rstrip() + "\n"


def to_html(table: FilledTable, read: Read) -> str:
    """A page of its own, with the same cells and the same provenance on click as in the report."""
    template = environment().get_template("table.html.j2")
    return template.render(
        links=None, shown=view(table), drawn=drawn(table, read), title=f"{table.label}: {table.name}"
    )


class Drawn(NamedTuple):
    """A figure, ready for a page: an SVG, or a grid of pictures."""

    shown: TableView
    svg: str
    pictures: list[tuple[str, list[Shot]]]


def drawn(table: FilledTable, read: Read, place: Place = embed) -> Drawn | None:
    """None for a table; `place` is where its pictures go."""
    if table.figure is None:
        return None
    shown = view(table)
    if table.figure.kind == "pictures":
        return Drawn(shown, "", grid(shown, read, place))
    from pipeline.report.figures.figures import draw_figure

    return Drawn(shown, draw_figure(table, read, re.sub(r"\W", "-", table.id)), [])


@functools.cache
def environment() -> jinja2.Environment:
    """The templates of `report/templates`. Everything inserted is escaped; a misspelt name is an error."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        # Not select_autoescape: it goes by the ending of the file, and ".j2" would switch escaping off.
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"number": number, "signed": signed, "plain": plain, "duration": duration}
    env.filters |= {"error": error, "short": short, "with_code": with_code, "counted": counted}
    env.globals |= {"facts": facts, "noise_facts": noise_facts, "hint": hint, "scale_line": scale_line}
    env.filters |= {"sentences": sentences}
    env.globals |= {"tints": TINTS, "again": AGAIN, "mark": MARK}
    env.globals |= {"view": view, "same_runs": same_runs, "few_seeds": few_seeds, "fold": fold, "command": command}
    return env


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


def noise_facts(cell: Cell) -> list[tuple[str, str]]:
    """What the error of a number comes from."""
    seeds = ", ".join(plain(value) for value in cell.values)
    count = f"{cell.n} of {cell.planned}" if cell.n < cell.planned else f"{cell.n}"
    has_seeds = max(cell.n, cell.planned) > 1
    pairs = [
        ("seeds", f"{count}: {seeds}" if has_seeds else ""),
        ("spread over seeds", cell.spread),
        ("images", cell.count),
    ]
    return [(name, plain(value)) for name, value in pairs if value not in (None, "")]


def hint(provenance: dict) -> str:
    """One line for the pointer that rests on a cell."""
    known = [
        f"{name} {plain(provenance[name])}" for name in ("metric", "commit", "seed", "device") if name in provenance
    ]
    return "; ".join([plain(provenance["file"]), *known] if "file" in provenance else known)


def same_runs(shown: TableView) -> list[str]:
    """A sentence for each row and column that stands for several."""
    sentences = []
    for what, sides in (("column", shown.columns), ("row", shown.rows)):
        for side in sides:
            others = [other.label for other in side.others]
            if others:
                names = f"{side.first.label} and {', '.join(others)}"
                sentences.append(f"{names}: the same run{'s' * (what == 'column')} at this scale, shown once.")
    return sentences


def few_seeds(tables: Iterable[FilledTable]) -> str:
    """A sentence if numbers have fewer seeds than the study asks for."""
    shown = [cell for table in tables for _, _, cell in table.cells() if cell.ours is not None]
    few = [cell for cell in shown if cell.n < cell.planned]
    if not few:
        return ""
    least, most = min(cell.n for cell in few), max(cell.n for cell in few)
    seeds = f"{least}" if least == most else f"{least} to {most}"
    numbers = "All numbers" if len(few) == len(shown) else f"{len(few)} of {len(shown)} numbers"
    return f"{numbers} have {seeds} of {max(cell.planned for cell in few)} planned seeds so far."


class Folded(NamedTuple):
    """A row of which nothing, or not everything, was run: the paper's numbers, and why."""

    label: str
    papers: list[str]  # by column, empty where the paper has none
    reason: str


def fold(shown: TableView) -> list[Folded]:
    """What a table does not show: rows without a number, and columns without any."""
    rows = [(row, shown.table.columns) for row in shown.folded]
    rows += [(row.first, shown.empty) for row in shown.rows if shown.empty]
    return [_folded(row, shown.table.columns, columns) for row, columns in rows]


def _folded(row: FilledRow, columns: list[FilledColumn], hidden: list[FilledColumn]) -> Folded:
    cells = {column.id: row.cells[column.id] for column in hidden if column.id in row.cells}
    papers = {key: cell.paper for key, cell in cells.items()}
    texts = ["" if papers.get(c.id) is None else number(papers[c.id], c.decimals) for c in columns]
    return Folded(row.label, texts, "; ".join(dict.fromkeys(cell.reason for cell in cells.values() if cell.reason)))


def command(table: FilledTable) -> str:
    """What runs every row of a table."""
    return command_for(target_name(table.id), table.scale)


def scale_line(table: FilledTable) -> str:
    if not table.has_paper:
        return f"Scale {table.scale}."
    comparable = "comparable" if table.comparable else "not comparable"
    return f"Scale {table.scale}: numbers are {comparable} with the paper's."


def _markdown_cell(cell: Cell | None, decimals: int, reasons: list[str], has_paper: bool) -> list[str]:
    """Our number, and where the table has the paper's, the paper's number, the difference and the verdict."""
    if cell is None:
        return ["", "", "", ""] if has_paper else [""]
    ours = f"{number(cell.ours, decimals)} {error(cell.error, decimals, '+/-')}".strip()
    entries = [cell.picture or ours]
    if has_paper:
        entries += [number(cell.paper, decimals), signed(cell.difference, decimals), cell.verdict]
    if cell.tolerance is not None and cell.difference is not None:
        entries[2] += f" (tolerance {plain(cell.tolerance)})"
    if cell.reason:
        if cell.reason not in reasons:
            reasons.append(cell.reason)
        # The mark goes to what is missing; with both numbers there, the reason is about the verdict.
        place = 0 if not (has_content(cell) and has_paper) else 1 if cell.paper is None else 3
        entries[place] += f" ({reasons.index(cell.reason) + 1})"
    return entries


def _markdown_line(entries: list[str]) -> str:
    return "| " + " | ".join(_markdown(entry) for entry in entries) + " |"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no column break, no line break."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))
