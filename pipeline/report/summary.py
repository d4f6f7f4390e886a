"""Results on the terminal: tables, claims, where the time went, where the report is; whatever is finished so far."""

import csv
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from pathlib import Path

from pipeline.config import shown
from pipeline.report.collect import collect
from pipeline.report.draw import number
from pipeline.report.records import Cell, FilledTable, JudgedStudy
from pipeline.report.tables import fill_table, judge_tables
from pipeline.study.entries import Graph
from pipeline.study.targets import Chosen, command_for, tables_of, target_name

WHOLE = {"all": "all", "demo": "headline"}  # targets that stand for every study, and which rows of it


def summarise_targets(graph: Graph, targets: Iterable[str]) -> str:
    """The tables behind these targets, as far as they are finished."""
    parts = [summarise(graph, WHOLE[name]) if name in WHOLE else _target(graph, name) for name in targets]
    return "\n\n".join(parts)


def summarise(graph: Graph, selection: str) -> str:
    """Everything of one scale: tables, claims, where the time went, where the report is."""
    tables, claims, _ = collect(graph, selection)
    parts = _tables(graph, [Chosen(table.id, selection) for table in tables], tables)
    parts += [_claims(study) for study in claims]
    parts += [_times(graph.results.benchmarks)]
    report = graph.results.report(selection)
    left_out = len(graph.tables) - len(tables)
    more = [f"{left_out} more tables and the other rows: {command_for('all', graph.scale)}"] if left_out else []
    return "\n\n".join([*parts, *more, f"report: {shown(report)}{'' if report.exists() else ', not written yet'}"])


def _target(graph: Graph, target: str) -> str:
    """A study, or one of its tables: its numbers, and the files that hold them."""
    chosen = tables_of(graph, [target])
    tables = [fill_table(graph, table, rows) for table, rows in chosen]
    parts = _tables(graph, chosen, tables)
    parts += [_claims(judge_tables(graph, target, tables))] if target in graph.studies() else []
    paths = [graph.results.table(table, rows) for table, rows in chosen]
    files = [f"{shown(path.with_suffix(''))}.md, .csv and .html" for path in paths if path.exists()]
    return "\n\n".join([*parts, *["files: " + "\n       ".join(files)] * bool(files)])


def _tables(graph: Graph, chosen: list[Chosen], tables: list[FilledTable]) -> list[str]:
    """Those with at least one number; the names of the others."""
    drawn, empty = [], []
    for (key, selection), table in zip(chosen, tables, strict=True):
        if any(cell.ours is not None for _, _, cell in table.cells()):
            drawn.append(_table(table, graph.rows(key, selection)))
        else:
            empty.append(target_name(key))
    return [*drawn, *[f"no results yet for: {', '.join(empty)}"] * bool(empty)]


def _table(table: FilledTable, chosen: Container[str]) -> str:
    """The chosen rows: ours and, in brackets, the paper's."""
    header = [f"{table.study}, {table.label}", *[column.label for column in table.columns]]
    lines = [header]
    for row in [row for row in table.rows if row.id in chosen]:
        lines.append([row.label, *[_cell(row.cells[column.id], column.decimals) for column in table.columns]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = [_aligned(line, widths) for line in lines]
    return "\n".join([f"{table.title} (scale {table.scale}; the paper's numbers in brackets)", *drawn])


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *others = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
    return "  ".join([first.strip().ljust(widths[0]), *others])


def _cell(cell: Cell, decimals: int) -> str:
    return f"{number(cell.ours, decimals)} ({number(cell.paper, decimals)})"


def _claims(study: JudgedStudy) -> str:
    count = Counter(claim.verdict for claim in study.claims)
    words = ", ".join(f"{count[word]} {word}" for word in ("true", "false", "undecided"))
    return f"claims of {study.study} at scale {study.scale}: {words}"


def _times(folder: Path) -> str:
    """Sum of the seconds that Snakemake measured, by rule: one folder per rule, one file per job."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for path in sorted(folder.rglob("*.tsv")):
        with path.open() as file:
            rule = path.relative_to(folder).parts[0]
            seconds[rule] += [float(line["s"]) for line in csv.DictReader(file, delimiter="\t")]
    by_time = sorted(seconds.items(), key=lambda item: -sum(item[1]))
    entries = [f"{rule} {sum(values):.0f} s in {len(values)} job{'s' * (len(values) > 1)}" for rule, values in by_time]
    return "time, summed over jobs: " + ("; ".join(entries) or "none measured")
