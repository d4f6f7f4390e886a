"""The heads of Mask R-CNN: what is in a region, where exactly its box is, and which of its pixels belong to it.

Shapes: B images with R regions each, n = B * R of them in a row, K classes; class 0 is background, which has neither a
box nor a mask. Boxes are L1, summed and divided by the number of sampled regions, as in detectron2.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.dynamo import dynamo_deferred
from pipeline.dense.boxes import (
    BOX_WEIGHTS,
    Targets,
    at_least_float,
    encode,
    match,
    most_positive,
    of_objects,
    rows_at,
    sample,
)
from pipeline.dense.proposals import l1
from pipeline.dense.pyramid import NUM_STAGES, level_of
from pipeline.dense.rasters import rasterised


class BoxHead(nn.Module):
    """Map regions (n, width, side, side) to logits (n, 1 + K) and box offsets for each class (n, K, 4)."""

    def __init__(
        self, width: int, side: int, num_classes: int, num_convs: int, fc_widths: Sequence[int], has_norm: bool
    ) -> None:
        super().__init__()
        with dynamo_deferred():
            from timm.layers import LayerNorm2d
            from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
        norm = LayerNorm2d if has_norm else None
        self.layers = FastRCNNConvFCHead((width, side, side), [width] * num_convs, list(fc_widths), norm)
        self.classes = nn.Linear(fc_widths[-1], 1 + num_classes)
        self.boxes = nn.Linear(fc_widths[-1], 4 * num_classes)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, a=1)
                nn.init.zeros_(layer.bias)
        for layer, std in ((self.classes, 0.01), (self.boxes, 0.001)):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(regions)
        return at_least_float(self.classes(features)), at_least_float(self.boxes(features)).unflatten(1, (-1, 4))


class MaskHead(nn.Module):
    """Map regions (n, width, side, side) to mask logits for each class (n, K, 2 side, 2 side)."""

    def __init__(self, width: int, num_classes: int, num_convs: int, has_norm: bool) -> None:
        super().__init__()
        with dynamo_deferred():
            from timm.layers import LayerNorm2d
            from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
        self.layers = MaskRCNNHeads(width, [width] * num_convs, 1, LayerNorm2d if has_norm else None)
        self.doubled = nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)
        self.classes = nn.Conv2d(width, num_classes, kernel_size=1)
        nn.init.kaiming_normal_(self.doubled.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.classes.weight, std=0.001)
        for layer in (self.doubled, self.classes):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, regions: Tensor) -> Tensor:
        return at_least_float(self.classes(self.doubled(self.layers(regions)).relu()))


def aligned(maps: Tensor, boxes: Tensor, side: int, scale: float = 1.0) -> Tensor:
    """RoIAlign of boxes (n, 5), the first number that of the map; half a pixel is taken off, as in detectron2."""
    with dynamo_deferred():
        from torchvision.ops import roi_align
    return roi_align(maps, boxes, (side, side), scale, sampling_ratio=0, aligned=True)


def cut_out(maps: Sequence[Tensor], boxes: Tensor, strides: Sequence[int], side: int) -> Tensor:
    """Regions (B * R, width, side, side) of boxes (B, R, 4), each from the map that suits its size."""
    levels = level_of(boxes, strides[0])
    image = torch.arange(len(boxes), device=boxes.device).view(-1, 1, 1).expand(-1, boxes.shape[1], 1)
    regions = boxes.new_zeros(())
    for level in range(NUM_STAGES):
        # A box of another map is empty here and gives zeros, so that maps can be added up: every shape is fixed.
        own = torch.cat([image, torch.where(levels[..., None] == level, boxes, 0.0)], dim=2).flatten(0, 1)
        regions = regions + aligned(at_least_float(maps[level]), own, side, 1 / strides[level])
    return regions


class Regions(NamedTuple):
    """What the heads learn from, R slots of each image, those of objects first."""

    boxes: Tensor  # (B, R, 4)
    labels: Tensor  # (B, R), 0 for background
    objects: Tensor  # (B, R): which object of its image
    positive: Tensor  # (B, R): it is an object
    valid: Tensor  # (B, R): the slot is used

    def objects_first(self, share: float) -> "Regions":
        """The slots that objects can be in."""
        most = most_positive(self.labels.shape[1], share)
        return Regions(*(part[:, :most] for part in self))


def sample_regions(
    proposals: Tensor, usable: Tensor, targets: Targets, priority: Tensor, count: int, share: float, overlap: float
) -> Regions:
    """From proposals (B, n, 4) and the objects' own boxes; `priority` (B, n + objects) decides which are taken."""
    most = max(len(target["boxes"]) for target in targets)
    own = torch.stack([F.pad(t["boxes"], (0, 0, 0, most - len(t["boxes"]))) for t in targets])
    boxes = torch.cat([proposals, own], dim=1)
    is_own = [torch.arange(most, device=boxes.device) < len(target["boxes"]) for target in targets]
    usable = torch.cat([usable, torch.stack(is_own)], dim=1)
    matched = [match(t["boxes"], each, overlap, overlap) for t, each in zip(targets, boxes, strict=True)]
    objects, positive, negative = (torch.stack(parts) for parts in zip(*matched, strict=True))
    chosen, positive, valid = sample(positive & usable, negative & usable, priority, count, share)
    objects = objects.gather(1, chosen)
    labels = torch.where(positive, of_objects(targets, "labels", objects), 0)
    return Regions(rows_at(boxes, chosen), labels, objects, positive, valid)


