"""RandAugment's and colour jitter's operations on whole batches, as Pillow does them, to the last bit.

In each round, the images with the same kind of operation are changed together; the host knows how many these are, so
nothing waits for the device. Pillow's tables, sums and blends are whole numbers or float32, in the same order here.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.data.operation_draws import Kind, Operations
from pipeline.data.warping import warp_batch

WARPED_PIXELS = 2**21  # at once: less than 1 GB in three channels


class Colouring(NamedTuple):
    """What operations must know of a data set."""

    interpolation: str
    fill: Tensor  # uint8 (C,), on the device


def operate(images: Tensor, operations: Operations, how: Colouring) -> Tensor:
    """Carry out what was drawn for a batch: uint8 (B, C, H, W), changed in place."""
    chosen, values, tables = (part.to(images.device, non_blocking=True) for part in operations[1:])
    begin = begin_table = 0
    for counts in operations.counts.tolist():
        for kind, count in enumerate(counts):
            if not count:
                continue
            some = chosen[begin : begin + count]
            before, given = images[some], values[begin : begin + count]
            if kind == Kind.TABLE:
                after = _mapped(before, tables[begin_table : begin_table + count, None])
                begin_table += count
            elif kind == Kind.WARP:
                after = _warped(before, given, how)
            else:
                after = CHANGES[Kind(kind)](before, given[:, 0])
            images.index_copy_(0, some, after)
            begin += count
    return images


def _warped(images: Tensor, matrices: Tensor, how: Colouring) -> Tensor:
    """Some at a time: a pixel is made of 16 others."""
    at_once = max(1, WARPED_PIXELS // images[0, 0].numel())
    parts = zip(images.split(at_once), matrices.split(at_once), strict=True)
    return torch.cat([warp_batch(*part, how.interpolation, how.fill) for part in parts])


def _mapped(images: Tensor, tables: Tensor) -> Tensor:
    """Each value through the table (B, C or 1, 256) of its image."""
    values = images.flatten(2)
    return tables.expand(-1, images.shape[1], -1).gather(2, values.long()).view_as(images)


def _autocontrast(images: Tensor, unused: Tensor) -> Tensor:
    """The darkest value of a channel becomes 0, the brightest 255."""
    values = images.flatten(2)
    low, high = (found.double()[..., None] for found in (values.amin(dim=2), values.amax(dim=2)))
    span = (high - low).clamp(min=1)
    scale = torch.full_like(span, 255) / span  # a number divided by a tensor is multiplied by its reciprocal
    ramp = torch.arange(256, device=images.device)
    spread = (ramp * scale + -low * scale).clamp(0, 255)
    return _mapped(images, torch.where(high > low, spread, ramp).to(torch.uint8))


def _equalise(images: Tensor, unused: Tensor) -> Tensor:
    """As many pixels of each value in a channel, as far as possible."""
    values = images.flatten(2).long()
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, values, torch.ones((), dtype=torch.int32, device=images.device).expand_as(values))
    last = counts.gather(2, values.amax(dim=2, keepdim=True))
    # A channel of one value has no pixel beside the last one's, and so no step.
    step = (values.shape[2] - last) // 255
    below = counts.cumsum(2) - counts
    ramp = torch.arange(256, device=images.device)
    tables = torch.where(step > 0, ((step // 2 + below) // step.clamp(min=1)).clamp(max=255), ramp)
    return _mapped(images, tables.to(torch.uint8))


def _contrast(images: Tensor, factors: Tensor) -> Tensor:
    grey = _grey(images).flatten(1)
    mean = (grey.sum(dim=1).double() / grey.shape[1] + 0.5).int()
    return _blended(mean[:, None, None, None], images, factors)


def _colour(images: Tensor, factors: Tensor) -> Tensor:
    return _blended(_grey(images)[:, None], images, factors)


def _sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Beside a mean of 3 x 3 pixels in which the middle one counts five times; the rim stays as it is."""
    sharp = images.int()
    rows = sharp[..., :-2, :] + sharp[..., 1:-1, :] + sharp[..., 2:, :]
    boxes = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth, middle = sharp.clone(), (..., slice(1, -1), slice(1, -1))
    smooth[middle] = (2 * (boxes + 4 * sharp[middle]) + 13) // 26
    return _blended(smooth, images, factors)


CHANGES: dict[Kind, Callable[[Tensor, Tensor], Tensor]] = {
    Kind.AUTOCONTRAST: _autocontrast,
    Kind.EQUALISE: _equalise,
    Kind.CONTRAST: _contrast,
    Kind.COLOUR: _colour,
    Kind.SHARPNESS: _sharpness,
}


def _grey(images: Tensor) -> Tensor:
    """int32 (B, H, W): Pillow's mode L."""
    if images.shape[1] == 1:
        return images[:, 0].int()
    red, green, blue = images.int().unbind(1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def _blended(from_images: Tensor, to_images: Tensor, factors: Tensor) -> Tensor:
    """From one image at factor 0 to the other at 1, and beyond; fractions are cut off."""
    begin, share = from_images.float(), factors.float()[:, None, None, None]
    return (begin + share * (to_images.float() - begin)).clamp(0, 255).to(torch.uint8)
