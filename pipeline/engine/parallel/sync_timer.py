"""Time that processes spend in all-reduces of gradients, split into sending and waiting for each other.

All processes leave an all-reduce together, so the one that comes last spends the least time in it: that is sending, and
what the others spend beyond it is waiting. DDP sends gradients during the backward pass and is not timed.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.engine.parallel.distributed import World


class GradientSyncTimer:
    """Times this process's all-reduces since the last reading; on a GPU they are timed there, and nothing waits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks: list[tuple[Any, Any]] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        if self.world.size == 1:
            yield
            return
        begin = self._mark()
        yield
        self.marks.append((begin, self._mark()))

    def read(self, elapsed_s: float) -> dict[str, float]:
        """Shares of the time: of sending, and of waiting for others as processes do on average.

        Empty if nothing was timed. All processes must call this at the same step, after they have waited for the
        device.
        """
        seconds, self.marks = [self._seconds(*marks) for marks in self.marks], []
        if not seconds:
            return {}
        everyone = self.world.gather(seconds)
        sending = sum(min(each) for each in zip(*everyone, strict=True))
        waiting = statistics.mean(map(sum, everyone)) - sending
        return {"sending": round(sending / elapsed_s, 4), "peer_wait": round(waiting / elapsed_s, 4)}

    def _mark(self) -> Any:
        if self.world.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1000 if self.world.device.type == "cuda" else end - begin
