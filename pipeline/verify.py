"""Are the results what they were when they were made, and would today's code make them again?

`problems_of` says what is wrong in the words of `Freshness`, and which command puts it right. `made_by_other_code`
reads the digests of source that each result carries.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.config import shown
from pipeline.errors import DataError
from pipeline.freshness import Freshness, data_file, drawings, files_of_targets, job_file, run_file
from pipeline.records import EvalResult, Kind, TrainRecord, read_record
from pipeline.study.entries import Graph
from pipeline.study.targets import command_for


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
        if _differs(run.provenance.get("code"), graph.code_of_run(name)):
            other["method", graph.runs[name].method].append(name)
    for name, entry in graph.evals.items():
        evaluation, found = entry.config["name"], _intact(graph.results.evaluation(name).result, EvalResult)
        if found and _differs(found.provenance.get("code"), graph.code_of_evaluation(name)):
            other["evaluation", evaluation].append(name)
    return [OtherCode(kind, name, results) for (kind, name), results in sorted(other.items())]


def problems_of(freshness: Freshness) -> list[Problem]:
    """Everything of this scale that is not as it was recorded, or was made from something else than there is now."""
    graph = freshness.graph
    every = [*drawings(graph), *map(job_file, graph.eval_jobs), *map(run_file, graph.trained_runs())]
    found = freshness.problems([*every, *map(data_file, graph.data)])
    remedies = _targets_by_file(freshness) if found else {}
    problems = []
    for file, why in found.items():
        path = shown(graph.results.folder / file)
        command = command_for(remedies.get(file, path), graph.scale)
        problems.append(Problem(path, why, f"`{command}` makes it again"))
    return problems


def _targets_by_file(freshness: Freshness) -> dict[str, str]:
    """File -> the targets that make it again with all that was drawn from it: the reports, or the largest there is."""
    graph, targets = freshness.graph, files_of_targets(freshness.graph)
    studies, reports = {*graph.studies()}, ("demo", "all")
    found: dict[str, list[str]] = {}
    for name in sorted(targets, key=lambda name: (name not in reports, name not in studies)):
        if all(map(freshness.was_made, targets[name])):
            for file in freshness.needed_for(targets[name]):
                if name in reports or file not in found:
                    found.setdefault(file, []).append(name)
    return {file: " ".join(names) for file, names in found.items()}


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
