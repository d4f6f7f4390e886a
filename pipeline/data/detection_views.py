"""Views of pictures with objects: large-scale jitter for training (ViTDet, Sec. 4), the whole picture for evaluation.

As in detectron2: flip; resize so that the picture fits into a drawn multiple of S x S; cut out S x S at random, or put
the picture into the top left corner where it is smaller. Masks are drawn at the size of the view, boxes are their
bounds. Resizing is Pillow's bilinear one.
"""

import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipeline.data.coco_samples import Picture
from pipeline.data.outlines import Outline, bounds, compressed, expanded, fill, moved

Targets = dict[str, Tensor]


class JitteredView:
    """The training view."""

    def __init__(self, side: int, scale: tuple[float, float], hflip: float) -> None:
        self.side, self.scale, self.hflip = side, scale, hflip

    def __call__(self, sample: Picture) -> tuple[Tensor, Targets]:
        is_flipped = random.random() < self.hflip
        fitted = fitted_size(sample.image.size, self.side * random.uniform(*self.scale))
        # Height and width that stick out of the view, of which a random part is cut off at the left and the top.
        left, top = (round(max(length - self.side, 0) * random.random()) for length in fitted)
        return self.seen(sample, fitted, (left, top), is_flipped)

    def seen(
        self, sample: Picture, size: tuple[int, int], corner: tuple[int, int], is_flipped: bool
    ) -> tuple[Tensor, Targets]:
        """The picture flipped or not, resized to `size` (width, height), from `corner` (left, top) on."""
        image = sample.image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_flipped else sample.image
        part = [min(length - start, self.side) for length, start in zip(size, corner, strict=True)]
        box = (corner[0], corner[1], corner[0] + part[0], corner[1] + part[1])
        pixels = image.resize(size, Image.Resampling.BILINEAR).crop(box)
        objects, whole = sample.objects, sample.image.size
        chosen = np.flatnonzero(objects.crowds == 0)
        masks = np.zeros((len(chosen), self.side, self.side), dtype=np.uint8)
        for mask, number in zip(masks, chosen, strict=True):
            _draw(mask[: part[1], : part[0]], objects.outlines[number], whole, size, box, is_flipped)
        remains = masks.any(axis=(1, 2))
        return padded(pixels, self.side), {
            "boxes": torch.from_numpy(bounds(masks[remains])),
            "labels": torch.from_numpy(objects.labels[chosen][remains]),
            "masks": torch.from_numpy(masks[remains]),
            "size": torch.tensor([part[1], part[0]]),
        }


class WholeView:
    """The evaluation view: the longer side becomes S. Targets are the truth as published."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, sample: Picture) -> tuple[Tensor, Targets]:
        size = fitted_size(sample.image.size, self.side)
        pixels = sample.image.resize(size, Image.Resampling.BILINEAR)
        width, height = sample.image.size
        objects = sample.objects
        runs = [np.frombuffer(compressed(outline, height, width), dtype=np.uint8) for outline in objects.outlines]
        return padded(pixels, self.side), {
            "size": torch.tensor([size[1], size[0]]),
            "original": torch.tensor([height, width]),
            "index": torch.tensor(sample.place),
            "image_id": torch.tensor(sample.image_id),
            "gt_boxes": _tensor(objects.boxes),
            "gt_labels": _tensor(objects.labels),
            "gt_crowd": _tensor(objects.crowds),
            "gt_area": _tensor(objects.areas),
            "gt_ids": _tensor(objects.ids),
            "gt_rle": _tensor(np.concatenate([np.zeros(0, dtype=np.uint8), *runs])),
            "gt_rle_sizes": torch.tensor([len(run) for run in runs], dtype=torch.int64),
        }


def fitted_size(size: tuple[int, int], side: float) -> tuple[int, int]:
    """Width and height with the longer one `side` long, whatever it was."""
    factor = side / max(size)
    width, height = (max(1, int(length * factor + 0.5)) for length in size)
    return width, height


def padded(image: Image.Image, side: int) -> Tensor:
    """uint8 (C, side, side): the picture in the top left corner, zeros to the right and below."""
    pixels = np.atleast_3d(np.asarray(image))
    found = np.zeros((pixels.shape[2], side, side), dtype=np.uint8)
    found[:, : pixels.shape[0], : pixels.shape[1]] = pixels.transpose(2, 0, 1)
    return torch.from_numpy(found)


def _draw(
    mask: np.ndarray,
    outline: Outline,
    whole: tuple[int, int],
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    is_flipped: bool,
) -> None:
    """Put an outline into a bitmap, which is the part `box` (left, top, right, bottom) of the resized picture."""
    if isinstance(outline, list):
        factors = [new / old for new, old in zip(size, whole, strict=True)]
        if is_flipped:
            outline = moved(outline, (-1, 1), (whole[0], 0))
        fill(mask, moved(outline, factors, (-box[0], -box[1])))
        return
    found = expanded(outline, whole[1], whole[0])
    found = found[:, ::-1] if is_flipped else found
    mask[:] = np.asarray(Image.fromarray(found).resize(size, Image.Resampling.NEAREST).crop(box))


def _tensor(values: np.ndarray) -> Tensor:
    """A copy: the arrays of a split are shared by all its pictures."""
    return torch.from_numpy(values.copy())
