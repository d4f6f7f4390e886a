"""How fast a step would be: a sustained rate that was measured, divided by the operations per image.

Best are runs of this very scale that have finished here; then the benchmark of training steps on a GPU of this site
(`python benchmarks/step.py`); then the same benchmark of an H200, which is part of the project.
"""

import functools
import json
import math
import os
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import CONFIGS, read_yaml
from pipeline.plan.costs import Cost, costs_of
from pipeline.results import RESULTS
from pipeline.study.entries import Graph

H200 = CONFIGS / "speed" / "h200.json"
OWN_BENCHMARK = RESULTS / "benchmarks" / "step.json"
TAIL = 10_000  # bytes of a timing file: its last hundred lines or two


class Speed(NamedTuple):
    """Images a second of one process, and where that is known from."""

    images_per_s: float
    source: str


class Case(NamedTuple):
    """A step that was measured."""

    method: str
    arch: str
    gflop_per_image: float
    gflop_per_s: float


class Speeds:
    """Of the given runs, with their costs."""

    def __init__(self, graph: Graph, names: Iterable[str]) -> None:
        self.graph, names = graph, [*names]
        self.measured = self._measure({self._kind(name) for name in names})
        self.costs: dict[str, Cost] = costs_of(graph, [*names, *self.measured])

    def of(self, name: str) -> Speed:
        """From finished runs of the same kind, else from the nearest step of a benchmark; scaled by operations."""
        gflop = self.costs[name]["gflop_per_image"]
        same = [other for other in self.measured if self._kind(other) == self._kind(name)]
        if same:
            rates = [self.measured[other].images_per_s * self.costs[other]["gflop_per_image"] for other in same]
            return Speed(statistics.median(rates) / gflop, self.measured[same[0]].source)
        config = self.graph.runs[name].config
        device, cases = _cases(OWN_BENCHMARK)
        if not cases:
            device, cases = _cases(H200)
        case = nearest_case(cases, config["method"]["name"], config["model"]["arch"], gflop)
        return Speed(case.gflop_per_s / gflop, f"the benchmark of an {device}")

    def _kind(self, name: str) -> tuple[str, str, int]:
        """Runs of one kind differ in speed as they do in operations."""
        config = self.graph.runs[name].config
        return config["method"]["name"], config["model"]["name"], config["data"]["image_size"]

    def _measure(self, kinds: set[tuple[str, str, int]]) -> dict[str, Speed]:
        """Finished runs of these kinds."""
        found = {}
        for name in self.graph.runs:
            paths = self.graph.results.run(name)
            if self._kind(name) in kinds and paths.done.exists() and paths.timing.exists():
                facts = json.loads(paths.done.read_text())["provenance"]
                if rates := _last_rates(paths.timing):
                    source = f"runs that finished here ({facts['device']})"
                    found[name] = Speed(statistics.median(rates) / facts["processes"], source)
        return found


def _last_rates(path: Path) -> list[float]:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().split(b"\n")[1:-1]  # the first may be cut or a warm-up, the last unfinished
    return [json.loads(line)["images_per_s"] for line in lines]


@functools.cache
def _cases(path: Path) -> tuple[str, list[Case]]:
    """The device of a benchmark and its steps; none where it was not made on a GPU."""
    report = json.loads(path.read_text()) if path.exists() else {"device": "", "precision": "", "steps": []}
    is_gpu = report["precision"] == "bf16"
    return report["device"], [_case(step) for step in report["steps"] if is_gpu]


def _case(step: dict[str, Any]) -> Case:
    arch = read_yaml(CONFIGS / "model" / f"{step['model']}.yaml")["model"]["arch"]
    gflop = step["gflop_per_image"]
    return Case(step["method"], arch, gflop, gflop * step["images_per_s"])


def nearest_case(cases: list[Case], method: str, arch: str, gflop: float) -> Case:
    """The measured step that is most like this one.

    A GPU sustains less of its peak on small steps, so another size counts by its octaves, like another method (then
    the supervised step) or architecture; another family counts for more than all of them.
    """

    def distance(case: Case) -> float:
        family = _letters(case.arch) != _letters(arch)
        return (
            abs(math.log2(case.gflop_per_image / gflop)) + (case.method != method) + (case.arch != arch) + 10 * family
        )

    return min((case for case in cases if case.method in (method, "supervised")), key=distance)


def _letters(arch: str) -> str:
    """resnet of resnet50, vit of vit_base_patch16_224."""
    return re.match("[a-z]*", arch)[0]