def box_losses(logits: Tensor, deltas: Tensor, regions: Regions, targets: Targets) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the classes, and L1 of the boxes of objects."""
    total, labels = regions.valid.sum().clamp(min=1), regions.labels.flatten()
    entropy = F.cross_entropy(logits, labels, reduction="none")
    wanted = of_objects(targets, "boxes", regions.objects)
    codes = encode(wanted, regions.boxes, BOX_WEIGHTS).flatten(0, 1)
    of_boxes = l1(of_label(deltas, labels), codes, regions.positive.flatten())
    return torch.where(regions.valid.flatten(), entropy, 0.0).sum() / total, of_boxes / total


def mask_loss(logits: Tensor, regions: Regions, targets: Targets) -> Tensor:
    """Binary cross-entropy of the masks of the regions' own classes, a mean over objects' pixels."""
    found = of_label(logits, regions.labels.flatten())
    images, side = zip(targets, regions.objects, regions.boxes, strict=True), found.shape[-1]
    wanted = torch.cat([masks_within(*image, side) for image in images])
    each = F.binary_cross_entropy_with_logits(found, wanted, reduction="none").mean(dim=(1, 2))
    positive = regions.positive.flatten()
    return torch.where(positive, each, 0.0).sum() / positive.sum().clamp(min=1)


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """values (n, K, ...), labels (n,) from 1 -> (n, ...); background gets the first class's, which nobody looks at."""
    index = (labels - 1).clamp(min=0).view(-1, 1, *[1] * (values.ndim - 2))
    return values.gather(1, index.expand(-1, 1, *values.shape[2:]))[:, 0]


def masks_within(target: Mapping[str, Tensor], objects: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Crop target masks for an image's regions: objects (R,), boxes (R, 4) -> (R, side, side) of 0 and 1."""
    if "edges" not in target:
        return mask_targets(target["masks"], objects, boxes, side)
    drawn = rasterised(target["edges"], objects, boxes, side)
    if not len(target["masks"]):
        return drawn
    has_mask = objects[:, None] == target["with_mask"]
    cut = mask_targets(target["masks"], has_mask.int().argmax(dim=1), boxes, side)
    return torch.where(has_mask.any(dim=1)[:, None, None], cut, drawn)


def mask_targets(masks: Tensor, objects: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Bitmaps (m, H, W), for each region its object (R,) and box (R, 4) -> (R, side, side) of 0 and 1."""
    if not len(masks):
        return boxes.new_zeros(len(boxes), side, side)
    rois = torch.cat([objects[:, None].to(boxes.dtype), boxes], dim=1)
    return (aligned(masks[:, None].to(boxes.dtype), rois, side)[:, 0] >= 0.5).to(boxes.dtype)
