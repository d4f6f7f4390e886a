"""How fast a run would be: a rate that was measured, or one that is estimated from others by operations per image.

Best are runs of this very scale that have finished here; then whole training loops, measured on a GPU of this site
(`python benchmarks/loop.py`) or on an H200, which is part of the project; then bare steps
(`python benchmarks/step.py`), of which loops reach a share. A site without GPUs takes the share of its peak that a step
of the H200 sustains. A GPU does not pass small models faster than a host can ask it to, which is more often where steps
are recorded as CUDA graphs.
"""

import functools
import json
import math
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.config import CONFIGS, read_yaml
from pipeline.core.files import read_end
from pipeline.launch.resources import shape_of
from pipeline.plan.costs import Cost, costs_of
from pipeline.plan.device import matmul_gflop_per_s, trains_on_gpu
from pipeline.plan.loops import Loops, Pass, read_loops
from pipeline.results import RESULTS
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph

H200, H200_LOOPS = CONFIGS / "speed" / "h200.json", CONFIGS / "speed" / "h200_loop.json"
OWN_BENCHMARK, OWN_LOOPS = RESULTS / "benchmarks" / "step.json", RESULTS / "benchmarks" / "loop.json"
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
    """Speeds of the given runs, with their costs."""

    def __init__(self, graph: Graph, names: Iterable[str], site: Site) -> None:
        self.graph, self.site, self.on_gpu, names = graph, site, trains_on_gpu(site), [*names]
        self.measured = self._measure({self._kind(name) for name in names})
        self.costs: dict[str, Cost] = costs_of(graph, [*names, *self.measured])

    def of(self, name: str) -> Speed:
        """From finished runs of the same kind, else from the nearest step of a benchmark; scaled by operations."""
        gflop = self.costs[name]["gflop_per_image"]
        same = [other for other in self.measured if self._kind(other) == self._kind(name)]
        if same:
            rates = [self.measured[other].images_per_s * self.costs[other]["gflop_per_image"] for other in same]
            return Speed(statistics.median(rates) / gflop, self.measured[same[0]].source)
        return self._benchmarked(self.graph.runs[name].config, gflop)

    def _benchmarked(self, config: dict[str, Any], gflop: float) -> Speed:
        """On a GPU that of a loop, else of a step; a CPU sustains the same share of its matrix products as a GPU."""
        optim, method, arch = config["optim"], config["method"]["name"], config["model"]["arch"]
        if self.on_gpu:
            nodes = shape_of(optim["global_batch"] // optim["micro_batch"], self.site).nodes
            asked = Pass(method, arch, gflop, optim["micro_batch"], records_steps(self.site, nodes))
            return speed_on_gpu(asked)
        report = _benchmark(H200)
        here = matmul_gflop_per_s(self.site.threads)
        share = nearest_case(report.cases, method, arch, gflop).gflop_per_s / (1000 * report.matmul_tflops)
        source = f"the bare step on an {report.device}, scaled to the matrix products of this CPU ({here:.0f} GFLOP/s)"
        return Speed(share * here / gflop, source)

    def _kind(self, name: str) -> tuple[str, str, str]:
        """Runs of one kind differ in speed as they do in operations."""
        config = self.graph.runs[name].config
        return config["method"]["name"], config["model"]["name"], str(config["data"].get("image_size"))

    def _measure(self, kinds: set[tuple[str, str, str]]) -> dict[str, Speed]:
        """Finished runs of these kinds, on the kind of device that the site has."""
        found = {}
        for name in self.graph.runs:
            paths = self.graph.results.run(name)
            if self._kind(name) in kinds and paths.done.exists() and paths.timing.exists():
                facts = json.loads(paths.done.read_text())["provenance"]
                is_alike = (facts["device"] != "cpu") == self.on_gpu
                if is_alike and (rates := _last_rates(paths.timing)):
                    source = f"runs that finished here ({facts['device']})"
                    found[name] = Speed(statistics.median(rates) / facts["processes"], source)
        return found


def records_steps(site: Site, nodes: int) -> bool:
    """Whether a site's GPUs replay steps as CUDA graphs, as `engine/compute/graphs.py` decides it for most methods."""
    return site.graphs == "on" or (site.graphs == "auto" and site.compile and nodes == 1)


def speed_on_gpu(asked: Pass) -> Speed:
    """Measured, or estimated from the nearest; the source says which."""
    own = _benchmark(OWN_BENCHMARK)
    steps = own if own.cases else _benchmark(H200)
    loops = read_loops(OWN_LOOPS)
    if not loops.loops and read_loops(H200_LOOPS).device == steps.device:
        loops = read_loops(H200_LOOPS)
    if rate := loops.measured(asked):
        return Speed(rate, f"the loop as measured on an {loops.device}")
    if rate := loops.interpolated(asked):
        return Speed(rate, f"the loop on an {loops.device}, estimated by operations")
    return _from_steps(steps, loops, asked)


def _from_steps(steps: "Benchmark", loops: Loops, asked: Pass) -> Speed:
    case = nearest_case(steps.cases, asked.method, asked.arch, asked.gflop_per_image)
    source = f"the bare step on an {steps.device}, estimated by operations"
    rate = case.gflop_per_s / asked.gflop_per_image
    if share := loops.share_of_bare(asked):
        rate, source = share * rate, f"{source} and the {100 * share:.0f} % of it that loops reach"
    least = loops.least_pass_s(asked.is_recorded)
    if rate > asked.batch / least:
        return Speed(
            asked.batch / least, f"{source}, with at most {1 / least:.0f} passes a second, as many as a host starts"
        )
    return Speed(rate, source)


def _last_rates(path: Path) -> list[float]:
    lines = read_end(path, TAIL).split(b"\n")[1:-1]  # the first may be cut or a warm-up, the last unfinished
    return [json.loads(line)["images_per_s"] for line in lines]


class Benchmark(NamedTuple):
    """Steps that were measured on one device."""

    device: str
    matmul_tflops: float
    cases: list[Case]


@functools.cache
def _benchmark(path: Path) -> Benchmark:
    """What benchmarks/step.py wrote; without steps where it was not run on a GPU."""
    report = json.loads(path.read_text()) if path.exists() else {}
    steps = report["steps"] if report.get("precision") == "bf16" else []
    return Benchmark(report.get("device", ""), report.get("matmul_tflops", 0.0), [_case(step) for step in steps])


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
    return re.findall("^[a-z]*", arch)[0]
