"""Mixing, erasing and smoothing a batch on its device: decided on the host, done for all images at once.

The decisions (weights and boxes) are drawn from the same generators, in the same order and with the same calls as
timm's `Mixup` (per batch) and `RandomErasing` (per pixel) draw them. What follows is a function of tensors alone: no
image costs a launch of its own, nothing waits, and a CUDA graph can hold it. Two things differ from timm: the noise of
erased pixels is drawn for the whole batch at once, and both classes of a pixel that is not mixed are weighed by 1 and
0 where timm leaves it alone, which is the same number.
"""

import math
import random

import numpy as np
import torch
from torch import Tensor

from pipeline.core.dynamo import dynamo_deferred
from pipeline.data.images.augment import Augment

# timm's and DeiT's: shares of the image that a box covers, the flattest box, how often a box that does not fit is drawn
AREAS, FLATTEST, NUM_ATTEMPTS = (0.02, 1 / 3), 0.3, 10
EMPTY = torch.empty(0, dtype=torch.uint8)  # no boxes, no noise, or no mixing
NO_BOX = (0, 0, 0, 0)  # boxes are (top, bottom, left, right); bottom and right are the first ones outside


class Mixing:
    """Mixup or CutMix of a batch with itself in reverse order, one decision for the batch."""

    def __init__(self, augment: Augment) -> None:
        with dynamo_deferred():
            from timm.data.mixup import cutmix_bbox_and_lam

        self.cutmix_box = cutmix_bbox_and_lam
        self.mixup, self.cutmix = augment.mixup, augment.cutmix
        self.prob, self.switch_prob = augment.mix_prob, augment.mix_switch_prob

    def draw(self, height: int, width: int) -> Tensor:
        """(8,): weights of the own and of the other image, the same for their targets, and the box that is swapped."""
        share, is_cutmix = self._decide()
        weights, box = [share, 1.0 - share] * 2, NO_BOX
        if is_cutmix and share < 1.0:
            box, share = self.cutmix_box((height, width), share)
            weights = [1.0, 0.0, share, 1.0 - share]
        return torch.tensor([*weights, *box], dtype=torch.float32)  # timm's box and share are numpy's numbers

    def _decide(self) -> tuple[float, bool]:
        """The share of the own image, and whether the other one gets a box of it."""
        if np.random.rand() >= self.prob:
            return 1.0, False
        is_cutmix = not self.mixup or (self.cutmix > 0 and np.random.rand() < self.switch_prob)
        alpha = self.cutmix if is_cutmix else self.mixup
        return float(np.random.beta(alpha, alpha)), bool(is_cutmix)


def mix(images: Tensor, drawn: Tensor) -> Tensor:
    """Images (B, C, H, W), as `Mixing.draw` has decided."""
    own, other = drawn[:2].unbind()
    reverse = images.flip(0)
    mixed = (images * own).add_(reverse * other)
    return torch.where(inside(drawn[4:], *images.shape[-2:]), reverse, mixed)


def soft_targets(labels: Tensor, num_classes: int, smoothing: float, drawn: Tensor | None = None) -> Tensor:
    """Class indices (B,) -> targets (B, classes): smoothed, and mixed with those of the reverse batch."""
    low = smoothing / num_classes
    smooth = torch.full((len(labels), num_classes), low, device=labels.device)
    smooth.scatter_(1, labels.long().unsqueeze(1), 1.0 - smoothing + low)
    if drawn is None:
        return smooth
    own, other = drawn[2:4].unbind()
    return smooth * own + smooth.flip(0) * other


class Erasing:
    """A box of noise in a share of the images."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def draw(self, count: int, height: int, width: int) -> Tensor:
        """(count, 4) boxes."""
        return torch.tensor([self._box(height, width) for _ in range(count)])

    def _box(self, height: int, width: int) -> tuple[int, int, int, int]:
        if random.random() > self.probability:
            return NO_BOX
        for _ in range(NUM_ATTEMPTS):
            area = random.uniform(*AREAS) * (height * width)
            aspect = math.exp(random.uniform(math.log(FLATTEST), math.log(1 / FLATTEST)))
            tall, wide = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if wide < width and tall < height:
                top, left = random.randint(0, height - tall), random.randint(0, width - wide)
                return top, top + tall, left, left + wide
        return NO_BOX


def erase(images: Tensor, boxes: Tensor, noise: Tensor) -> Tensor:
    """Images (B, C, H, W) with noise, as large as they are, in their boxes (B, 4)."""
    return torch.where(inside(boxes, *images.shape[-2:]).unsqueeze(1), noise, images)


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """(..., 4) -> (..., H, W) bool: the pixels of each box."""
    top, bottom, left, right = boxes.unsqueeze(-1).unbind(-2)
    rows, columns = (torch.arange(side, device=boxes.device) for side in (height, width))
    return ((rows >= top) & (rows < bottom)).unsqueeze(-1) & ((columns >= left) & (columns < right)).unsqueeze(-2)
