"""Pillow's resize for whole batches: cut, resize, shift and mirror are two matrix products, equal to Pillow to the bit.

Pillow resizes along one axis, rounds to 8 bits, then along the other. Its weights are whole numbers of 22 bits, here in
two halves: float32 and float16 hold such halves, pixels and their sums exactly, on any device and in any order, with
TF32 or without. What lies outside of the resized image is black, as in a padded crop.
"""

from typing import NamedTuple

import PIL
import torch
from torch import Tensor

BITS, HALF_BITS = 22, 12  # of Pillow's weights, and of their lower half
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


def resize_batch(
    pixels: Tensor, cuts: Tensor, extents: tuple[int, int], size: tuple[int, int], interpolation: str
) -> Tensor:
    """uint8 (pixels, C), int64 (B, 16) -> uint8 (B, C, *size); `extents`: the most that outer and inner axes keep."""
    blocks, side = _gathered(pixels, cuts, extents), max(size)
    count, height, channels, width = blocks.shape
    places, halves = _taps(torch.cat([cuts[:, OUTER:], cuts[:, INNER:OUTER]]), side, interpolation)
    down = _dense(places[:count], halves[:count], height).flatten(1, 2)
    across = _dense(places[count:], halves[count:], width).flatten(1, 2)
    narrow = _product(blocks.reshape(count, height * channels, width), across.mT)
    narrow = _rounded(narrow.view(count, height * channels, 2, side), 2)
    small = _product(down, narrow.view(count, height, channels * side))
    small = _rounded(small.view(count, 2, side, channels, side), 1).permute(0, 2, 1, 3)
    upright = torch.where(cuts[:, 3, None, None, None] > 0, small.mT, small)
    return upright[..., : size[0], : size[1]].to(torch.uint8).contiguous()


def _gathered(pixels: Tensor, cuts: Tensor, extents: tuple[int, int]) -> Tensor:
    """uint8 (B, outer, C, inner); beyond what is kept of an image its last pixels, whose weights are 0."""
    offset, inner_stride, outer_stride = (cuts[:, key, None] for key in range(3))
    down, across = (torch.arange(extent, device=cuts.device) for extent in extents)
    down = torch.minimum(down, _kept(cuts[:, OUTER:]) - 1) * outer_stride + offset
    across = torch.minimum(across, _kept(cuts[:, INNER:OUTER]) - 1) * inner_stride
    return pixels[down[:, :, None] + across[:, None]].transpose(2, 3)


def _kept(axis: Tensor) -> Tensor:
    """Of axes (B, 6): (B, 1)."""
    return (axis[:, 0] - axis[:, 4] - axis[:, 5])[:, None]


def weights(axis: Tensor, out: int, length: int, interpolation: str) -> Tensor:
    """Of an axis (B, 6): float32 (B, 2, out, length), the upper and the lower halves of Pillow's weights."""
    return _dense(*_taps(axis, out, interpolation), length)


def _dense(places: Tensor, halves: Tensor, length: int) -> Tensor:
    """Taps (B, 1, out, taps) with their weights (B, 2, out, taps) -> a matrix of weights for each image."""
    dense = halves.new_zeros(*halves.shape[:3], length)
    # Taps beyond the ends have weight 0, wherever they are added.
    return dense.scatter_add_(3, places.clamp(0, length - 1).expand_as(halves), halves)


def _taps(axis: Tensor, out: int, interpolation: str) -> tuple[Tensor, Tensor]:
    """Which pixels each place of the result is made of (B, 1, out, taps), and halves of their weights (B, 2, ...)."""
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
    fixed = torch.trunc(found + torch.where(found < 0, -0.5, 0.5)).int()
    upper = (fixed + (1 << HALF_BITS - 1)) >> HALF_BITS
    return (taps - skipped[..., None])[:, None], torch.stack([upper, fixed - (upper << HALF_BITS)], dim=1).float()


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


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Of whole numbers below 2 ** 11, in float32."""
    if left.is_cuda:
        return torch.bmm(left.half(), right.half(), out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def _rounded(sums: Tensor, halves: int) -> Tensor:
    """Both halves of a sum, along one dimension -> the pixel, from 0 to 255, in int32."""
    upper, lower = sums.int().unbind(halves)
    both = torch.add(lower, upper, alpha=1 << HALF_BITS)
    return both.add_(1 << BITS - 1).bitwise_right_shift_(BITS).clamp_(0, 255)
