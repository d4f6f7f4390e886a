"""Signals become a request: the loop finishes its step, writes a checkpoint and leaves with CONTINUE_ME."""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

CONTINUE_ME = 75  # EX_TEMPFAIL: not failed, not finished; run the same command again to continue
# SIGUSR2 is what SLURM sends before a time limit, as submitit asks it to.
REASONS: dict[int, str] = {
    signal.SIGTERM: "asked to stop",
    signal.SIGINT: "interrupted",
    signal.SIGUSR2: "the time limit is near",
}
LOOK_S = 2.0
T = TypeVar("T")


class Requeue(Exception):
    """Training stopped on request, after a checkpoint."""


class CutShort(Exception):
    """Somebody asked to stop in the middle of a validation, of which nothing is kept."""


class StopRequest:
    """Whether somebody asked this process to stop, and why."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.why = ""
        self._reason: tuple[str, Callable[[], bool]] | None = None
        self._looked_at = 0.0

    def listen(self) -> "StopRequest":
        for number in REASONS:
            signal.signal(number, self._raise)
        return self

    def also_when(self, reason: str, holds: Callable[[], bool]) -> None:
        """Stop also when this is found true; it is looked at every few seconds."""
        self._reason = reason, holds

    @property
    def is_raised(self) -> bool:
        if not self.why and self._reason and time.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = time.monotonic()
            reason, holds = self._reason
            self.why = reason if holds() else ""
        return bool(self.why)

    def wait_for(self, look: Callable[[], T], every_s: float, tell: Callable[[], None] = lambda: None) -> T | None:
        """Look again and again until something is found; None if somebody asks to stop first.

        `tell` is called before the first wait, to say what for.
        """
        if found := look():
            return found
        tell()
        while not self.is_raised:
            time.sleep(every_s)
            if found := look():
                return found
        return None

    def _raise(self, number: int, frame: FrameType | None) -> None:
        # A time limit is followed by SIGTERM, and a requeue by the job itself too: the first one is the reason.
        self.signal = self.signal or number
        self.why = self.why or REASONS[number]


STOP = StopRequest()  # signals reach the process, so there is one
