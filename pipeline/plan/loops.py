"""Rates of the whole training loop, as `python benchmarks/loop.py` measured them: loader, draws, step, bookkeeping.

A run whose method, architecture, micro-batch and operations were measured has that rate. Another one of the same method
and architecture is put between its neighbours by the operations of a pass (those of an image times the micro-batch):
on the line through the two, and in proportion beyond them. For other runs the loops say what share of a bare step they
reach, and how short a pass can be, whatever the model: the host is not faster.
"""

import functools
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.config import CONFIGS, read_yaml

LEAST_PASS_S = 0.01  # of any micro-batch, until a shorter one is measured: half of the shortest bare step of the H200
ALIKE = 0.05  # operations of an image may differ by this, as heads of other sizes do


class Pass(NamedTuple):
    """One micro-batch of a run: what its time depends on."""

    method: str
    arch: str
    gflop_per_image: float
    batch: int
    is_recorded: bool  # as a CUDA graph

    @property
    def gflop(self) -> float:
        return self.gflop_per_image * self.batch


class Loop(NamedTuple):
    """A training loop that was measured, and its step alone."""

    done: Pass
    images_per_s: float
    bare_images_per_s: float

    @property
    def pass_s(self) -> float:
        return self.done.batch / self.images_per_s


class Loops(NamedTuple):
    """Those of one device."""

    device: str
    loops: list[Loop]

    def measured(self, asked: Pass) -> float | None:
        """Images a second of a loop like this one; scaled by the few operations in which they differ."""
        for loop in self._same(asked):
            ratio = loop.done.gflop_per_image / asked.gflop_per_image
            if loop.done.batch == asked.batch and abs(ratio - 1) < ALIKE:
                return loop.images_per_s * ratio
        return None

    def interpolated(self, asked: Pass) -> float | None:
        """Images a second by operations, from loops of the same method and architecture."""
        points = sorted((loop.done.gflop, loop.pass_s) for loop in self._same(asked))
        if not points:
            return None
        return asked.batch / max(_pass_s(points, asked.gflop), self.least_pass_s(asked.is_recorded))

    def share_of_bare(self, asked: Pass) -> float | None:
        """What the loops of this method reach of their bare steps, or those of any method: the median."""
        found = [loop for loop in self.loops if loop.done.is_recorded == asked.is_recorded]
        same = [loop for loop in found if loop.done.method == asked.method] or found
        shares = sorted(min(1.0, loop.images_per_s / loop.bare_images_per_s) for loop in same)
        return shares[len(shares) // 2] if shares else None

    def least_pass_s(self, is_recorded: bool) -> float:
        """No pass is known to be shorter."""
        known = [loop.pass_s for loop in self.loops if loop.done.is_recorded == is_recorded]
        return min([LEAST_PASS_S, *known])

    def _same(self, asked: Pass) -> Iterable[Loop]:
        kind = asked.method, asked.arch, asked.is_recorded
        return (loop for loop in self.loops if (loop.done.method, loop.done.arch, loop.done.is_recorded) == kind)


def _pass_s(points: list[tuple[float, float]], gflop: float) -> float:
    """Seconds of a pass of so many operations; points are (operations, seconds) in order."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= gflop <= x1 and x0 < x1:
            return y0 + (y1 - y0) * (gflop - x0) / (x1 - x0)
    x, y = points[0] if gflop < points[0][0] else points[-1]
    return y * gflop / x


@functools.cache
def read_loops(path: Path) -> Loops:
    """What benchmarks/loop.py wrote; without loops where it was not run on a GPU."""
    report = json.loads(path.read_text()) if path.exists() else {}
    loops = report["loops"] if report.get("precision") == "bf16" else []
    return Loops(report.get("device", ""), [_loop(found) for found in loops])


def _loop(found: dict[str, Any]) -> Loop:
    arch = read_yaml(CONFIGS / "model" / f"{found['model']}.yaml")["model"]["arch"]
    done = Pass(found["name"], arch, found["gflop_per_image"], found["batch"], found["recorded"])
    return Loop(done, found["loop_images_per_s"], found["bare_images_per_s"])
