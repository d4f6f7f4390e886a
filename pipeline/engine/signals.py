"""SIGTERM and SIGINT become a request: the loop finishes its step, writes a checkpoint and leaves with CONTINUE_ME."""

import signal
from types import FrameType

CONTINUE_ME = 75  # EX_TEMPFAIL: not failed, not finished; run the same command again to continue


class Requeue(Exception):
    """Training stopped on request, after a checkpoint."""


class StopRequest:
    """Whether somebody asked this process to stop."""

    def __init__(self) -> None:
        self.is_raised = False

    def listen(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        return self

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.is_raised = True
