"""Deferred views: the host draws and reads pixels, the device cuts, resizes, mirrors and colours whole batches.

The steps are those of the host's own view, and they draw as there: timm's and torchvision's own functions, in the same
order. So a picture is seen the same way wherever its view is completed (`device_views.py`), for any number of workers
and processes.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipeline.core.sizes import pair
from pipeline.data.images.gpu.handover import Handover, concatenate, handover_for
from pipeline.data.images.gpu.operation_draws import Counts, Operation, batched
from pipeline.data.images.gpu.residence import ResidentImage
from pipeline.data.images.gpu.resizing import MAX_SHRINK, Axis, cut
from pipeline.data.images.gpu.view_steps import Decision, Plan, decisions
from pipeline.data.store.cache import Decoded

if TYPE_CHECKING:
    from pipeline.data.images.classified import DataConfig


EXTENT_STEP = 32  # so that the same sizes come again

Seen: TypeAlias = Image.Image | Decoded | ResidentImage


class DeferredBatch(NamedTuple):
    """A batch of deferred views as a loader hands it over."""

    cuts: Tensor  # int64 (B, 16): rows of `Cut`
    pixels: Tensor  # uint8 (pixels, C): of all images, one after the other
    operations: Tensor  # uint8: packed (`operation_draws.py`)
    extent: int  # the largest length of an outer axis that is kept, rounded up
    counts: Counts  # of the operations


class DeferredImage(NamedTuple):
    """One image of it: its pixels uint8 (height * width, C), and what is to be done with them."""

    pixels: np.ndarray  # none of an image on the device
    offset: int  # of its first pixel there, or among these
    width: int
    rows: Axis
    columns: Axis
    operations: Sequence[Operation] = ()


class DeferredView:
    """From an image and its label to a DeferredImage and the label."""

    def __init__(self, steps: Sequence[Decision], data: "DataConfig") -> None:
        self.steps, self.channels = steps, data.channels
        self.none = np.empty((0, data.channels), dtype=np.uint8)
        self.resample = Image.Resampling[data.augment.interpolation.upper()]
        self.size = pair(data.image_size)

    def __call__(self, sample: tuple[Seen, int]) -> tuple[DeferredImage, int]:
        image, label = sample
        plan = Plan.of(image.height, image.width)
        for decide in self.steps:
            decide(plan)
        return self._deferred(image, plan), label

    def _deferred(self, image: Seen, plan: Plan) -> DeferredImage:
        rows, columns = axes = plan.axes()
        if plan.is_large(axes):
            pixels = np.asarray(self._shrunk(image.image if isinstance(image, Decoded) else image, plan))
            return self._handed_over(pixels, plan.axes(), plan)
        top, left = plan.box[0] + rows.skipped, plan.box[1] + columns.skipped
        bottom, right = top + rows.kept, left + columns.kept
        if isinstance(image, ResidentImage):
            offset = image.offset + top * image.width + left
            return DeferredImage(self.none, offset, image.width, rows, columns, plan.operations)
        if isinstance(image, Decoded):
            return self._handed_over(image.pixels[top:bottom, left:right], axes, plan)
        return self._handed_over(np.asarray(image.crop((left, top, right, bottom))), axes, plan)

    def _handed_over(self, pixels: np.ndarray, axes: tuple[Axis, Axis], plan: Plan) -> DeferredImage:
        return DeferredImage(pixels.reshape(-1, self.channels), 0, pixels.shape[1], *axes, plan.operations)

    def _shrunk(self, image: Any, plan: Plan) -> Image.Image:
        """Resized by Pillow, as the device would: the part of it that is seen."""
        top, left, height, width = plan.box
        region = image.crop((left, top, left + width, top + height))
        resized = region.resize(plan.resized[::-1], self.resample)
        (top, left), (bottom, right) = plan.first, np.add(plan.first, plan.window).tolist()
        box = max(left, 0), max(top, 0), min(right, resized.width), min(bottom, resized.height)
        seen = resized.crop(box)
        plan.box, plan.resized = (0, 0, seen.height, seen.width), (seen.height, seen.width)
        plan.first = min(top, 0), min(left, 0)
        return seen

    def num_bytes(self, batch: int) -> int:
        """Of the pixels of a batch, at most (`Plan.is_large`)."""
        return batch * prod(MAX_SHRINK * side for side in self.size) * self.channels

    def handover(self, batch: int, workers: int, ahead: int) -> Handover | None:
        """Memory in which so many workers hand over the pixels of their batches."""
        return handover_for(workers, ahead, self.num_bytes(batch))

    def collate(self, samples: Sequence[tuple[DeferredImage, int]]) -> tuple[DeferredBatch, Tensor]:
        """Labels are numbers in every task that takes deferred views."""
        images, labels = zip(*samples, strict=True)
        offsets = np.cumsum([0, *(len(image.pixels) for image in images)]).tolist()
        cuts = [
            cut(offset + image.offset, image.width, image.rows, image.columns)
            for offset, image in zip(offsets, images, strict=False)
        ]
        extent = -(-max(each.outer.kept for each in cuts) // EXTENT_STEP) * EXTENT_STEP
        pixels = concatenate([image.pixels for image in images])
        # Views are recorded of sets that live on the device alone.
        operations, counts = batched([image.operations for image in images], fill=not len(pixels))
        rows = torch.from_numpy(np.array([each.row for each in cuts], dtype=np.int64))
        return DeferredBatch(rows, pixels, operations, extent, counts), torch.tensor(labels)


def defer_view(view: Any, data: "DataConfig") -> DeferredView | None:
    """Defer the part of a view that needs pixels; None where only the host can do a step of it."""
    steps = decisions(getattr(view, "transforms", [view]), data.augment.interpolation)
    return None if steps is None else DeferredView(steps, data)
