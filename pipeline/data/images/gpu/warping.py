"""Pillow's affine transform for whole batches: bicubic or bilinear, in float64, in Pillow's order of operations."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sources(matrices: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """x and y of the point that each pixel's centre comes from; float64 (B, 6) -> (B, H, W).

    Not to be compiled: a product and a sum that are rounded once would choose other pixels than Pillow.
    """
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)
    across = torch.arange(width, device=matrices.device, dtype=torch.float64) + 0.5
    down = (torch.arange(height, device=matrices.device, dtype=torch.float64) + 0.5)[:, None]
    return a * across + b * down + c, d * across + e * down + f


def warp_batch(images: Tensor, x: Tensor, y: Tensor, interpolation: str, fill: Tensor) -> Tensor:
    """uint8 (B, C, H, W), `sources`, uint8 (C,) -> uint8: what comes from outside of an image is `fill`."""
    height, width = images.shape[2:]
    is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    column, row = (x - 0.5).floor(), (y - 0.5).floor()
    around, blend = (range(-1, 3), _cubic) if interpolation == "bicubic" else (range(2), _linear)
    columns = [(column.int() + step).clamp(0, width - 1) for step in around]
    rows = [(row.int() + step).clamp(0, height - 1) * width for step in around]

    def pixels_at(places: Tensor) -> Tensor:
        """The same place of all channels. Differences of pixels are whole numbers, and so small a type is fastest."""
        places = places.long().flatten(1)[:, None].expand(-1, images.shape[1], -1)
        return images.flatten(2).gather(2, places).view_as(images).short()

    # Pixel by pixel in place of a tensor of all 16, so that a compiled function keeps none of them.
    right, below = (x - 0.5 - column)[:, None], (y - 0.5 - row)[:, None]
    across = [blend([pixels_at(begin + place) for place in columns], right) for begin in rows]
    warped = blend(across, below).clamp(0, 255).to(torch.uint8)  # Pillow cuts fractions off
    return torch.where(is_inside[:, None], warped, fill[:, None, None])


def _cubic(taps: Sequence[Tensor], share: Tensor) -> Tensor:
    first, second, third, fourth = taps
    linear = third - first
    square = 2 * (first - second) + third - fourth
    cube = second - first - third + fourth
    return second + share * (linear + share * (square + share * cube))


def _linear(taps: Sequence[Tensor], share: Tensor) -> Tensor:
    first, second = taps
    return first + (second - first) * share
