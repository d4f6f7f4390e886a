"""Small sets that live on the device whole: loader workers then hand over places and draws, and no pixels.

A set may: its images have one size, or lie decoded in a cache; none is larger than a device resizes; and together they
take a small share of the memory that is free when training starts.
"""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pipeline.core.sizes import Size, pair
from pipeline.data.images.gpu.resizing import MAX_SHRINK
from pipeline.data.images.images import ArrayImages, ImageSet
from pipeline.data.samples import IN_MEMORY_BYTES, Samples, SplitName
from pipeline.data.store.cache import CachedImages, ShrunkImages, end_of
from pipeline.data.store.manifest import ImageSummary, Manifest

if TYPE_CHECKING:
    from pipeline.data.images.gpu.device_views import DeviceViews

log = logging.getLogger(__name__)


class ResidentImage(NamedTuple):
    """An image on the device: where it begins, in pixels, and its size."""

    offset: int
    height: int
    width: int


class ResidentImages(Samples):
    """Images that lie on the device, and their labels."""

    def __init__(self, images: ImageSet, places: np.ndarray) -> None:
        self.labels, self.places, self._images = images.labels, places, images

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[ResidentImage, int]:
        return ResidentImage(*self.places[index].tolist()), self.labels[index]

    def name(self, index: int) -> str:
        return self._images.name(index)

    def content(self, index: int) -> bytes:
        return self._images.content(index)

    def identity(self) -> Iterable[bytes | memoryview]:
        return self._images.identity()


def move_if_small(
    cfg: Any, splits: Mapping[SplitName, Any], manifest: Manifest, views: "DeviceViews", threads: int, share: float
) -> list[Any]:
    """Move the splits of a set to the device if they may live there, in at most this share of its free memory."""
    places = [_places(images, manifest.splits[name]) for name, images in splits.items()]
    known = [found for found in places if found is not None and _are_small(found, cfg.image_size)]
    if len(known) < len(places):
        return [*splits.values()]
    num_bytes, allowed = sum(map(end_of, known)) * cfg.channels, _allowed_bytes(views.device, share)
    if num_bytes > allowed:
        log.info("%s stays on the host: %.0f MB, %.0f MB are allowed", cfg.name, num_bytes / 1e6, allowed / 1e6)
        return [*splits.values()]
    both = zip(splits.values(), known, strict=True)
    views.keep(sum(map(end_of, known)), (_pixels(*each, cfg.channels, threads) for each in both))
    log.info("%s lives on the device: %.0f MB, %.0f MB are allowed", cfg.name, num_bytes / 1e6, allowed / 1e6)
    firsts = np.cumsum([0, *map(end_of, known)])
    return [
        ResidentImages(images, np.add(found, (first, 0, 0)))
        for images, found, first in zip(splits.values(), known, firsts, strict=False)
    ]


def _places(images: ImageSet, summary: Any) -> np.ndarray | None:
    """int64 (images, 3): offset, height and width of each, one after the other; none where sizes are not known."""
    if isinstance(images, CachedImages):
        return images.places
    has_sizes = isinstance(summary, ImageSummary) and not isinstance(images, ShrunkImages)
    if not has_sizes or summary.min_size != summary.max_size:
        return None
    width, height = summary.min_size
    return np.array([[index * height * width, height, width] for index in range(len(images))], dtype=np.int64)


def _are_small(places: np.ndarray, size: Size) -> bool:
    """Whether every region of every image can be resized by a device."""
    return bool((places[:, 1:].max(axis=0) <= MAX_SHRINK * np.array(pair(size))).all())


def _allowed_bytes(device: torch.device, share: float) -> float:
    """A share of what is left of a GPU's memory; on a CPU, as much as makes a set of files small."""
    return share * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else IN_MEMORY_BYTES


def _pixels(images: ImageSet, places: np.ndarray, channels: int, threads: int) -> np.ndarray:
    """uint8 (pixels, C) of all images."""
    if isinstance(images, CachedImages):
        return images.pixels
    if isinstance(images, ArrayImages) and images.pixels.size == end_of(places) * channels:
        return images.pixels.reshape(-1, channels)
    found = np.empty((end_of(places), channels), dtype=np.uint8)

    def read(index: int) -> None:
        offset, height, width = places[index].tolist()
        found[offset : offset + height * width] = np.asarray(images.image(index)).reshape(-1, channels)

    with ThreadPoolExecutor(max(threads, 1)) as pool:  # decoders leave the interpreter to others
        list(pool.map(read, range(len(images))))
    return found
