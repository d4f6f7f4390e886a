"""Results on the terminal: tables, claims, where the time went, where the report is; whatever is finished so far."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pipeline.core.config import shown
from pipeline.freshness.outputs import report_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.report.collect import collect_tables
from pipeline.report.records import FilledTable, JudgedStudy
from pipeline.report.site.findings import verdict_counts
from pipeline.report.tables.fill import fill_table, judge_tables
from pipeline.report.tables.view import ShownColumn, ShownRow, TableView, drawing_suffix, view
from pipeline.report.words import AGAIN, MARK, MARKED, counted, error, number, shown_again
from pipeline.study.targets import command_for, report_target, tables_of, target_name

# Targets that stand for every study, and which rows of it.
WHOLE = {"all": "all", "headline": "headline", "demo": "headline"}


def summarise_targets(freshness: Freshness, targets: Iterable[str]) -> str:
    """The tables behind these targets, as far as they are finished."""
    parts = [summarise(freshness, WHOLE[name]) if name in WHOLE else _target(freshness, name) for name in targets]
    return "\n\n".join(parts)


def summarise(freshness: Freshness, selection: str) -> str:
    """Everything of one scale: tables, claims, where the time went, where the report is."""
    graph = freshness.graph
    tables, claims = collect_tables(graph, selection, freshness)
    parts = _stale(freshness, tables, report_target(selection, graph.scale))
    parts += _tables([table for table in tables if table.figure is None])
    parts += _figures(freshness, [table for table in tables if table.figure is not None], selection)
    parts += [_claims(study) for study in claims if study.claims]
    parts += [_times(graph.results.benchmarks)]
    left_out = len(graph.tables) - len(tables)
    if left_out:
        parts.append(f"{left_out} more tables and figures, and the other rows: {command_for('all', graph.scale)}")
    return "\n\n".join([*parts, _report(freshness, selection)])


def _stale(freshness: Freshness, tables: Iterable[FilledTable], target: str) -> list[str]:
    """One line where results behind these tables are stale; their cells are marked."""
    graph, files = freshness.graph, set[str]()
    for table in tables:
        for row, column, cell in table.cells():
            entry = graph.tables[table.id].rows[row.id].cells.get(column.id)
            if cell.stale and entry:  # a difference has no entry: it is stale with one of its two cells
                files |= {*filter(freshness.why_number, entry.sources)}
    line = f"{shown_again(len(files), command_for(target, graph.scale))}; {MARKED}"
    return [f"{line}, `python -m pipeline verify --scale {graph.scale}` says why"] * bool(files)


def _again(freshness: Freshness, drawing: str) -> str:
    return f", {AGAIN}" if freshness.why(drawing) else ""


def _target(freshness: Freshness, target: str) -> str:
    """A study, or one of its tables: its numbers, and the files that hold them."""
    graph = freshness.graph
    chosen = tables_of(graph, [target])
    tables = [fill_table(graph, table, rows, freshness) for table, rows in chosen]
    paths = {table: graph.results.table(table, rows) for table, rows in chosen}
    drawn = [table for table in tables if paths[table.id].exists()]
    parts = _stale(freshness, tables, target)
    parts += _tables([table for table in tables if table.columns or table not in drawn])  # curves have no numbers
    parts += [_claims(_judge(freshness, target, tables))] if graph.claims.get(target) else []
    files = [_files(paths[table.id], table) + _again(freshness, table_file(table.id, "all")) for table in drawn]
    parts += ["files: " + "\n       ".join(files)] * bool(files)
    parts += [_report(freshness, target)] * (target in graph.studies())
    return "\n\n".join(parts)


def _report(freshness: Freshness, name: str) -> str:
    """Where a report is, and whether it is as it should be."""
    path = freshness.results.report(name)
    state = _again(freshness, report_file(name)) if path.exists() else ", not written yet"
    return f"report: {shown(path)}{state}"


def _judge(freshness: Freshness, study: str, tables: list[FilledTable]) -> JudgedStudy:
    """Claims may name tables of other studies."""
    graph, known = freshness.graph, {table.id for table in tables}
    others = [fill_table(graph, key, "all", freshness) for key in graph.judged_on(study, "all") if key not in known]
    return judge_tables(graph, study, [*tables, *others])


def _files(data: Path, table: FilledTable) -> str:
    """What a table or a figure is drawn as, beside its data."""
    return f"{shown(data.with_suffix(''))}.md, .csv and {drawing_suffix(table)}"


def _tables(tables: list[FilledTable]) -> list[str]:
    """Those with at least one number; the names of the others."""
    drawn = [_table(view(table)) for table in tables if has_numbers(table)]
    empty = [target_name(table.id) for table in tables if not table.columns or not view(table).rows]
    papers = ", and the paper's in brackets" * any(table.has_paper for table in tables)
    scale = [f"scale {table.scale}: ours +/- its standard error{papers}" for table in tables[:1]]
    return [*scale * bool(drawn), *drawn, *[f"no results yet for: {', '.join(empty)}"] * bool(empty)]


def has_numbers(table: FilledTable) -> bool:
    return any(cell.ours is not None or (cell.stale and not cell.picture) for _, _, cell in table.cells())


def _figures(freshness: Freshness, figures: list[FilledTable], selection: str) -> list[str]:
    """The names of figures, and where they are drawn."""
    lines = []
    for figure in figures:
        path = freshness.results.table(figure.id, selection).with_suffix(drawing_suffix(figure))
        again = _again(freshness, table_file(figure.id, selection))
        place = f"{shown(path)}{again}" if path.exists() else "not drawn yet"
        lines.append(f"{figure.study}, {figure.label}, {figure.title}: {place}")
    return ["\n".join(lines)] * bool(lines)


def _table(table: TableView) -> str:
    """The rows that ran: ours with its standard error and, in brackets, the paper's; the same runs once."""
    about = table.table
    lines = [[f"{about.study}, {about.label}", *[column.paper_label or column.label for column in table.columns]]]
    for row in table.rows:
        lines.append([row.paper_label or row.label, *[_cell(table, row, column) for column in table.columns]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = [_aligned(line, widths) for line in lines]
    more = f"{counted(len(table.folded), 'more row')}: {command_for(target_name(about.id), about.scale)}"
    return "\n".join([about.title, *drawn, *[more] * table.runnable])


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *others = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
    return "  ".join([first.strip().ljust(widths[0]), *others])


def _cell(table: TableView, row: ShownRow, column: ShownColumn) -> str:
    cell, decimals = table.cell(row, column), column.first.decimals
    if cell is None:
        return ""
    papers = ", ".join(number(paper, decimals) for paper in table.papers(row, column))
    ours = [number(cell.ours, decimals) + MARK * bool(cell.stale), error(cell.error, decimals, "+/-")]
    return " ".join(filter(None, [*ours, f"({papers})" if papers else ""]))


def _claims(study: JudgedStudy) -> str:
    return f"claims of {study.study} at scale {study.scale}: {', '.join(verdict_counts(study.claims))}"


def _times(folder: Path) -> str:
    """Sum of the seconds that Snakemake measured, by rule: one folder per rule, one file per job."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for path in sorted(folder.rglob("*.tsv")):
        with path.open() as file:
            rule = path.relative_to(folder).parts[0]
            seconds[rule] += [float(line["s"]) for line in csv.DictReader(file, delimiter="\t")]
    by_time = sorted(seconds.items(), key=lambda item: -sum(item[1]))
    entries = [f"{rule} {sum(values):.0f} s in {counted(len(values), 'job')}" for rule, values in by_time]
    return "time, summed over jobs: " + ("; ".join(entries) or "none measured")
