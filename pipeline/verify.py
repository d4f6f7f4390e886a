"""Are the results what they were when they were made, and would today's code make them again?

`verify` compares every finished run, evaluation and table with what was recorded of it. `made_by_other_code` reads the
digests of source that each result carries; it is quick enough for every start of the workflow.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.config import shown
from pipeline.errors import DataError
from pipeline.files import digest
from pipeline.records import Measured, TrainRecord, read_evaluations, read_record
from pipeline.registry import EVALS, METHODS
from pipeline.report.records import FilledTable
from pipeline.report.tables import fill_table
from pipeline.results import RunFolder
from pipeline.study.entries import Graph

SELECTIONS = ("headline", "all")
TRAIN_AGAIN = "delete this run's folders in runs/ and state/ and start the workflow again, or restore it: dvc checkout"


class Problem(NamedTuple):
    """A result that is not what was recorded, and what to do."""

    file: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.found}; {self.remedy}"


class OtherCode(NamedTuple):
    """Results of one method or evaluation that other code made."""

    kind: str  # method or evaluation
    name: str
    results: list[str]

    def __str__(self) -> str:
        folder = {"method": "method", "evaluation": "eval"}[self.kind]
        names = ", ".join(self.results[:3]) + (f" and {len(self.results) - 3} more" if len(self.results) > 3 else "")
        return (
            f"{self.kind} {self.name}: its code has changed since {names}. If the change affects numbers, raise "
            f"code_epoch in configs/{folder}/{self.name}.yaml and they are made again; if not, there is nothing to do"
        )


def made_by_other_code(graph: Graph) -> list[OtherCode]:
    """Finished runs and evaluations of this scale whose method or evaluation has other source today."""
    other: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, run, folder in _finished(graph):
        if _differs(run.provenance.get("code"), METHODS.code(graph.runs[name].method)):
            other["method", graph.runs[name].method].append(name)
        for key, result in _evaluations(graph, folder):
            evaluation = graph.evals[key]["name"]
            if _differs(result.provenance.get("code"), EVALS.code(evaluation)):
                other["evaluation", evaluation].append(f"{name} ({key})")
    return [OtherCode(kind, name, results) for (kind, name), results in sorted(other.items())]


def verify(graph: Graph) -> Iterator[Problem]:
    """Everything of this scale that is not as it was recorded."""
    for name in graph.runs:
        folder = graph.results.run(name)
        if folder.done.exists():
            yield from _run_problems(graph, folder)
    for table in graph.tables:
        for selection in SELECTIONS:
            yield from _table_problems(graph, table, selection)


def _run_problems(graph: Graph, folder: RunFolder) -> Iterator[Problem]:
    try:
        run = read_record(folder.done, TrainRecord)
    except DataError as error:
        yield Problem(shown(folder.done), str(error), TRAIN_AGAIN)
        return
    for file, recorded in run.files.items():
        found = digest(folder.folder / file)
        if found != recorded:
            what = "not found" if found is None else f"its SHA-256 is {found[:12]}, recorded was {recorded[:12]}"
            yield Problem(shown(folder.folder / file), what, TRAIN_AGAIN)
    for path in (folder.config, folder.timing):
        if not path.exists():
            yield Problem(shown(path), "not found", TRAIN_AGAIN)
    yield from _evaluation_problems(graph, folder, run)


def _evaluation_problems(graph: Graph, folder: RunFolder, run: TrainRecord) -> Iterator[Problem]:
    again = "delete the file and start the workflow again"
    for group in graph.runs[folder.name].groups:
        path = folder.evaluation(group)
        try:
            results = read_evaluations(path) if path.exists() else {}
        except DataError as error:
            yield Problem(shown(path), str(error), again)
            continue
        for key, result in results.items():
            used, trained = result.provenance.get("weights"), run.files.get(folder.encoder.name)
            if used != trained:
                found = f"{key} was computed with weights {str(used)[:12]}, this run has {str(trained)[:12]}"
                yield Problem(shown(path), found, again)


def _table_problems(graph: Graph, table: str, selection: str) -> Iterator[Problem]:
    """A table that is drawn must show what the results say now."""
    path = graph.results.table(table, selection)
    if not path.exists():
        return
    try:
        drawn, filled = read_record(path, FilledTable), fill_table(graph, table, selection)
    except DataError as error:
        yield Problem(shown(path), str(error), "start the workflow again")
        return
    now = {(row.id, column.id): cell.ours for row, column, cell in filled.cells()}
    for row, column, cell in drawn.cells():
        if cell.ours != now.get((row.id, column.id)):
            found = f"{row.id}:{column.id} shows {cell.ours}, the results say {now.get((row.id, column.id))}"
            yield Problem(shown(path), found, "start the workflow again; it redraws the table")


def _finished(graph: Graph) -> Iterator[tuple[str, TrainRecord, RunFolder]]:
    for name in graph.runs:
        folder = graph.results.run(name)
        if folder.done.exists():
            yield name, read_record(folder.done, TrainRecord), folder


def _evaluations(graph: Graph, folder: RunFolder) -> Iterator[tuple[str, Measured]]:
    for group in graph.runs[folder.name].groups:
        path = folder.evaluation(group)
        if path.exists():
            yield from ((key, result) for key, result in read_evaluations(path).items() if key in graph.evals)


def _differs(recorded: str | None, today: str) -> bool:
    """A result without a digest was made before there were any, and says nothing."""
    return recorded is not None and recorded != today
