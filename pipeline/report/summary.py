"""The end of a run on the terminal: tables, claims, where the time went, where the report is."""

import csv
from collections import Counter, defaultdict
from collections.abc import Container
from pathlib import Path

from pipeline.config import shown
from pipeline.report.collect import collect
from pipeline.report.draw import number
from pipeline.report.records import Cell, FilledTable, JudgedStudy
from pipeline.study.entries import Graph


def summarise(graph: Graph, selection: str) -> str:
    tables, claims, _ = collect(graph, selection)
    chosen = [graph.rows(table.id, selection) for table in tables]
    parts = [_table(table, rows) for table, rows in zip(tables, chosen, strict=True)]
    parts += [_claims(study) for study in claims]
    parts += [_times(graph.results.benchmarks)]
    report = graph.results.report(selection)
    left_out = len(graph.tables) - len(tables)
    more = [f"{left_out} more tables and the other rows: snakemake all"] if left_out else []
    return "\n\n".join([*parts, *more, f"report: {shown(report)}"])


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
