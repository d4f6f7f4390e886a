"""Which code makes a run or an evaluation: also what no import leads to, because a config names it.

A registry finds methods, tasks, kinds of data and evaluations by their names, and the training loop calls them all.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline.core.registry import EVALS, KINDS, METHODS, TASKS, Registry
from pipeline.core.source import PACKAGE, digest_behind

# What is handed over as an argument is found by no import of those who use it: processes, the config of a run.
HANDED_OVER = (PACKAGE / "engine/parallel/distributed.py", PACKAGE / "engine/run.py")
TRAINING = (PACKAGE / "engine/loop.py", PACKAGE / "engine/train.py", *HANDED_OVER)
EVALUATING = (PACKAGE / "evals/evaluate.py", *HANDED_OVER)


class PluginNames(NamedTuple):
    """What the config of a run names."""

    method: str
    task: str
    kind: str  # of its data


def code_of_run(run: PluginNames) -> str:
    """A digest of the code that trains a run."""
    return _digest(frozenset({*TRAINING, *_files(run)}))


def code_of_evaluation(name: str, subjects: Iterable[PluginNames], kinds: Iterable[str]) -> str:
    """A digest of the code that evaluates subjects on data of these kinds."""
    files = [*EVALUATING, *_file(EVALS, name), *(path for subject in subjects for path in _files(subject))]
    return _digest(frozenset({*files, *(path for kind in kinds for path in _file(KINDS, kind))}))


def _files(run: PluginNames) -> list[Path]:
    return [*_file(METHODS, run.method), *_file(TASKS, run.task), *_file(KINDS, run.kind)]


def _file(registry: Registry, name: str) -> list[Path]:
    """None for what a test or a notebook has registered."""
    return [path] if (path := _all_files(registry).get(name)) else []


@functools.cache
def _all_files(registry: Registry) -> dict[str, Path]:
    return registry.files()


@functools.cache
def _digest(files: frozenset[Path]) -> str:
    return digest_behind(*files)
