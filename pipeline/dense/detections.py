"""From what the heads say to detections: the boxes that are kept, and their masks in the pixels of the image."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.dense.boxes import BOX_WEIGHTS, clipped, decode, has_area, suppress


class Detections(NamedTuple):
    """One image, most confident first: boxes (n, 4), scores (n,), labels (n,) from 1, mask probabilities (n, s, s)."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor


class KeptDetections(NamedTuple):
    """Detections of B images: boxes (B, most, 4), scores and labels (B, most), and the number of slots in use."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    counts: list[int]

    def with_masks(self, masks: Tensor) -> list[Detections]:
        images = zip(self.boxes, self.scores, self.labels, masks, self.counts, strict=True)
        return [Detections(*(part[:count] for part in parts)) for *parts, count in images]


def keep_best(
    logits: Tensor,
    deltas: Tensor,
    proposals: Tensor,
    usable: Tensor,
    sizes: Tensor,
    least: float,
    threshold: float,
    most: int,
) -> KeptDetections:
    """At most `most` boxes of each image, of a score above `least`, that overlap no better one of their class.

    logits (B * R, 1 + K), deltas (B * R, K, 4), proposals (B, R, 4), usable (B, R).
    """
    scores = logits.softmax(dim=-1)[:, 1:].view(*usable.shape, -1) * usable[..., None]
    boxes = clipped(decode(deltas.view(*scores.shape, 4), proposals[:, :, None], BOX_WEIGHTS), sizes)
    wanted = (scores > least) & has_area(boxes)
    images = [_best_of(b, s, w, threshold, most) for b, s, w in zip(boxes, scores, wanted, strict=True)]
    counts = [len(found[1]) for found in images]
    padded = [torch.stack([_padded(part, most) for part in parts]) for parts in zip(*images, strict=True)]
    return KeptDetections(padded[0], padded[1], padded[2], counts)


def _best_of(
    boxes: Tensor, scores: Tensor, wanted: Tensor, threshold: float, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes (R, K, 4) and scores (R, K) of one image -> its boxes, scores and labels, the surest first."""
    _, classes = wanted.nonzero(as_tuple=True)
    boxes, scores = boxes[wanted], scores[wanted]
    keep = suppress(boxes, scores, classes, threshold)[:most]
    return boxes[keep], scores[keep], classes[keep] + 1


def _padded(rows: Tensor, count: int) -> Tensor:
    return F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, count - len(rows)))


def to_original(boxes: Tensor, size: Tensor, original: Tensor) -> Tensor:
    """Boxes (n, 4) of an image that was seen in `size` (height, width) -> in its `original` one."""
    factors = (original.double() / size.double()).flip(0).repeat(2)
    return clipped((boxes.double() * factors)[None], original[None])[0]


def paste(mask: Tensor, box: Tensor, height: int, width: int) -> Tensor:
    """Probabilities (s, s) of a box -> bool (height, width): bilinear between the centres, true from a half."""
    found = torch.zeros(width, height, dtype=torch.bool).T  # column by column, as runs are written
    # A pixel whose centre is outside of the box gets less than half of a cell.
    (left, top), (right, bottom) = box[:2].floor().int().tolist(), box[2:].ceil().int().tolist()
    rows, cols = slice(max(top, 0), min(bottom, height)), slice(max(left, 0), min(right, width))
    by_row, by_col = _weights(rows, box[1], box[3], len(mask)), _weights(cols, box[0], box[2], len(mask))
    found[rows, cols] = by_row @ mask.to(by_row.dtype) @ by_col.T >= 0.5
    return found


def _weights(pixels: slice, start: Tensor, end: Tensor, cells: int) -> Tensor:
    """(pixels, cells): what each of the cells between start and end gives to these pixels of a row."""
    centres = torch.arange(pixels.start, max(pixels.start, pixels.stop), dtype=torch.float64) + 0.5
    places = (centres - start) / (end - start) * cells - 0.5
    return (1 - (places[:, None] - torch.arange(cells)).abs()).clamp(min=0)
