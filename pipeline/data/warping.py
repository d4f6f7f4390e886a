"""Pillow's affine transform for whole batches: bicubic or bilinear, in float64, in Pillow's order of operations."""

import torch
from torch import Tensor


def warp_batch(images: Tensor, matrices: Tensor, interpolation: str, fill: Tensor) -> Tensor:
    """uint8 (B, C, H, W), float64 (B, 6), uint8 (C,) -> uint8: what comes from outside of an image is `fill`."""
    height, width = images.shape[2:]
    x, y = _sources(matrices, height, width)
    is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    column, row = (x - 0.5).floor(), (y - 0.5).floor()
    (first, last), blend = ((-1, 3), _cubic) if interpolation == "bicubic" else ((0, 2), _linear)
    around = torch.arange(first, last, device=images.device)[:, None, None]
    columns, rows = (
        (place[:, None].long() + around).clamp(0, side - 1) for place, side in ((column, width), (row, height))
    )
    # (B, rows * columns of the neighbourhood * H * W), the same for all channels.
    places = (rows[:, :, None] * width + columns[:, None]).flatten(1)
    # Differences of pixels are whole numbers, and so small a type is read and written fastest.
    found = images.flatten(2).gather(2, places[:, None].expand(-1, images.shape[1], -1)).short()
    found = found.view(*images.shape[:2], len(around), len(around), height, width)
    found = blend(found.unbind(3), (x - 0.5 - column)[:, None, None])
    found = blend(found.unbind(2), (y - 0.5 - row)[:, None])
    warped = found.clamp(0, 255).to(torch.uint8)  # Pillow cuts fractions off
    return torch.where(is_inside[:, None], warped, fill[:, None, None])


def _sources(matrices: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """x and y, (B, H, W), of the point that each pixel's centre comes from."""
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)
    across = torch.arange(width, device=matrices.device, dtype=torch.float64) + 0.5
    down = (torch.arange(height, device=matrices.device, dtype=torch.float64) + 0.5)[:, None]
    return a * across + b * down + c, d * across + e * down + f


def _cubic(taps: tuple[Tensor, ...], share: Tensor) -> Tensor:
    first, second, third, fourth = taps
    linear = third - first
    square = 2 * (first - second) + third - fourth
    cube = second - first - third + fourth
    return second + share * (linear + share * (square + share * cube))


def _linear(taps: tuple[Tensor, ...], share: Tensor) -> Tensor:
    first, second = taps
    return first + (second - first) * share
