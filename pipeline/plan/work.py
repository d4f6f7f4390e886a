"""What targets ask for, and what of it is still to do, as `Freshness` tells Snakemake."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.freshness.outputs import job_file, run_file, table_file
from pipeline.freshness.remake import Freshness
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
    asked, left, done = needed_work(freshness, targets), Work(), Work()
    for name, study in asked.runs.items():
        (left if freshness.why(run_file(name)) else done).runs[name] = study
    for job, study in asked.evaluations.items():
        (left if freshness.why(job_file(job)) else done).evaluations[job] = study
    for (table, rows), study in asked.tables.items():
        (left if freshness.why(table_file(table, rows)) else done).tables[table, rows] = study
    left.finished = done
    return left


def needed_work(freshness: Freshness, targets: Iterable[str]) -> Work:
    """Everything that the targets need, finished or not."""
    work, graph, seen = Work(), freshness.graph, set[str]()
    for target in [*targets] or ["all"]:
        if "-" in target:  # a run's name has dashes, and no other target has
            _add(freshness, work, run_file(target), graph.run(target).studies[0], seen)
            continue
        for table, rows in tables_of(graph, [target]):
            study = graph.tables[table].study
            work.tables.setdefault((table, rows), study)
            _add(freshness, work, table_file(table, rows), study, seen)
    return work


def _add(freshness: Freshness, work: Work, file: str, study: str, seen: set[str]) -> None:
    """The runs and evaluations behind a file that were not seen before."""
    for each in freshness.needed_for([file], known=seen):
        seen.add(each)
        kind, name, *_ = each.split("/")
        if kind == "runs":
            work.runs[name] = study
        elif kind == "evals":
            work.evaluations[name.removesuffix(".json")] = study
