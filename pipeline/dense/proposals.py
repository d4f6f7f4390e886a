"""The region proposal network of Faster R-CNN: which anchors hold an object, and where its box is.

Losses as in detectron2: both are sums over the sampled anchors, divided by the number that is to be sampled in each
image, found or not; boxes with L1.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.dynamo import dynamo_deferred
from pipeline.dense.boxes import (
    RPN_WEIGHTS,
    Targets,
    at_least_float,
    clipped,
    decode,
    encode,
    has_area,
    match,
    of_objects,
    rows_at,
    sample,
    suppress,
)


class AnchorPredictions(NamedTuple):
    """For all anchors: logits (B, A) of holding an object, and offsets to its box (B, A, 4), float32."""

    logits: Tensor
    deltas: Tensor


class ProposalNetwork(nn.Module):
    def __init__(self, width: int, num_ratios: int, num_convs: int) -> None:
        super().__init__()
        with dynamo_deferred():
            from torchvision.models.detection.rpn import RPNHead
        self.head = RPNHead(width, num_ratios, num_convs)

    def forward(self, maps: list[Tensor]) -> AnchorPredictions:
        """Places of a map come before its anchors, and coordinates last, as `anchors_of` has them."""
        logits, deltas = self.head(maps)
        held = [level.permute(0, 2, 3, 1).flatten(1) for level in logits]
        moves = [level.permute(0, 2, 3, 1).unflatten(3, (-1, 4)).flatten(1, 3) for level in deltas]
        return AnchorPredictions(at_least_float(torch.cat(held, dim=1)), at_least_float(torch.cat(moves, dim=1)))


def proposal_losses(
    judged: AnchorPredictions,
    anchors: Tensor,
    targets: Targets,
    priority: Tensor,
    count: int,
    share: float,
    overlap: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Return the losses of objectness and boxes; `priority` (B, A) decides which anchors are sampled."""
    matched = [match(target["boxes"], anchors, *overlap, is_best_kept=True) for target in targets]
    objects, positive, negative = (torch.stack(parts) for parts in zip(*matched, strict=True))
    chosen, positive, valid = sample(positive, negative, priority, count, share)
    wanted = of_objects(targets, "boxes", objects.gather(1, chosen))
    codes = encode(wanted, anchors[chosen], RPN_WEIGHTS)
    logits, deltas = judged.logits.gather(1, chosen), rows_at(judged.deltas, chosen)
    held = F.binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none")
    total = count * len(targets)
    return (held * valid).sum() / total, l1(deltas, codes, positive) / total


def l1(found: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """Sum of the absolute differences (..., 4) of those that count (...); the others' targets may be anything."""
    return (found - torch.where(counts[..., None], wanted, found.detach())).abs().sum()


def num_proposals(level_sizes: Sequence[int], before: int, after: int) -> int:
    return min(after, sum(min(before, size) for size in level_sizes))


@torch.no_grad()
def propose(
    judged: AnchorPredictions,
    anchors: Sequence[Tensor],
    sizes: Tensor,
    before: int,
    after: int,
    threshold: float,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The best boxes of each image (B, n, 4) inside it, and which slots hold one (B, n); n is `num_proposals`.

    Of each map the `before` best, then of all the `after` best that overlap no better one of their map. `kept` (B, n)
    names them where nothing is to be compared, so that the operations can be counted without values.
    """
    counts = [len(level) for level in anchors]
    tops = [logits.topk(min(before, logits.shape[1]), dim=1) for logits in judged.logits.split(counts, dim=1)]
    starts = accumulate(counts[:-1], initial=0)
    index = torch.cat([top.indices + start for top, start in zip(tops, starts, strict=True)], dim=1)
    levels = torch.cat([torch.full_like(top.indices[0], number) for number, top in enumerate(tops)])
    boxes = decode(rows_at(judged.deltas, index), torch.cat(list(anchors))[index], RPN_WEIGHTS)
    boxes = clipped(boxes, sizes)
    usable = has_area(boxes)
    # Those that cannot be used come last, and suppress nobody: they overlap nothing.
    boxes = torch.where(usable[..., None], boxes, 0.0)
    scores = torch.where(usable, torch.cat([top.values for top in tops], dim=1), -torch.inf)
    number = num_proposals(counts, before, after)
    if kept is None:
        kept, is_one = _survivors(boxes, scores, levels, threshold, number)
        usable = usable.gather(1, kept) & is_one
    else:
        usable = usable.gather(1, kept)
    return rows_at(boxes, kept), usable


def _survivors(boxes: Tensor, scores: Tensor, levels: Tensor, threshold: float, number: int) -> tuple[Tensor, Tensor]:
    """(B, number) indices of boxes, and which of these slots hold one."""
    found = [suppress(b, s, levels, threshold)[:number] for b, s in zip(boxes, scores, strict=True)]
    index = torch.stack([F.pad(keep, (0, number - len(keep))) for keep in found])
    valid = torch.stack([torch.arange(number, device=boxes.device) < len(keep) for keep in found])
    return index, valid
