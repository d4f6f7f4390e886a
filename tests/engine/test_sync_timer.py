"""Sending and waiting, split by how long each process spends in an all-reduce."""

import torch
from peers import peers

from pipeline.engine.parallel.distributed import World
from pipeline.engine.parallel.sync_timer import GradientSyncTimer


def test_sync_timer__two_processes__the_last_to_come_only_sends_and_the_other_waits(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    first, second = (GradientSyncTimer(world) for world in peers(2))
    # The second one is late by 3 s, then the first one by 1 s; sending takes 1 s and 2 s.
    for each, spent in ((first, (4.0, 2.0)), (second, (1.0, 3.0))):
        for seconds in spent:
            with each.timed():
                now += seconds
            now += 5.0  # what lies between counts for nothing
    first.read(20.0)
    assert second.read(20.0) == {"sending": (1 + 2) / 20, "peer_wait": (3 + 1) / 2 / 20}
    assert second.read(20.0) == {}


def test_sync_timer__one_process__times_nothing():
    timer = GradientSyncTimer(World(0, 1, torch.device("cpu")))
    with timer.timed():
        pass
    assert timer.read(1.0) == {}
