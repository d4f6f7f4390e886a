"""Pixels that loader workers hand over in memory that all processes have mapped."""

import numpy as np
import pytest
import torch

from pipeline.data.images.gpu import handover
from pipeline.data.images.gpu.deferred import DeferredView
from pipeline.data.loader import BATCHES_AHEAD, BatchPlan, train_loader

PLAN = BatchPlan(seed=0, num_images=40, repeats=1, epochs=4, global_batch=4, num_micro=1)


class Numbered(DeferredView):
    """Of each number 50 pixels and as many more, all of that value."""

    def __init__(self, limit=10_000):
        self.limit = limit

    def __call__(self, number):
        return np.full((50 + number, 3), number, dtype=np.uint8), number

    def num_bytes(self, batch):
        return self.limit

    def collate(self, samples):
        pixels, numbers = zip(*samples, strict=True)
        return handover.concatenate(pixels), torch.tensor(numbers)


def values_of(numbers):
    """Of their pixels, in each channel."""
    return [number for number in numbers.tolist() for _ in range(50 + number)]


@pytest.fixture
def wanted(monkeypatch):
    """Also on a machine with a GPU, where batches would be copied on into pinned memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(handover, "is_wanted", lambda: True)


def batches(view, workers, plan=PLAN):
    """Each is copied before the next one is asked for, as a pinning thread or a device does."""
    for pixels, numbers in train_loader(plan, list(range(40)), view, 0, 0, 1, workers, view.collate, view.handover):
        lies_there = any(
            memory.bytes.ctypes.data <= pixels.data_ptr() < memory.bytes.ctypes.data + memory.bytes.nbytes
            for memory in handover._memories.values()
        )
        yield pixels.clone(), numbers, lies_there


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_handed_over__any_number_of_workers__are_the_batches_of_one_process(wanted, workers):
    expected = list(batches(Numbered(), 0))
    found = list(batches(Numbered(), workers))
    assert len(found) == len(expected) == 40 > workers * (BATCHES_AHEAD + 1)
    for (pixels, numbers, lies_there), (same, same_numbers, is_elsewhere) in zip(found, expected, strict=True):
        assert torch.equal(pixels, same) and torch.equal(numbers, same_numbers)
        assert lies_there and not is_elsewhere


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies into pinned memory")
def test_handed_over__to_a_gpu__is_copied_before_its_place_is_filled_again():
    expected = [numbers for _, numbers, _ in batches(Numbered(), 0)]
    view = Numbered()
    loader = train_loader(PLAN, list(range(40)), view, 0, 0, 1, 2, view.collate, view.handover)
    found = list(loader)  # none is used before all have come
    assert len(found) == len(expected)
    for (pixels, numbers), same in zip(found, expected, strict=True):
        assert pixels.is_pinned() and torch.equal(numbers, same)
        assert pixels[:, 0].tolist() == values_of(same)


@pytest.mark.slow
def test_handed_over__more_than_fits__is_sent_as_any_tensor(wanted):
    for pixels, numbers, lies_there in batches(Numbered(limit=100), 1):
        assert not lies_there
        assert pixels[:, 0].tolist() == values_of(numbers)


def test_handover__without_a_gpu_or_workers_or_memory__is_none(monkeypatch, wanted, caplog):
    assert handover.handover_for(2, 4, 1000) is not None
    assert handover.handover_for(0, 4, 1000) is None
    assert handover.handover_for(2, 4, 2**45) is None
    assert "loader workers hand over pixels one batch at a time, which is slower" in caplog.text
    monkeypatch.setattr(handover, "is_wanted", lambda: False)
    assert handover.handover_for(2, 4, 1000) is None


@pytest.mark.slow
def test_handed_over__second_pass_begun_within_the_first__leaves_its_batches_unchanged(wanted):
    view = Numbered()
    loader = train_loader(PLAN, list(range(40)), view, 0, 0, 1, 1, view.collate, view.handover)
    first = iter(loader)
    for _ in range(BATCHES_AHEAD + 2):
        next(first)
    second = iter(loader)
    next(second), next(second)  # the second one would lie where the first pass has its next batch
    pixels, numbers = next(first)
    assert pixels[:, 0].tolist() == values_of(numbers)


@pytest.mark.slow
def test_memory__of_a_pass_that_is_over__is_given_back(wanted):
    view = Numbered()
    loader = train_loader(PLAN, list(range(40)), view, 0, 0, 1, 2, view.collate, view.handover)
    for _ in range(2):
        assert not handover._memories
        for _ in loader:
            assert len(handover._memories) == 1
    assert not handover._memories
