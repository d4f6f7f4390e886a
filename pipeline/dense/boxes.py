"""Boxes: anchors, which object a box belongs to, and which boxes a step learns from.

Shapes are fixed whatever the images hold, so that nothing waits for the device: a choice of n boxes has n slots, and
says which of them count. Boxes are (x1, y1, x2, y2) in pixels of the input, float32.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.dynamo import dynamo_deferred

Targets = Sequence[Mapping[str, Tensor]]  # of each image: boxes (n, 4), labels (n,), masks (n, H, W), size (2,)
Sizes = Sequence[tuple[int, int]]  # rows and columns of each map
RPN_WEIGHTS, BOX_WEIGHTS = (1.0, 1.0), (10.0, 5.0)  # of places and of sides in codes
MOST_GROWTH = math.log(1000 / 16)  # of a side by a code: exp of more is too much


class AnchorMatches(NamedTuple):
    """For each box the object that it overlaps most, and what that makes of it; it may be neither."""

    objects: Tensor
    positive: Tensor
    negative: Tensor


class Sampled(NamedTuple):
    """(B, n): boxes that were chosen, positives first; only slots that are `valid` hold one."""

    chosen: Tensor
    positive: Tensor
    valid: Tensor


def anchors_of(grids: Sizes, strides: Sequence[int], sides: Sequence[float], ratios: Sequence[float]) -> list[Tensor]:
    """Make anchors (rows * cols * ratios, 4) per map: areas side^2, given height / width, centred at strides."""
    levels = []
    for (rows, cols), stride, side in zip(grids, strides, sides, strict=True):
        heights = side * torch.tensor(ratios).sqrt()
        halves = torch.stack([side**2 / heights, heights], dim=1) / 2
        y, x = torch.meshgrid(torch.arange(rows) * stride, torch.arange(cols) * stride, indexing="ij")
        centres = torch.stack([x, y], dim=-1).reshape(-1, 1, 2)
        levels.append(torch.cat([centres - halves, centres + halves], dim=-1).reshape(-1, 4))
    return levels


def encode(boxes: Tensor, starts: Tensor, weights: tuple[float, float]) -> Tensor:
    """How to move `starts` to `boxes` (R-CNN App. C), all (..., 4); not finite where one of them has no area."""
    (centres, sides), (old_centres, old_sides) = _centred(boxes), _centred(starts)
    moves, growths = (centres - old_centres) / old_sides, (sides / old_sides).log()
    return torch.cat([weights[0] * moves, weights[1] * growths], dim=-1)


def decode(codes: Tensor, starts: Tensor, weights: tuple[float, float]) -> Tensor:
    """The boxes that these codes move `starts` to, all (..., 4)."""
    centres, sides = _centred(starts)
    centres = centres + codes[..., :2] / weights[0] * sides
    halves = sides * (codes[..., 2:] / weights[1]).clamp(max=MOST_GROWTH).exp() / 2
    return torch.cat([centres - halves, centres + halves], dim=-1)


def _centred(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 4) -> centres and sides, (..., 2) each."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def match(objects: Tensor, boxes: Tensor, low: float, high: float, is_best_kept: bool = False) -> AnchorMatches:
    """Boxes (N, 4) are positive from an IoU of `high` with an object, negative below `low`.

    With `is_best_kept`, also those that no other box beats at some object are positive, if they touch it at all.
    """
    if not len(objects):
        index = torch.zeros(len(boxes), dtype=torch.long, device=boxes.device)
        return AnchorMatches(index, index > 0, index == 0)
    with dynamo_deferred():
        from torchvision.ops import box_iou
    overlaps = box_iou(objects, boxes)
    most, index = overlaps.max(dim=0)
    positive = most >= high
    if is_best_kept:
        best = overlaps.amax(dim=1, keepdim=True)
        positive |= ((overlaps == best) & (best > 0)).any(dim=0)
    return AnchorMatches(index, positive, (most < low) & ~positive)


def sample(positive: Tensor, negative: Tensor, priority: Tensor, count: int, share: float) -> Sampled:
    """At most `count` boxes of each image, at most a `share` of them positive; among equals the smallest priority.

    All of (B, N). Negatives fill what positives leave; where there are too few, slots stay empty.
    """
    count = min(count, positive.shape[1])
    most = most_positive(count, share)
    first = _first(positive, priority, most)
    others = _first(negative, priority, count)
    num_positive = first.valid.sum(dim=1, keepdim=True)
    place = torch.arange(count, device=positive.device)[None] - num_positive  # below 0: a positive
    index, valid = (tensor.gather(1, place.clamp(min=0)) for tensor in (others.chosen, others.valid))
    is_positive = place < 0
    index = torch.where(is_positive, F.pad(first.chosen, (0, count - most)), index)
    return Sampled(index, is_positive, is_positive | valid)


def most_positive(count: int, share: float) -> int:
    return max(1, int(count * share))


def _first(wanted: Tensor, priority: Tensor, count: int) -> Sampled:
    values, index = torch.where(wanted, priority, torch.inf).topk(count, dim=1, largest=False)
    valid = values < torch.inf
    return Sampled(index, valid, valid)


def at_least_float(values: Tensor) -> Tensor:
    """bf16 in float32: boxes need more than 8 bits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def rows_at(rows: Tensor, index: Tensor) -> Tensor:
    """rows (B, N, 4), index (B, n) -> (B, n, 4)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[2]))


def of_objects(targets: Targets, name: str, index: Tensor) -> Tensor:
    """What `targets` say under this name of the objects (B, n); zeros of an image that has none."""
    found = [target[name] for target in targets]
    return torch.stack(
        [
            rows[chosen] if len(rows) else rows.new_zeros(*chosen.shape, *rows.shape[1:])
            for rows, chosen in zip(found, index, strict=True)
        ]
    )


def clipped(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (B, ..., 4) inside images of these heights and widths (B, 2)."""
    limits = sizes.flip(1).to(boxes.dtype).repeat(1, 2)
    return torch.minimum(boxes.clamp(min=0), limits.view(-1, *[1] * (boxes.ndim - 2), 4))


def has_area(boxes: Tensor) -> Tensor:
    """(..., 4) -> (...) bool; false also for what is not finite."""
    return (boxes[..., 2:] > boxes[..., :2]).all(dim=-1) & boxes.isfinite().all(dim=-1)


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Indices of boxes that overlap no better one of their group by more, the best first."""
    with dynamo_deferred():
        from torchvision.ops import nms
    # Groups are moved apart, so that one call does them all; boxes lie inside an image.
    apart = groups[:, None].to(boxes.dtype) * (boxes.amax() + 1) if len(boxes) else 0.0
    return nms(boxes + apart, scores, threshold)
