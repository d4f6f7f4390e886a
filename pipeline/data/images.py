"""Labelled images of one split: decoded arrays in memory, or encoded files on disk.

Both keep their data in a few large buffers instead of a million small objects: loader workers are forked, and
touching an object's reference count copies its memory page into every worker.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from pipeline.errors import DataError

SplitName = Literal["train", "val"]
IN_MEMORY_BYTES = 512 * 1024**2
IMAGE_SUFFIXES = (".jpeg", ".jpg")


class ImageSet(ABC):
    """Images and their labels; `mode` is what `image` returns: "RGB" or "L"."""

    labels: list[int]
    mode: str = "RGB"

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """A name that is unique in the data set and does not depend on where the set is stored."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes as published: the encoded file, or the pixels where there are no files."""

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """The decoded image, in `mode`."""

    @abstractmethod
    def listing(self) -> bytes | memoryview:
        """What is known of all images without opening a file: their names, or their pixels."""

    def preload(self) -> None:  # noqa: B027 - arrays have nothing to do
        """Read small sets into memory; to be called before loader workers are forked."""


class ArrayImages(ImageSet):
    """Images decoded in memory: uint8, (count, height, width) or (count, height, width, 3)."""

    def __init__(self, pixels: np.ndarray, labels: Sequence[int], prefix: str) -> None:
        self.pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
        self.labels = [int(label) for label in labels]
        self.prefix = prefix
        self.mode = "L" if pixels.ndim == 3 else "RGB"

    def name(self, index: int) -> str:
        return f"{self.prefix}/{index:06d}"

    def content(self, index: int) -> bytes:
        return self.pixels[index].tobytes()

    def listing(self) -> memoryview:
        return self.pixels.reshape(-1).data

    def image(self, index: int) -> Image.Image:
        image = Image.fromarray(self.pixels[index])
        return image if image.mode == self.mode else image.convert(self.mode)


class FileImages(ImageSet):
    """Images in files below a folder; the encoded bytes are kept in memory when the whole set is small."""

    def __init__(self, folder: Path, files: Sequence[str], labels: Sequence[int]) -> None:
        self.folder = folder
        self.labels = list(labels)
        self._files = np.array([os.fsencode(file) for file in files], dtype=np.bytes_)
        self._contents: bytes | None = None
        self._offsets = np.zeros(1, dtype=np.int64)

    def name(self, index: int) -> str:
        return os.fsdecode(self._files[index])

    def listing(self) -> bytes:
        return b"\n".join(self._files.tolist())

    def path(self, index: int) -> Path:
        return self.folder / self.name(index)

    def content(self, index: int) -> bytes:
        if self._contents is not None:
            return self._contents[self._offsets[index] : self._offsets[index + 1]]
        return self.path(index).read_bytes()

    def image(self, index: int) -> Image.Image:
        try:
            image = Image.open(BytesIO(self.content(index)))
            image.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"{self.path(index)}: found {error}, expected a readable image; "
                "run `python -m pipeline prepare` on the data set again: it lists every damaged file"
            ) from error
        return image if image.mode == self.mode else image.convert(self.mode)

    def preload(self) -> None:
        try:
            if not self._is_small():
                return
            contents = [self.path(index).read_bytes() for index in range(len(self))]
        except OSError as error:
            raise DataError(
                f"found {error}, expected every listed image in {self.folder}; "
                "run `python -m pipeline prepare` on the data set again: it lists every missing file"
            ) from error
        self._offsets = np.cumsum([0, *map(len, contents)], dtype=np.int64)
        self._contents = b"".join(contents)

    def _is_small(self) -> bool:
        total = 0
        for index in range(len(self)):
            total += self.path(index).stat().st_size
            # Stops early: asking a network disk for a million sizes takes minutes.
            if total >= IN_MEMORY_BYTES:
                return False
        return True


@dataclass
class Split:
    """One split as found: images, class names where the layout has them, and all that is wrong with it."""

    images: ImageSet
    classes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def class_problems(splits: Mapping[SplitName, Split]) -> list[str]:
    """Classes that only one of the splits has."""
    train, val = set(splits["train"].classes), set(splits["val"].classes)
    if not (train and val):
        return []
    return [
        f"found {len(extra)} classes in {there} but not in {here}: {shortened(sorted(extra))}"
        for there, here, extra in (("train", "val", train - val), ("val", "train", val - train))
        if extra
    ]


def shortened(names: Sequence[object], limit: int = 5) -> str:
    """The first few names and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + rest


def read_mat(path: Path, name: str) -> np.ndarray:
    """A variable of a MATLAB file, as an array of one dimension or more."""
    from scipy.io import loadmat  # as slow to import as all else that a launcher needs

    return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
