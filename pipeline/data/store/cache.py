"""Decoded images on disk, written once by `prepare`: workers of a training then read pixels and decode nothing.

A split is one file of pixels and one of places, with a record that is written last. Images with a longer short side
than the cache's are shrunk to it. For validation it is the side that evaluation resizes to, so that its views are the
same to the last bit; for training it is 8/7 of what the model sees, 256 of 224 pixels, and crops are cut from that.

A machine that lacks the cache shrinks the images of the files each time it reads them: the same pixels, more slowly.
"""

import logging
import os
import time
from collections.abc import Iterable, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from pydantic import ValidationError
from tqdm import tqdm

from pipeline.core.config import Strict
from pipeline.core.files import explained, held_in_turn, remove, require_space, write_json
from pipeline.core.sizes import Size, pair
from pipeline.data.images.images import ImageSet
from pipeline.data.store.inspection import forked_samples, mapper

log = logging.getLogger(__name__)

BLOCK = 1024  # images between two points that an interrupted `prepare` continues from
TRIED = 8  # images that are decoded to guess how long all of them take
ROW = 3  # of the places: offset in pixels, height, width


class CacheRecord(Strict):
    """What is in a cache; whatever differs, it is another one."""

    fingerprint: str  # of the split
    side: int  # a shorter side above this was shrunk to it
    interpolation: str
    channels: int
    upright: bool = False
    version: int = 1

    def shrinks(self, largest: tuple[int, int]) -> bool:
        """Whether images of a set may change that is nowhere wider or higher than this."""
        return min(largest) > self.side

    def shrunk_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of an image of this width and height, rounded as torchvision's Resize does."""
        width, height = size
        shorter = min(width, height)
        if shorter <= self.side:
            return height, width
        longer = int(self.side * max(width, height) / shorter)
        return (longer, self.side) if height > width else (self.side, longer)

    def shrunk(self, image: Image.Image) -> Image.Image:
        height, width = self.shrunk_size(image.size)
        if (width, height) == image.size:
            return image
        return image.resize((width, height), Image.Resampling[self.interpolation.upper()])


def train_side(size: Size) -> int:
    """The shorter side of what crops of training are cut from."""
    return ceil(max(pair(size)) * 8 / 7)


def eval_side(size: Size, crop: float) -> int | None:
    """The shorter side that evaluation resizes to; none where it squashes, or differs by axis."""
    height, width = pair(size)
    return int(height / crop) if height == width and crop < 1 else None


class Decoded(NamedTuple):
    """An image as it lies in a cache: uint8 (height, width, C)."""

    pixels: np.ndarray

    @property
    def image(self) -> Image.Image:
        return Image.fromarray(self.pixels[..., 0] if self.pixels.shape[2] == 1 else self.pixels)

    @property
    def height(self) -> int:
        return self.pixels.shape[0]

    @property
    def width(self) -> int:
        return self.pixels.shape[1]


class DerivedImages(ImageSet):
    """Images that are made from those of files, with their names and labels."""

    def __init__(self, images: ImageSet) -> None:
        self.images, self.labels, self.mode = images, images.labels, images.mode

    def name(self, index: int) -> str:
        return self.images.name(index)

    def content(self, index: int) -> bytes:
        return self.images.content(index)

    def listing(self) -> bytes | memoryview:
        return self.images.listing()


class CachedImages(DerivedImages):
    """Images of a cache."""

    gives_arrays = False  # instead of Pillow's images, for views that only cut

    def __init__(self, images: ImageSet, pixels: np.ndarray, places: np.ndarray) -> None:
        super().__init__(images)
        self.pixels, self.places = pixels, places

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return (self.decoded(index) if self.gives_arrays else self.image(index)), self.labels[index]

    def decoded(self, index: int) -> Decoded:
        offset, height, width = self.places[index].tolist()
        return Decoded(self.pixels[offset : offset + height * width].reshape(height, width, -1))

    def image(self, index: int) -> Image.Image:
        return self.decoded(index).image

    def subset(self, indices: Sequence[int], labels: Sequence[int]) -> "CachedImages":
        chosen = self.places[np.asarray(indices, int)]
        return CachedImages(self.images.subset(indices, labels), self.pixels, chosen)


class ShrunkImages(DerivedImages):
    """Images of files as a cache would hold them."""

    def __init__(self, images: ImageSet, record: CacheRecord) -> None:
        super().__init__(images)
        self.record = record

    def image(self, index: int) -> Image.Image:
        return self.record.shrunk(self.images.image(index))

    def subset(self, indices: Sequence[int], labels: Sequence[int]) -> "ShrunkImages":
        return ShrunkImages(self.images.subset(indices, labels), self.record)


