"""Views of pictures with objects: large-scale jitter for training (ViTDet, Sec. 4), the whole picture for evaluation.

As in detectron2: flip; resize so that the picture fits into a drawn multiple of S x S; cut out S x S at random, or put
the picture into the top left corner where it is smaller. Resizing is Pillow's bilinear one. Objects stay polygons:
boxes are the bounds of what is seen of them, between pixels, and the loss draws masks inside each region. The
alternative draws bitmaps at the size of the view, whose bounds are the boxes, in whole pixels; outlines that are
published as runs of pixels are bitmaps in both. Polygons are cut at the border of the view one by one; detectron2 drops
some that cross themselves when it does so.
"""

import random
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipeline.data.dense.coco_samples import Picture
from pipeline.data.dense.outlines import (
    LEAST_NUMBERS,
    Outline,
    Polygons,
    bounds,
    compressed,
    cut,
    edges_of,
    expanded,
    extent,
    fill,
    moved,
)

Targets = dict[str, Tensor]
Outlines = Literal["polygons", "bitmaps"]
LEAST_EXTENT = 1e-5  # pixels of a box along a side, as in detectron2


class JitteredView:
    """The training view."""

    def __init__(self, side: int, scale: tuple[float, float], hflip: float, outlines: Outlines = "polygons") -> None:
        self.side, self.scale, self.hflip, self.outlines = side, scale, hflip, outlines

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
        place = Place(sample.image.size, size, box, is_flipped)
        chosen = np.flatnonzero(sample.objects.crowds == 0)
        outlines = [sample.objects.outlines[number] for number in chosen]
        targets = self._polygons(outlines, place) if self.outlines == "polygons" else self._bitmaps(outlines, place)
        remains = targets.pop("remains")
        return padded(pixels, self.side), {
            "labels": torch.from_numpy(sample.objects.labels[chosen][remains]),
            "size": torch.tensor([part[1], part[0]]),
            **{name: torch.from_numpy(value) for name, value in targets.items()},
        }

    def _polygons(self, outlines: list[Outline], place: "Place") -> dict[str, np.ndarray]:
        """Boxes, edges, and bitmaps of the objects that have runs; `remains` says which objects are seen."""
        polygons = [place.moved(outline) if isinstance(outline, list) else [] for outline in outlines]
        boxes = np.stack([np.zeros(4), *(extent(each, self.side, self.side) for each in polygons)])[1:]
        with_runs = [number for number, outline in enumerate(outlines) if not isinstance(outline, list)]
        drawn = self._bitmaps([outlines[number] for number in with_runs], place)
        with_runs = np.array(with_runs, dtype=np.int64)[drawn["remains"]]
        boxes[with_runs] = drawn["boxes"]
        remains = (boxes[:, 2:] - boxes[:, :2] > LEAST_EXTENT).all(axis=1)
        parts = [[cut(each, self.side, self.side) for each in found] for found in compress(polygons, remains)]
        return {
            "boxes": boxes[remains].astype(np.float32),
            "edges": edges_of([[part for part in found if len(part) >= LEAST_NUMBERS] for found in parts]),
            "masks": drawn["masks"],
            "with_mask": (np.cumsum(remains) - 1)[with_runs],
            "remains": remains,
        }

    def _bitmaps(self, outlines: list[Outline], place: "Place") -> dict[str, np.ndarray]:
        """Boxes and bitmaps; `remains` says of which objects a pixel is seen."""
        masks = np.zeros((len(outlines), self.side, self.side), dtype=np.uint8)
        for mask, outline in zip(masks, outlines, strict=True):
            place.draw(mask, outline)
        remains = np.asarray(masks.any(axis=(1, 2)))
        return {"boxes": bounds(masks[remains]), "masks": masks[remains], "remains": remains}


class Place(NamedTuple):
    """Where a picture of the size `whole` is seen: flipped or not, resized to `size`, cut to `box`."""

    whole: tuple[int, int]  # width, height
    size: tuple[int, int]
    box: tuple[int, int, int, int]  # left, top, right, bottom
    is_flipped: bool

    def moved(self, polygons: Polygons) -> Polygons:
        """Polygons of the picture in pixels of the view."""
        factors = [new / old for new, old in zip(self.size, self.whole, strict=True)]
        if self.is_flipped:
            polygons = moved(polygons, (-1, 1), (self.whole[0], 0))
        return moved(polygons, factors, (-self.box[0], -self.box[1]))

    def draw(self, mask: np.ndarray, outline: Outline) -> None:
        """Put an outline into the bitmap of a view."""
        left, top, right, bottom = self.box
        seen = mask[: bottom - top, : right - left]
        if isinstance(outline, list):
            fill(seen, self.moved(outline))
            return
        found = expanded(outline, self.whole[1], self.whole[0])
        found = found[:, ::-1] if self.is_flipped else found
        seen[:] = np.asarray(Image.fromarray(found).resize(self.size, Image.Resampling.NEAREST).crop(self.box))


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


def _tensor(values: np.ndarray) -> Tensor:
    """A copy: the arrays of a split are shared by all its pictures."""
    return torch.from_numpy(values.copy())
