"""How well places of images are classified: mIoU, mAcc and aAcc from counts of pixels summed over a set.

IoU of a class is intersection / union of truth and answer, Acc the share of its true pixels that are found; mIoU and
mAcc are their means over classes, aAcc is the share of all labelled pixels that are right. A class that is in no truth
and no answer has no IoU, one that is in no truth has no Acc; they are left out of the means, as in mmsegmentation.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

IGNORED = 255  # the label of pixels that do not count


def confusion(answers: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """int64 (classes, classes): pixels by true class (row) and answered class (column)."""
    truth, answers = labels.long().flatten(), answers.long().flatten()
    # Pixels that are ignored go to a class of their own, which is then cut off: a mask would wait for the device.
    pairs = torch.where(truth == IGNORED, num_classes * num_classes, truth * num_classes + answers)
    ones = torch.ones_like(pairs)
    counts = ones.new_zeros(num_classes * num_classes + 1).scatter_add_(0, pairs, ones)
    return counts[:-1].view(num_classes, num_classes)


def areas(matrices: Tensor) -> Tensor:
    """Confusion matrices (..., K, K) -> (..., 3, K): pixels in both, in the truth, in the answer, of each class."""
    both = matrices.diagonal(dim1=-2, dim2=-1)
    return torch.stack([both, matrices.sum(dim=-1), matrices.sum(dim=-2)], dim=-2)


class Shares(NamedTuple):
    """In per cent; those of classes are NaN where a class has none."""

    miou: float
    macc: float
    aacc: float
    iou: np.ndarray  # (K,)
    acc: np.ndarray  # (K,)


@dataclass(frozen=True)
class Areas:
    """Counts (N, 3, K) of the images of a set, as `areas` makes them."""

    of_images: np.ndarray

    def shares(self) -> Shares:
        both, truth, answer = self.of_images.sum(axis=0, dtype=np.int64)
        with np.errstate(invalid="ignore"):
            iou, acc = 100 * both / (truth + answer - both), 100 * both / truth
            total = 100 * both.sum() / truth.sum()
        return Shares(_mean(iou), _mean(acc), float(total), iou, acc)

    def per_image(self) -> dict[str, np.ndarray]:
        """float64 (N,) for each metric: the ratio of the set's sums, linearised in the sums of each image.

        The mean of these values is the metric, and their standard error is that of the metric: what an image has alone
        is no estimate of it, because most classes are in few images.
        """
        found = self.shares()
        both, truth, answer = np.moveaxis(self.of_images.astype(np.float64), 1, 0)  # (N, K) each
        pixels = truth.sum(axis=1)
        return {
            "miou": found.miou + _linear(both, truth + answer - both),
            "macc": found.macc + _linear(both, truth),
            "aacc": found.aacc + _linear(both.sum(axis=1)[:, None], pixels[:, None]),
        }


def _mean(shares: np.ndarray) -> float:
    """Over the classes that have a share."""
    there = shares[~np.isnan(shares)]
    return float(there.mean()) if len(there) else float("nan")


def _linear(part: np.ndarray, of: np.ndarray) -> np.ndarray:
    """(N,): what the sums (N, K) of each image change in the mean over K of 100 part / of; its mean is 0."""
    there = of.sum(axis=0) > 0
    part, of = part[:, there], of[:, there]
    ratio = part.sum(axis=0) / of.sum(axis=0)
    return 100 * ((part - ratio * of) / of.mean(axis=0)).mean(axis=1)