class SplitCache:
    """The files of one split in the cache folder of its set."""

    def __init__(self, folder: Path, split: str, record: CacheRecord) -> None:
        self.folder, self.expected, self.split = folder, record, split
        stem = f"{split}-{record.side}-{record.interpolation}"
        self.record, self.pixels, self.places = (folder / f"{stem}.{end}" for end in ("json", "pixels", "places"))
        # Named after the images, so that no other set is continued.
        parts = f".{stem}-{record.fingerprint[:16]}"
        self.pixels_part, self.places_part = (folder / f"{parts}.{end}" for end in ("pixels", "places"))

    def problem(self) -> str:
        """Why these files cannot be used; empty if they can."""
        try:
            found = CacheRecord.model_validate_json(self.record.read_bytes())
        except FileNotFoundError:
            return "not found"
        except (OSError, ValidationError):
            return "not readable"
        if found != self.expected:
            return "made from other images"
        places = _read_places(self.places)
        num_bytes = self.pixels.stat().st_size if self.pixels.exists() else 0
        return "" if len(places) and num_bytes == end_of(places) * found.channels else "incomplete"

    def open(self, images: ImageSet) -> CachedImages:
        """Mapped into memory: nothing is read before it is used."""
        pixels = np.memmap(self.pixels, dtype=np.uint8, mode="r").reshape(-1, self.expected.channels)
        return CachedImages(images, pixels, _read_places(self.places))

    def write(self, images: ImageSet, sizes: Iterable[tuple[int, int]], workers: int, progress: bool) -> None:
        """Decode what is missing; `sizes` are the width and height of every file."""
        if not self.problem():
            return
        with held_in_turn(self.folder / f".{self.split}.lock", f"the cache {self.pixels}"):
            if not self.problem():  # written by the one that this process has waited for
                return
            self._remove_outdated()
            done = self._kept()
            total = self.expected.channels * sum(prod(self.expected.shrunk_size(size)) for size in sizes)
            missing = total - (self.pixels_part.stat().st_size if done else 0)
            require_space(self.folder, missing, f"the cache of {len(images)} {self.split} images")
            shrunk = ShrunkImages(images, self.expected)
            self._announce(shrunk, total, len(images) - done, workers)
            self._append(shrunk, done, workers, progress)
            for part, whole in ((self.pixels_part, self.pixels), (self.places_part, self.places)):
                os.replace(part, whole)
            write_json(self.record, self.expected.model_dump())

    def _remove_outdated(self) -> None:
        """Files that nobody can use, before room is made for others."""
        remove(self.record)  # first: a process that is killed later leaves no proof behind
        begun = self.folder.glob(f".{self.record.stem}-*")
        for path in (self.pixels, self.places, *begun):
            if path not in (self.pixels_part, self.places_part):
                remove(path)

    def _kept(self) -> int:
        """How many images are there already; what follows the last whole one is cut off."""
        if not (self.pixels_part.exists() and self.places_part.exists()):
            return 0
        places = _read_places(self.places_part)
        ends = places[:, 0] + places[:, 1] * places[:, 2]
        done = int((ends * self.expected.channels <= self.pixels_part.stat().st_size).sum())
        os.truncate(self.places_part, done * ROW * 8)
        os.truncate(self.pixels_part, int(ends[done - 1]) * self.expected.channels if done else 0)
        return done

    def _announce(self, images: ShrunkImages, num_bytes: int, missing: int, workers: int) -> None:
        since = time.perf_counter()
        for index in range(min(TRIED, len(images))):
            images.image(index)
        each = (time.perf_counter() - since) / min(TRIED, len(images)) / max(workers, 1)
        log.info(
            "cache of %d %s images in %s: %.1f MB, %d images to decode, about %.0f min",
            *(len(images), self.split, self.folder, num_bytes / 1e6, missing, max(1, missing * each / 60)),
        )

    def _append(self, images: ShrunkImages, done: int, workers: int, progress: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            explained(self.pixels_part),
            self.pixels_part.open("ab") as pixels,
            self.places_part.open("ab") as places,
            mapper(workers, images) as run,
            tqdm(None, f"cache {self.split}", len(images), initial=done, unit="img", disable=not progress) as bar,
        ):
            for begin in range(done, len(images), BLOCK):
                # A pool decodes all that it is given, however slowly that is written: so not everything at once.
                for found in run(_decoded, range(begin, min(begin + BLOCK, len(images)))):
                    place = pixels.tell() // self.expected.channels, *found.shape[:2]
                    pixels.write(found.data)
                    places.write(np.array(place, dtype=np.int64).data)
                    bar.update()
                for file in (pixels, places):  # pixels first: a place promises them
                    file.flush()
                    os.fsync(file.fileno())


def _decoded(index: int) -> np.ndarray:
    """uint8 (height, width) or (height, width, 3)."""
    images: Any = forked_samples()
    return np.ascontiguousarray(images.image(index))


def _read_places(path: Path) -> np.ndarray:
    """int64 (images, 3); a row that was not written to its end is left out."""
    found = np.fromfile(path, dtype=np.int64) if path.exists() else np.empty(0, dtype=np.int64)
    return found[: len(found) // ROW * ROW].reshape(-1, ROW)


def end_of(places: np.ndarray) -> int:
    """Pixels of all images, which lie one after the other."""
    offset, height, width = places[-1].tolist()
    return offset + height * width
