"""Are the results what they were when they were made, and would today's code make them again?

`verify` compares every finished run, evaluation and table with what was recorded of it. `made_by_other_code` reads the
digests of source that each result carries; it is quick enough for every start of the workflow.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.config import shown
from pipeline.errors import DataError
from pipeline.files import digest, is_held, remove
from pipeline.records import EvalJobRecord, EvalResult, Kind, TrainRecord, read_record
from pipeline.registry import EVALS, METHODS
from pipeline.report.records import FilledTable
from pipeline.report.tables import fill_table
from pipeline.results import EvalFolder, RunFolder
from pipeline.study.entries import Graph
from pipeline.study.targets import command_for

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
    for name, run in _finished(graph):
        if _differs(run.provenance.get("code"), METHODS.code(graph.runs[name].method)):
            other["method", graph.runs[name].method].append(name)
    for name, entry in graph.evals.items():
        evaluation, found = entry.config["name"], _intact(graph.results.evaluation(name).result, EvalResult)
        if found and _differs(found.provenance.get("code"), EVALS.code(evaluation)):
            other["evaluation", evaluation].append(name)
    return [OtherCode(kind, name, results) for (kind, name), results in sorted(other.items())]


def verify(graph: Graph) -> Iterator[Problem]:
    """Everything of this scale that is not as it was recorded."""
    for name in graph.runs:
        folder = graph.results.run(name)
        if folder.done.exists():
            yield from _run_problems(folder)
    for name, entry in graph.evals.items():
        if graph.results.evaluation(name).result.exists() or graph.results.eval_job(entry.job).exists():
            yield from _evaluation_problems(graph, name)
    for table in graph.tables:
        for selection in SELECTIONS:
            yield from _table_problems(graph, table, selection)


def _run_problems(folder: RunFolder) -> Iterator[Problem]:
    try:
        run = read_record(folder.done, TrainRecord)
    except DataError as error:
        yield Problem(shown(folder.done), str(error), TRAIN_AGAIN)
        return
    yield from _file_problems(folder.folder, run.files, TRAIN_AGAIN)
    for path in (folder.config, folder.timing):
        if not path.exists():
            yield Problem(shown(path), "not found", TRAIN_AGAIN)


def _file_problems(folder: Path, files: dict[str, str], remedy: str) -> Iterator[Problem]:
    """Files that are not as the record beside them says."""
    for file, recorded in files.items():
        found = digest(folder / file)
        if found != recorded:
            what = "not found" if found is None else f"its SHA-256 is {found[:12]}, recorded was {recorded[:12]}"
            yield Problem(shown(folder / file), what, remedy)


def _evaluation_problems(graph: Graph, name: str) -> Iterator[Problem]:
    """A finished evaluation: its files, and whether its runs still have the weights that it was computed with."""
    folder = graph.results.evaluation(name)
    again = _forced(graph, graph.results.eval_job(graph.evals[name].job))
    if not folder.result.exists():
        yield Problem(shown(folder.result), "not found", again)
        return
    try:
        result = read_record(folder.result, EvalResult)
    except DataError as error:
        yield Problem(shown(folder.result), str(error), again)
        return
    yield from _file_problems(folder.folder, result.files, again)
    for role, used in result.inputs.weights.items():
        run = graph.results.run(result.subjects[role])
        trained = _intact(run.done, TrainRecord)
        now = trained.files.get(run.encoder.name) if trained else used
        if used != now:
            found = f"was computed with weights {used[:12]}, run {run.name} has {str(now)[:12]}"
            yield Problem(shown(folder.result), found, again)


def forget_unfinished_jobs(graph: Graph) -> list[str]:
    """Delete what says that evaluations are finished whose results are missing or changed; returns those jobs.

    Snakemake knows the file of a job alone: without this, a table would be drawn without a result that was deleted.
    """
    if is_held(graph.results.workflow_lock):
        return []  # another Snakemake computes some of them now
    unfinished = [job for job in graph.eval_jobs if graph.results.eval_job(job).exists() and not _is_true(graph, job)]
    for job in unfinished:
        remove(graph.results.eval_job(job))
    return unfinished


def _is_true(graph: Graph, job: str) -> bool:
    record = _intact(graph.results.eval_job(job), EvalJobRecord)
    known = record.results.items() if record else []
    return bool(known) and all(_is_whole(graph.results.evaluation(name), sha256) for name, sha256 in known)


def _is_whole(folder: EvalFolder, sha256: str) -> bool:
    """Whether a result is as recorded and none of its files is missing; `verify` reads those, too."""
    result = _intact(folder.result, EvalResult)
    return (
        result is not None
        and digest(folder.result) == sha256
        and all((folder.folder / name).exists() for name in result.files)
    )


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
            yield Problem(shown(path), found, _forced(graph, path))


def _forced(graph: Graph, output: Path) -> str:
    """How to make a file again though Snakemake takes it for finished."""
    return f"`{command_for(f'--force {shown(output)}', graph.scale)}` makes it again"


def _finished(graph: Graph) -> Iterator[tuple[str, TrainRecord]]:
    for name in graph.runs:
        if found := _intact(graph.results.run(name).done, TrainRecord):
            yield name, found


def _intact(path: Path, kind: type[Kind]) -> Kind | None:
    """A record; None where it is missing or damaged, which `verify` reports in its own place."""
    try:
        return read_record(path, kind)
    except DataError:
        return None


def _differs(recorded: str | None, today: str) -> bool:
    """A result without a digest was made before there were any, and says nothing."""
    return recorded is not None and recorded != today
