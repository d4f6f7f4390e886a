"""Answers for images of any size: from windows of the training size that overlap, or from the whole image at once.

As mmsegmentation does it: windows start every `stride` pixels, the last ones at the edge, and where several see a pixel
their logits are averaged. A window that is larger than the image, and an image that is no whole number of patches, are
padded with the mean colour (0), and what was answered for the padding is dropped.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Answer = Callable[[Tensor], Tensor]  # images (B, C, h, w) -> logits (B, classes, h, w)


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin along a side; the last one ends where the side does."""
    last = max(length - window, 0)
    return [min(place * stride, last) for place in range(-(-last // stride) + 1)]


def slide(answer: Answer, image: Tensor, window: Sequence[int], stride: int) -> Tensor:
    """Image (C, H, W) -> logits (classes, H, W), the mean over the windows that see a pixel."""
    height, width = image.shape[1:]
    image = padded(image, window)
    places = [
        (top, left)
        for top in starts(image.shape[1], window[0], stride)
        for left in starts(image.shape[2], window[1], stride)
    ]
    cut = [image[:, top : top + window[0], left : left + window[1]] for top, left in places]
    logits = answer(torch.stack(cut)).float()
    total = logits.new_zeros(logits.shape[1], *image.shape[1:])
    count = logits.new_zeros(image.shape[1:])
    for (top, left), each in zip(places, logits, strict=True):
        total[:, top : top + window[0], left : left + window[1]] += each
        count[top : top + window[0], left : left + window[1]] += 1
    return (total / count)[:, :height, :width]


def whole(answer: Answer, image: Tensor, patch: Sequence[int]) -> Tensor:
    """Image (C, H, W) -> logits (classes, H, W), seen at once."""
    height, width = image.shape[1:]
    sides = [-(-length // side) * side for length, side in zip((height, width), patch, strict=True)]
    return answer(padded(image, sides)[None]).float()[0, :, :height, :width]


def padded(image: Tensor, size: Sequence[int]) -> Tensor:
    """At least so large: zeros at the right and at the bottom."""
    below, beside = (max(0, wanted - found) for wanted, found in zip(size, image.shape[1:], strict=True))
    return F.pad(image, (0, beside, 0, below))
