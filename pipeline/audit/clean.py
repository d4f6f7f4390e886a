"""Finds and deletes runs and evaluations that no config names any more, and checkpoints of finished runs.

Never touched: results of current runs, a scale that Snakemake works on, and a run that may still be training.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.core.config import shown
from pipeline.core.files import is_held
from pipeline.freshness.outputs import run_file
from pipeline.freshness.remake import Freshness
from pipeline.launch.slurm import waiting_job
from pipeline.report.words import size
from pipeline.results import RunFolder
from pipeline.study.resolve.entries import Graph
from pipeline.tracking.workers import Workers

TITLES = {
    "abandoned": "runs that no config names any more",
    "evaluation": "evaluations that no config names any more",
    "checkpoint": "checkpoints of finished runs, which only training would read again",
}


@dataclass(frozen=True)
class Leftover:
    """Folders or files of one run that may be deleted."""

    kind: Literal["abandoned", "evaluation", "checkpoint"]
    label: str
    paths: list[Path]
    num_bytes: int


@dataclass
class Leftovers:
    items: list[Leftover] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is kept for now, and why

    def __str__(self) -> str:
        lines = [*self.notes]
        for kind, title in TITLES.items():
            found = [item for item in self.items if item.kind == kind]
            lines += [f"{title}: {size(_total(found))}"] if found else []
            lines += [f"  {size(item.num_bytes):>10}  {item.label}" for item in found]
        return "\n".join([*lines, f"{len(self.items)} items may be deleted: {size(_total(self.items))}"])


def _total(items: Iterable[Leftover]) -> int:
    return sum(item.num_bytes for item in items)


def find_leftovers(scales: Iterable[Freshness]) -> Leftovers:
    """Everything at these scales that may be deleted, with its size."""
    found = Leftovers()
    for freshness in scales:
        graph = freshness.graph
        if is_held(graph.results.workflow_lock):
            found.notes.append(f"scale {graph.scale} is skipped: Snakemake is working on it")
            continue
        for name in graph.results.run_names():
            _add_leftovers_of(freshness, graph.results.run(name), found)
        found.items += _old_evaluations(graph)
    return found


def _old_evaluations(graph: Graph) -> list[Leftover]:
    """Folders of results that no table asks for, and files of jobs that no longer exist."""
    folders = [each.folder for each in graph.results.evaluations() if each.name not in graph.evals]
    jobs = sorted(graph.results.folder.glob("evals/*.json"))
    old = [*folders, *(path for path in jobs if path.stem not in graph.eval_jobs)]
    return [_leftover("evaluation", shown(path), [path]) for path in old]


def _add_leftovers_of(freshness: Freshness, folder: RunFolder, found: Leftovers) -> None:
    if is_held(folder.lock):
        found.notes.append(f"{folder.name} is skipped: it is training")
    elif folder.name in freshness.graph.runs:
        checkpoints = sorted(folder.state.glob("*.pt"))
        if checkpoints and folder.finished.exists() and not freshness.why(run_file(folder.name)):
            found.items.append(_leftover("checkpoint", f"{shown(folder.state)}/*.pt", checkpoints))
    elif (job := waiting_job(folder)) and not Workers(freshness.results, freshness.site).have_left(folder):
        found.notes.append(f"{folder.name} is skipped: SLURM job {job} may still run; `scancel {job}` first")
    else:
        paths = [path for path in (folder.folder, folder.state) if path.exists()]
        found.items.append(_leftover("abandoned", " and ".join(map(shown, paths)), paths))


def _leftover(kind: Literal["abandoned", "evaluation", "checkpoint"], label: str, paths: list[Path]) -> Leftover:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return Leftover(kind, label, paths, sum(file.stat().st_size for file in files))


def delete(leftovers: Leftovers) -> None:
    for path in [path for item in leftovers.items for path in item.paths]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
