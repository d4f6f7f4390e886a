"""RandAugment's and colour jitter's operations on whole batches, as Pillow does them, to the last bit.

In each round, the images with the same group of operations are changed together; the host knows how many these are, so
nothing waits for the device. Pillow's tables, sums and blends are whole numbers or float32, in the same order here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.data.images.gpu.operation_draws import Counts, Group, Kind, Operations
from pipeline.data.images.gpu.warping import sources, warp_batch


class Colouring(NamedTuple):
    """What operations must know of a data set."""

    interpolation: str
    fill: Tensor  # uint8 (C,), on the device


# Images (B, C, H, W), kinds (B,), values (B, 6) and tables (B, 256) -> images; not every group has a use for all.
Change = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def changes_for(how: Colouring, compiled: bool) -> dict[Group, Change]:
    """What each group of operations does; compiled, a change is a few kernels in place of a hundred."""
    made = torch.compile if compiled else _as_it_is
    warped = made(warp_batch)

    def warp(images: Tensor, kinds: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        return warped(images, *sources(values, *images.shape[2:]), how.interpolation, how.fill)

    return {Group.MAPPED: made(_map), Group.BLENDED: made(_blend), Group.WARPED: warp}


def _as_it_is(function: Any) -> Any:
    return function


def operate(images: Tensor, operations: Operations, counts: Counts, changes: dict[Group, Change]) -> Tensor:
    """Carry out what was drawn for a batch: uint8 (B, C, H, W), not to be used any more.

    All is on its device but `counts`.
    """
    begin = begin_table = 0
    images = images.contiguous()
    stored = images.flatten(1)
    stored = stored.view(torch.int64) if stored.shape[1] % 8 == 0 else stored  # eight values are copied at once
    for count, group in ((count, group) for counted in counts for group, count in zip(Group, counted, strict=True)):
        if not count:
            continue
        some, kinds, values = (part[begin : begin + count] for part in operations[:3])
        tables = operations.tables[begin_table : begin_table + count]
        changed = changes[group](images[some], kinds, values, tables)
        stored.index_copy_(0, some, changed.flatten(1).view(stored.dtype))
        begin += count
        begin_table += count * (group == Group.MAPPED)
    return images


def _map(images: Tensor, kinds: Tensor, values: Tensor, tables: Tensor) -> Tensor:
    return _mapped(images, _tables(images, kinds, values[:, 0], tables))


def _blend(images: Tensor, kinds: Tensor, values: Tensor, tables: Tensor) -> Tensor:
    is_colour = (kinds == Kind.COLOUR.value)[:, None, None, None]  # torch does not compile a comparison with an enum
    return _blended(torch.where(is_colour, _grey(images)[:, None], _smooth(images)), images, values[:, 0])


def _mapped(images: Tensor, tables: Tensor) -> Tensor:
    """Each value through the table (B, C, 256) of its image and channel."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _tables(images: Tensor, kinds: Tensor, factors: Tensor, given: Tensor) -> Tensor:
    """uint8 (B, C, 256): given by the host, or made from the image, as the kind of each operation says."""
    counts = _counts(images)
    tables = given[:, None].expand(-1, images.shape[1], -1)
    for kind, made in (
        (Kind.AUTOCONTRAST, _spread(counts)),
        (Kind.EQUALISE, _equalised(counts)),
        (Kind.CONTRAST, _contrasted(images, factors)),
    ):
        tables = torch.where((kinds == kind.value)[:, None, None], made, tables)
    return tables


def _counts(images: Tensor) -> Tensor:
    """int32 (B, C, 256): how many pixels of each value there are."""
    values = images.flatten(2).long()
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(2, values, torch.ones((), dtype=torch.int32, device=images.device).expand_as(values))


def _ends(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value that there is, (B, C, 1)."""
    ramp, is_there = _ramp(counts), counts > 0
    return torch.where(is_there, ramp, 255).amin(2, keepdim=True), torch.where(is_there, ramp, 0).amax(2, keepdim=True)


def _ramp(like: Tensor) -> Tensor:
    return torch.arange(256, device=like.device)


def _spread(counts: Tensor) -> Tensor:
    """The darkest value of a channel becomes 0, the brightest 255."""
    low, high = (found.double() for found in _ends(counts))
    span, ramp = (high - low).clamp(min=1), _ramp(counts)
    scale = torch.full_like(span, 255) / span  # a number divided by a tensor is multiplied by its reciprocal
    spread = (ramp * scale + -low * scale).clamp(0, 255)
    return torch.where(high > low, spread, ramp).to(torch.uint8)


def _equalised(counts: Tensor) -> Tensor:
    """As many pixels of each value in a channel, as far as possible."""
    last = counts.gather(2, _ends(counts)[1])
    # A channel of one value has no pixel beside the last one's, and so no step.
    step = (counts.sum(2, keepdim=True) - last) // 255
    below = counts.cumsum(2) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table, _ramp(counts)).to(torch.uint8)


def _contrasted(images: Tensor, factors: Tensor) -> Tensor:
    """Away from the mean of the grey image, which is a whole number."""
    grey = _grey(images).flatten(1)
    mean = (grey.sum(dim=1).double() / grey.shape[1] + 0.5).int()
    ramp = _ramp(images)[None, None, None]
    return _blended(mean[:, None, None, None], ramp, factors)[:, 0].expand(-1, images.shape[1], -1)


def _smooth(images: Tensor) -> Tensor:
    """A mean of 3 x 3 pixels in which the middle one counts five times; the rim stays as it is."""
    sharp = images.int()
    rows = sharp[..., :-2, :] + sharp[..., 1:-1, :] + sharp[..., 2:, :]
    boxes = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth, middle = sharp.clone(), (..., slice(1, -1), slice(1, -1))
    smooth[middle] = (2 * (boxes + 4 * sharp[middle]) + 13) // 26
    return smooth


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
