"""Are the results what they were when they were made? In the words of `Freshness`, with the command that helps."""

from typing import NamedTuple

from pipeline.core.config import shown
from pipeline.freshness.outputs import data_file, drawings, files_of_targets, job_file, run_file
from pipeline.freshness.remake import Freshness
from pipeline.study.targets import command_for


class Problem(NamedTuple):
    """A result that is not what was recorded, and what to do."""

    file: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.found}; {self.remedy}"


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
    studies, reports = {*graph.studies()}, ("demo" if "demo" in targets else "headline", "all")
    found: dict[str, list[str]] = {}
    known = [name for name in targets if name != "headline" or name in reports]  # at scale demo it is the demo
    for name in sorted(known, key=lambda name: (name not in reports, name not in studies)):
        if all(map(freshness.was_made, targets[name])):
            for file in freshness.needed_for(targets[name]):
                if name in reports or file not in found:
                    found.setdefault(file, []).append(name)
    return {file: " ".join(names) for file, names in found.items()}
