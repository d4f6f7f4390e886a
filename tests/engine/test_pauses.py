"""When processes ask each other whether to save or to stop: often enough for a warning, and all at the same step."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from pipeline.engine.parallel.distributed import World
from pipeline.engine.parallel.pauses import Pause, Pauses
from pipeline.engine.signals import StopRequest

NOTHING = (False, False)


@dataclass(frozen=True)
class OneOfTwo(World):
    """This process and one that gives set answers; steps after which they asked each other."""

    peer: tuple = NOTHING
    asked: list = field(default_factory=list)

    def gather(self, value):
        self.asked.append(value)
        answers = [value, (*self.peer, 1.0)]
        return answers if self.is_main else answers[::-1]


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def pauses_of(rank=0, peer=NOTHING, stop=None, checkpoint_s=300.0, log_every=50):
    world = OneOfTwo(rank, 2, torch.device("cpu"), peer)
    return Pauses(world, stop or StopRequest(), checkpoint_s, log_every, 0)


@pytest.mark.parametrize(("step_s", "longest"), [(30.0, 1), (1.9, 2), (0.2, 11), (0.001, 50)])
def test_pauses__steps_of_any_length__are_at_most_a_step_and_two_seconds_apart(clock, step_s, longest):
    pauses, asked_after = pauses_of(), []
    for step in range(1, 201):
        clock[0] += step_s
        before = len(pauses.world.asked)
        pauses.after(step)
        asked_after += [step] * (len(pauses.world.asked) - before)
    gaps = [later - earlier for earlier, later in pairwise(asked_after)]
    assert asked_after[0] == 1 and {*gaps} <= {longest, longest - 1} - {0}


@pytest.mark.parametrize("rank", [0, 1])
def test_pauses__peer_or_this_one_asked_to_stop__all_save_and_stop(clock, rank):
    told = StopRequest()
    told.why = "the time limit is near"
    clock[0] = 1.0
    assert pauses_of(rank, peer=(True, False)).after(1) == Pause(True, True)
    assert pauses_of(rank, stop=told).after(1) == Pause(True, True)
    assert pauses_of(rank).after(1) == Pause(False, False)


def test_pauses__checkpoint_due__is_said_by_the_clock_of_the_main_process(clock):
    main, other = pauses_of(checkpoint_s=5), pauses_of(rank=1, checkpoint_s=5)
    clock[0] = 6.0
    assert main.after(1) == Pause(True, False)
    assert other.after(1) == Pause(False, False)
    assert pauses_of(rank=1, peer=(False, True)).after(1) == Pause(True, False)
    main.saved()
    clock[0] = 10.0
    assert main.after(2) == Pause(False, False)
