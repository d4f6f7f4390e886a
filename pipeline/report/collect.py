"""What the report and the summary are made of: tables, claims and runs, from the results of one scale as they are now.

Tables are filled here again, not read as they were drawn: whatever is finished shows. A stale number shows, too, with a
mark.
"""

from typing import NamedTuple

from pipeline.freshness import Freshness
from pipeline.records import TrainRecord, read_record
from pipeline.report.records import FilledTable, JudgedStudy, RunSummary
from pipeline.report.tables import fill_table, judge_tables
from pipeline.study.entries import Graph


class Content(NamedTuple):
    tables: list[FilledTable]
    claims: list[JudgedStudy]
    runs: list[RunSummary]


def collect(graph: Graph, selection: str, freshness: Freshness | None = None) -> Content:
    """Tables, claims and finished runs of a selection of rows, with the runs that those start from."""
    tables, claims = collect_tables(graph, selection, freshness)
    rows = [row for key in graph.selected(selection) for row in graph.rows(key, selection).values()]
    shown = graph.with_inits(run for row in rows for run in row.run_names())
    runs = [_run(graph, name) for name in graph.runs if name in shown and graph.results.run(name).done.exists()]
    return Content(tables, claims, runs)


def collect_tables(
    graph: Graph, selection: str, freshness: Freshness | None = None
) -> tuple[list[FilledTable], list[JudgedStudy]]:
    """Tables and claims; with `freshness`, cells say whether their results are stale (`fill_table`)."""
    tables = [fill_table(graph, key, selection, freshness) for key in graph.selected(selection)]
    named = {study: {*graph.judged_on(study, selection)} for study in graph.studies()}
    return tables, [judge_tables(graph, study, [each for each in tables if each.id in named[study]]) for study in named]


def _run(graph: Graph, name: str) -> RunSummary:
    folder = graph.results.run(name)
    record = read_record(folder.done, TrainRecord)
    return RunSummary(
        name=name,
        label=graph.runs[name].label,
        studies=graph.runs[name].studies,
        metrics_file=str(folder.metrics),
        summary={**record.metrics, "wall_s": record.provenance["wall_s"]},
        provenance=record.provenance,
        config=folder.config.read_text(),
    )
