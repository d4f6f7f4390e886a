"""Waiting for others and sending, told apart from how long each process spends in a meeting."""

import torch
from peers import peers

from pipeline.engine.parallel.distributed import World
from pipeline.engine.parallel.meetings import Meetings


def test_meetings__of_two__the_last_to_come_only_sends_and_the_other_waits(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    first, second = (Meetings(world) for world in peers(2))
    # The second one is late by 3 s, then the first one by 1 s; sending takes 1 s and 2 s.
    for each, spent in ((first, (4.0, 2.0)), (second, (1.0, 3.0))):
        for seconds in spent:
            with each.attended():
                now += seconds
            now += 5.0  # what lies between counts for nothing
    first.read(20.0)
    assert second.read(20.0) == {"sending": (1 + 2) / 20, "peer_wait": (3 + 1) / 2 / 20}
    assert second.read(20.0) == {}


def test_meetings__of_one_process__are_none():
    alone = Meetings(World(0, 1, torch.device("cpu")))
    with alone.attended():
        pass
    assert alone.read(1.0) == {}
