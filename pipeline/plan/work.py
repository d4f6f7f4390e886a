"""What targets ask for, and what of it is still to do: the same walk from tables to files as Snakemake's."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pipeline.freshness import Freshness, job_file, run_file, table_file
from pipeline.study.entries import Graph
from pipeline.study.targets import tables_of


@dataclass
class Work:
    """Jobs by name, each with the study that is the first to need it; and how many there were before."""

    runs: dict[str, str] = field(default_factory=dict)
    evaluations: dict[str, str] = field(default_factory=dict)  # jobs
    tables: dict[tuple[str, str], str] = field(default_factory=dict)  # (id, rows)
    finished: "Work | None" = None

    @property
    def studies(self) -> list[str]:
        found = [*self.runs.values(), *self.evaluations.values(), *self.tables.values()]
        return sorted(set(found))


def pending_work(freshness: Freshness, targets: Iterable[str]) -> Work:
    """Everything that the targets need and that must be made, or made again."""
    asked, left, done = needed_work(freshness.graph, targets), Work(), Work()
    for name, study in asked.runs.items():
        (left if freshness.why(run_file(name)) else done).runs[name] = study
    for job, study in asked.evaluations.items():
        (left if freshness.why(job_file(job)) else done).evaluations[job] = study
    for (table, rows), study in asked.tables.items():
        (left if freshness.why(table_file(table, rows)) else done).tables[table, rows] = study
    left.finished = done
    return left


def needed_work(graph: Graph, targets: Iterable[str]) -> Work:
    """Everything that the targets need, finished or not."""
    work = Work()
    for target in [*targets] or ["all"]:
        if "-" in target:  # a run's name has dashes, and no other target has
            _add_run(graph, work, target, graph.run(target).studies[0])
            continue
        for table, rows in tables_of(graph, [target]):
            _add_table(graph, work, table, rows)
    return work


def _add_table(graph: Graph, work: Work, table: str, rows: str) -> None:
    study = graph.tables[table].study
    work.tables.setdefault((table, rows), study)
    for file in graph.files(table, rows):
        kind, name = PurePosixPath(file).parts[:2]
        job = name.removesuffix(".json") if kind == "evals" else ""
        if job:
            work.evaluations.setdefault(job, study)
        for run in graph.runs_for(graph.eval_jobs[job]) if job else [name]:
            _add_run(graph, work, run, study)


def _add_run(graph: Graph, work: Work, name: str, study: str) -> None:
    for each in graph.with_inits([name]):
        if graph.runs[each].trained:
            work.runs.setdefault(each, study)
