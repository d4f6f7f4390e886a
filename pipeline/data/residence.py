"""Small sets that live on the device whole: loader workers then hand over places and draws, and no pixels.

A set may: all its images have one size, no larger than a device resizes, and together they take a small share of the
memory that is free when training starts.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pipeline.data.cache import CachedImages
from pipeline.data.images import ArrayImages, ImageSet
from pipeline.data.resizing import MAX_SHRINK
from pipeline.data.samples import IN_MEMORY_BYTES, Samples
from pipeline.sizes import pair

if TYPE_CHECKING:
    from pipeline.data.device_views import DeviceViews
    from pipeline.data.kind import DataKind, View

log = logging.getLogger(__name__)

FREE_SHARE = 0.2


class Placed(NamedTuple):
    """An image on the device: where it begins, in pixels, and its size."""

    offset: int
    height: int
    width: int


class PlacedImages(Samples):
    """Images of one size that lie on the device one after the other, and their labels."""

    def __init__(self, images: ImageSet, offset: int, side: int) -> None:
        self.labels, self.offset, self.side = images.labels, offset, side
        self._images = images

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Placed, int]:
        return Placed(self.offset + index * self.side**2, self.side, self.side), self.labels[index]

    def name(self, index: int) -> str:
        return self._images.name(index)

    def content(self, index: int) -> bytes:
        return self._images.content(index)

    def identity(self) -> Iterable[bytes | memoryview]:
        return self._images.identity()


def completed_on_device(
    kind: "DataKind", views: "Sequence[View]", splits: Sequence[Any], task: Any, threads: int
) -> "tuple[list[View], list[Any]]":
    """Views in two parts, as far as a device can do the second one, and their samples, on the device if they may be."""
    staged = [kind.staged(view) for view in views]
    for view, split in zip(staged, splits, strict=True):
        if view and isinstance(split, CachedImages):
            split.gives_arrays = True
    if any(view is None for view in staged):
        log.info("%s: loader workers make the views that a device cannot", kind.cfg.name)
        return [one or other for one, other in zip(staged, views, strict=True)], [*splits]
    return [view for view in staged if view], settled(kind, splits, task.transform.views, threads)


def settled(kind: "DataKind", splits: Sequence[Any], views: "DeviceViews", threads: int) -> list[Any]:
    """The splits of a set, moved to the device if they may live there."""
    side, channels = kind.side, kind.cfg.channels
    if side is None or any(side > MAX_SHRINK * seen for seen in pair(kind.cfg.image_size)):
        return [*splits]
    num_bytes = sum(map(len, splits)) * side**2 * channels
    allowed = FREE_SHARE * _free_bytes(views.device)
    if num_bytes > allowed:
        log.info("%s stays on the host: %.0f MB, %.0f MB are allowed", kind.cfg.name, num_bytes / 1e6, allowed / 1e6)
        return [*splits]
    views.keep(torch.from_numpy(np.concatenate([_pixels(split, side, channels, threads) for split in splits])))
    log.info("%s lives on the device: %.0f MB, %.0f MB are allowed", kind.cfg.name, num_bytes / 1e6, allowed / 1e6)
    offsets = np.cumsum([0, *(len(split) * side**2 for split in splits)]).tolist()
    return [PlacedImages(split, offset, side) for split, offset in zip(splits, offsets, strict=False)]


def _free_bytes(device: torch.device) -> float:
    """What is left of a GPU's memory; on a CPU, as much as makes a set of files small."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else IN_MEMORY_BYTES / FREE_SHARE


def _pixels(images: ImageSet, side: int, channels: int, threads: int) -> np.ndarray:
    """uint8 (images * side * side, C)."""
    if isinstance(images, ArrayImages | CachedImages) and images.pixels.size == len(images) * side**2 * channels:
        return images.pixels.reshape(-1, channels)
    found = np.empty((len(images), side * side, channels), dtype=np.uint8)

    def read(index: int) -> None:
        found[index] = np.asarray(images.image(index)).reshape(side * side, channels)

    with ThreadPoolExecutor(max(threads, 1)) as pool:  # decoders leave the interpreter to others
        list(pool.map(read, range(len(images))))
    return found.reshape(-1, channels)
