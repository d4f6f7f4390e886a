"""When a training pauses to write a checkpoint, or to stop: after the same step in all of its processes.

One process asks itself after every step. Several ask each other every few seconds, and at the latest for a
line of the log: no step waits for the flags of others, and a warning before a time limit is noticed in time.
"""

import time
from typing import NamedTuple

from pipeline.engine.parallel.distributed import World
from pipeline.engine.signals import LOOK_S, StopRequest


class Pause(NamedTuple):
    must_save: bool
    must_stop: bool


class Pauses:
    """Decides for all processes; the clock is that of the main one."""

    def __init__(self, world: World, stop: StopRequest, checkpoint_s: float, log_every: int, step: int) -> None:
        self.world, self.stop, self.checkpoint_s, self.log_every = world, stop, checkpoint_s, log_every
        self.saved_at = self.asked_at = time.monotonic()
        self.asked_after, self.next_step = step, step + 1

    def saved(self) -> None:
        self.saved_at = time.monotonic()

    def after(self, step: int) -> Pause:
        """What to do after this step; all processes must ask after every one."""
        if self.world.size > 1 and step < self.next_step:
            return Pause(False, False)
        now = time.monotonic()
        step_s = (now - self.asked_at) / (step - self.asked_after)
        answers = self.world.gather((self.stop.is_raised, now - self.saved_at > self.checkpoint_s, step_s))
        must_stop, (_, is_due, step_s) = any(is_raised for is_raised, _, _ in answers), answers[0]
        self.asked_at, self.asked_after = now, step
        self.next_step = step + min(self.log_every, int(LOOK_S / max(step_s, 1e-6)) + 1)
        return Pause(must_stop or is_due, must_stop)
