"""Pillow's resize for whole batches, equal to Pillow to the bit: cut, resize, shift and mirror in two weighted sums.

Pillow resizes along one axis, rounds to 8 bits, then along the other. Its weights are whole numbers of 22 bits; their
sums with pixels fit into int32, so that they are the same on any device and in any order. What lies outside of the
resized image is black, as in a padded crop.
"""

from collections.abc import Callable
from typing import NamedTuple

import PIL
import torch
from torch import Tensor

BITS = 22  # of Pillow's weights
# A side longer than this many times its result is resized by Pillow, on the host: that bounds memory and weights.
MAX_SHRINK = 2
# Where the height shrinks by more than twice as many pixels as the width; before, Pillow began with rows always.
HEIGHT_MAY_BE_FIRST = int(PIL.__version__.split(".")[0]) >= 13
SUPPORT = {"bilinear": 1, "bicubic": 2}  # pixels to each side, where nothing shrinks

INNER, OUTER = 4, 10  # where a row of `Cut` has its axes


class Axis(NamedTuple):
    """What happens along one axis: `length` pixels become `resized`, of which the result is a window.

    Pixels of which the window has nothing need not be at hand: `skipped` at the beginning, `dropped` at the end.
    """

    length: int
    resized: int
    first: int = 0  # place of the resized image that is the first of the result
    step: int = 1  # to the next one: -1 where the result is mirrored
    skipped: int = 0
    dropped: int = 0

    @property
    def kept(self) -> int:
        return self.length - self.skipped - self.dropped


class Cut(NamedTuple):
    """One image of a batch; a row of int64 (16,). The axis that Pillow resizes first is `inner`."""

    offset: int  # of its first pixel, in pixels
    inner_stride: int
    outer_stride: int
    is_turned: int  # its rows are the outer axis, unless it is
    inner: Axis
    outer: Axis

    @property
    def row(self) -> list[int]:
        return [*self[:4], *self.inner, *self.outer]


def cut(offset: int, width: int, rows: Axis, columns: Axis) -> Cut:
    """Of an image whose rows are `width` pixels apart."""
    shrinks_by, narrows_by = rows.length - rows.resized, columns.length - columns.resized
    if HEIGHT_MAY_BE_FIRST and shrinks_by > max(0, 2 * narrows_by):
        return Cut(offset, width, 1, 1, rows, columns)
    return Cut(offset, 1, width, 0, columns, rows)


class Taps(NamedTuple):
    """Which pixels each place of a result is made of, along the inner and the outer axis; (B, 2, out, taps)."""

    places: Tensor  # int32: along the inner axis how far away in the store, along the outer one the number of a row
    weights: Tensor  # int32


def resize_batch(pixels: Tensor, cuts: Tensor, taps: Taps, lines: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 (pixels, C), int64 (B, 16) -> uint8 (B, C, *size); `lines`: 0, 1, ..., all that an outer axis may keep.

    Taps are computed apart: compiled into the sums, they would be computed anew for each pixel.
    """
    offset, _, outer_stride = (cuts[:, key, None] for key in range(3))
    # Beyond what is kept of an image, its last row again, whose weights are 0.
    rows = torch.minimum(lines, _kept(cuts[:, OUTER:]) - 1)
    first = (offset + rows * outer_stride)[..., None]
    (across, down), (across_weights, down_weights) = (part.unbind(1) for part in taps)
    narrow = _weighted(lambda tap: pixels[first + across[:, None, :, tap]], across_weights[:, None, :, None])
    images = torch.arange(len(cuts), device=cuts.device)[:, None]
    small = _weighted(lambda tap: narrow[images, down[..., tap]], down_weights[:, :, None, None])
    upright = torch.where(cuts[:, 3, None, None, None] > 0, small.transpose(1, 2), small)
    return upright[:, : size[0], : size[1]].permute(0, 3, 1, 2).contiguous()


def _weighted(pixels_of: Callable[[int], Tensor], weights: Tensor) -> Tensor:
    """The sum of all taps' pixels with their weights (..., taps), rounded: from 0 to 255."""
    total = torch.full((), 1 << BITS - 1, dtype=torch.int32, device=weights.device)
    for tap in range(weights.shape[-1]):
        total = total + pixels_of(tap).int() * weights[..., tap]
    return (total >> BITS).clamp(0, 255).to(torch.uint8)


def _kept(axis: Tensor) -> Tensor:
    """Of axes (B, 6): (B, 1)."""
    return (axis[:, 0] - axis[:, 4] - axis[:, 5])[:, None]


def taps_of(cuts: Tensor, out: int, interpolation: str) -> Taps:
    """Of cuts (B, 16)."""
    places, weights = _taps(cuts[:, INNER:].reshape(-1, 6), out, interpolation)
    places, weights = (part.view(len(cuts), 2, out, -1) for part in (places, weights))
    strides = torch.stack([cuts[:, 1], torch.ones_like(cuts[:, 1])], dim=1)
    return Taps((places * strides[..., None, None]).int(), weights)


def _taps(axis: Tensor, out: int, interpolation: str) -> tuple[Tensor, Tensor]:
    """Places and weights of axes (N, 6), (N, out, taps)."""
    length, resized, start, step, skipped, _ = (axis[:, key, None] for key in range(6))
    place = start + step * torch.arange(out, device=axis.device)
    scale = length.double() / resized
    stretch = scale.clamp(min=1)
    support, centre = SUPPORT[interpolation] * stretch, (place + 0.5) * scale
    first = (centre - support + 0.5).long().clamp(min=0)
    last = torch.minimum((centre + support + 0.5).long(), length)
    taps = first[..., None] + torch.arange(2 * SUPPORT[interpolation] * MAX_SHRINK + 1, device=axis.device)
    is_used = (taps < last[..., None]) & ((place >= 0) & (place < resized))[..., None]
    found = FILTERS[interpolation]((taps - centre[..., None] + 0.5) / stretch[..., None]) * is_used
    total = found.sum(dim=-1, keepdim=True)
    found = found / torch.where(total == 0, 1, total) * (1 << BITS)
    weights = torch.trunc(found + torch.where(found < 0, -0.5, 0.5)).int()
    # Taps that are not used have weight 0, wherever they are.
    return torch.minimum((taps - skipped[..., None]).clamp(min=0), _kept(axis)[..., None] - 1), weights


def _bilinear(distance: Tensor) -> Tensor:
    return (1 - distance.abs()).clamp(min=0)


def _bicubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5."""
    x = distance.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def needed(length: int, resized: int, first: int, count: int) -> tuple[int, int]:
    """Where the pixels begin and end of which `count` places of a resized axis are made; with any filter."""
    scale = length / resized
    reach = max(SUPPORT.values()) * max(scale, 1) + 1  # a pixel more, so that no rounding matters
    begin, end = max(0, int(first * scale - reach)), min(length, int((first + count) * scale + reach) + 1)
    return (begin, end) if begin < end else (0, length)


FILTERS = {"bilinear": _bilinear, "bicubic": _bicubic}
