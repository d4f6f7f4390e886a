"""Frames of a sound put together again, at places given for them."""

import torch
from torch import Tensor
from torch.nn import functional as F

ALMOST_NOTHING = 1e-12  # a window begins with 0, but the first sample has no other


def overlap_add(frames: Tensor, places: Tensor, step: int, count: int) -> Tensor:
    """(samples,) float64: frames at these of `count` places, the mean where several meet, silence where none is.

    frames (n, window), places (n,). Neighbours overlap: a sample is the mean of what the places that reach it say,
    weighted with Hann windows, so that frames in their own places give the sound back.
    """
    frames = frames.double()
    window = torch.hann_window(frames.shape[1], dtype=frames.dtype).clamp(min=ALMOST_NOTHING)
    met = torch.bincount(places, minlength=count).clamp(min=1)[:, None]
    heard = torch.zeros(count, frames.shape[1], dtype=frames.dtype).index_add_(0, places, frames) / met
    return _folded(heard * window, step) / _folded(window.expand(count, -1), step)


def _folded(frames: Tensor, step: int) -> Tensor:
    """Sums of frames (count, window) that begin `step` samples after each other."""
    count, window = frames.shape
    size = (1, (count - 1) * step + window)
    return F.fold(frames.T[None], size, kernel_size=(1, window), stride=(1, step)).flatten()
