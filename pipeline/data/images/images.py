"""Labelled images of one split: decoded arrays in memory, or encoded files on disk."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.core.errors import DataError
from pipeline.core.image_files import depth_problem, turned
from pipeline.data.samples import Files, Labelled, LabelledFiles, Split, SplitName, shortened

IMAGE_SUFFIXES = (".jpeg", ".jpg")


class ImageSet(Labelled):
    """Images and their labels; `mode` is what `image` returns: "RGB" or "L"."""

    mode: str = "RGB"
    contents = "pixels"

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.image(index), self.labels[index]

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """The decoded image, in `mode`."""

    @abstractmethod
    def subset(self, indices: Sequence[int], labels: Sequence[int]) -> "ImageSet":
        """Some of the images, with labels of their own."""


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

    def subset(self, indices: Sequence[int], labels: Sequence[int]) -> "ArrayImages":
        found = ArrayImages(self.pixels[np.asarray(indices, dtype=int)], labels, self.prefix)
        found.mode = self.mode
        return found

    def image(self, index: int) -> Image.Image:
        image = Image.fromarray(self.pixels[index])
        return image if image.mode == self.mode else image.convert(self.mode)


class FileImages(LabelledFiles, ImageSet):
    """Images in files below a folder."""

    def subset(self, indices: Sequence[int], labels: Sequence[int]) -> "FileImages":
        found = FileImages(self.folder, [self.name(index) for index in indices], labels)
        found.mode, found.upright = self.mode, self.upright
        return found

    def image(self, index: int) -> Image.Image:
        return decoded(self, index, self.mode, self.upright)


def decoded(files: Files, index: int, mode: str, upright: bool = False) -> Image.Image:
    """The image in a file, in a mode such as "RGB"; none: as it is. `upright`: turned by its EXIF orientation."""
    try:
        image = Image.open(BytesIO(files.content(index)))
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{files.path(index)}: found {error}, expected a readable image; "
            "run `python -m pipeline prepare` on the data set again: it lists every damaged file"
        ) from error
    if mode and (problem := depth_problem(image)):
        raise DataError(f"{files.path(index)}: {problem}")
    seen = turned(image) if upright else image
    return seen if mode in ("", seen.mode) else seen.convert(mode)


def class_problems(splits: Mapping[SplitName, Split]) -> list[str]:
    """Classes that only one of the splits has."""
    train, val = (set(splits[name].classes) if name in splits else set() for name in ("train", "val"))
    if not (train and val):
        return []
    return [
        f"found {len(extra)} classes in {there} but not in {here}: {shortened(sorted(extra))}"
        for there, here, extra in (("train", "val", train - val), ("val", "train", val - train))
        if extra
    ]


def read_mat(path: Path, name: str) -> np.ndarray:
    """A variable of a MATLAB file, as an array of one dimension or more."""
    from scipy.io import loadmat  # as slow to import as all else that a launcher needs

    return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
