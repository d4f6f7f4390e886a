"""Frames of a sound put together: against sums written out sample by sample."""

import math

import pytest
import torch

from pipeline.evals.positions.overlap import overlap_add

WINDOW, STEP, COUNT = 480, 160, 98
LENGTH = (COUNT - 1) * STEP + WINDOW


def clip(seed=0):
    """int16 samples as float."""
    return torch.randint(-30_000, 30_000, (LENGTH,), generator=torch.Generator().manual_seed(seed)).double()


def test_overlap_add__frames_in_their_own_places__give_the_clip_back():
    frames = clip().unfold(0, WINDOW, STEP)
    found = overlap_add(frames, torch.arange(COUNT), STEP, COUNT)
    assert found.shape == (LENGTH,)
    assert (found - clip()).abs().max() < 1e-6


@pytest.mark.parametrize("places", [[2, 0, 1], [1, 1, 1], [0, 2, 2], [0, 0, 0]], ids=str)
def test_overlap_add__any_places__is_the_weighted_mean_of_the_places_that_reach_a_sample(places):
    window, step, count = 8, 3, 3
    frames = torch.randn(count, window, generator=torch.Generator().manual_seed(1)).double()
    found = overlap_add(frames, torch.tensor(places), step, count)
    for sample in range(1, (count - 1) * step + window):
        reached = [place for place in range(count) if 0 <= sample - place * step < window]
        total = weights = 0.0
        for place in reached:
            at = sample - place * step
            weight = math.sin(math.pi * at / window) ** 2
            here = [frames[number, at].item() for number, slot in enumerate(places) if slot == place]
            total += weight * (sum(here) / len(here) if here else 0.0)
            weights += weight
        assert found[sample].item() == pytest.approx(total / weights, abs=1e-9)


def test_overlap_add__places_without_a_frame__are_silent():
    found = overlap_add(torch.full((2, WINDOW), 9.0), torch.tensor([0, 97]), STEP, COUNT)
    assert found[WINDOW:-WINDOW].abs().max() == 0
    for edge in (found[:STEP], found[-STEP:]):
        torch.testing.assert_close(edge, torch.full_like(edge, 9.0))
