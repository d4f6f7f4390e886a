"""How long processes wait for each other where their gradients meet, told apart from how long these are sent.

All leave a meeting together, so whoever comes last spends the least time in it: that is sending, and what the others
spend beyond it is waiting. Where DDP sends gradients during the backward pass there are no such meetings.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.engine.parallel.distributed import World


class Meetings:
    """Of this process, since the last reading; on a GPU they are timed there, and nothing waits for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks: list[tuple[Any, Any]] = []

    @contextmanager
    def attended(self) -> Iterator[None]:
        if self.world.size == 1:
            yield
            return
        came = self._mark()
        yield
        self.marks.append((came, self._mark()))

    def read(self, elapsed_s: float) -> dict[str, float]:
        """Shares of the time: of sending, and of waiting for others as processes do on average.

        Nothing where there were no meetings. All processes must ask at the same step, after they have waited for the
        device.
        """
        seconds, self.marks = [self._seconds(*marks) for marks in self.marks], []
        if not seconds:
            return {}
        everyone = self.world.gather(seconds)
        sending = sum(min(meeting) for meeting in zip(*everyone, strict=True))
        waiting = statistics.mean(map(sum, everyone)) - sending
        return {"sending": round(sending / elapsed_s, 4), "peer_wait": round(waiting / elapsed_s, 4)}

    def _mark(self) -> Any:
        if self.world.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, came: Any, left: Any) -> float:
        return came.elapsed_time(left) / 1000 if self.world.device.type == "cuda" else left - came
