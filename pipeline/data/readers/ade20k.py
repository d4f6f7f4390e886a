"""ADE20K's layout: images/{training,validation}/ and a PNG of the same name in annotations/ for each image.

A PNG has the class of each pixel: 0 is none of them, 1 to K those of objectInfo150.txt, in its order.
"""

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from pipeline.core.errors import DataError
from pipeline.data.dense.coco_samples import listed_files
from pipeline.data.images.images import decoded
from pipeline.data.readers.folder import SUFFIXES
from pipeline.data.samples import Files, Split, shortened
from pipeline.data.store.inspection import ImageInspection, inspect_file

PARTS = {"train": "training", "val": "validation"}
PUBLISHED = "ADEChallengeData2016"
NAMES = "objectInfo*.txt"
IGNORED = 255  # in targets
MASK_MODES = ("L", "P")  # a palette is only how the numbers are shown


class Scene(NamedTuple):
    """One sample: the picture, and uint8 (height, width) with the class of each pixel as published."""

    image: Image.Image
    labels: np.ndarray


class ClassMaps(Files):
    """Files with the class of each pixel."""

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(decoded(self, index, ""))

    def identity(self) -> Iterable[bytes]:
        return (self.listing(),)


class SceneSamples(Files):
    """Pictures in files, and a file of classes for each."""

    mode: str = "RGB"

    def __init__(self, folder: Path, images: list[str], masks: list[str]) -> None:
        super().__init__(folder, images)
        self.masks = ClassMaps(folder, masks)

    def __getitem__(self, index: int) -> Scene:
        return Scene(decoded(self, index, self.mode), self.masks[index])

    def paths(self, index: int) -> tuple[Path, ...]:
        return self.path(index), self.masks.path(index)

    def identity(self) -> Iterable[bytes]:
        return self.listing(), self.masks.listing()

    def preload(self) -> None:
        super().preload()
        self.masks.preload()


def read_ade20k(folder: Path, split: str) -> Split:
    """The pairs of a split; nothing is decoded."""
    root = f"{PUBLISHED}/" if (folder / PUBLISHED / "images").is_dir() else ""
    places = [f"{root}{kind}/{PARTS[split]}" for kind in ("images", "annotations")]
    absent = [place for place in places if not (folder / place).is_dir()]
    if absent:
        return Split(SceneSamples(folder, [], []), problems=[f"{place}: folder not found" for place in absent])
    found = [listed_files(folder / place) for place in places]
    images = {Path(name).stem: name for name in found[0] if name.lower().endswith(SUFFIXES)}
    masks = {Path(name).stem: name for name in found[1] if name.lower().endswith(".png")}
    both = [stem for stem in images if stem in masks]
    samples = SceneSamples(
        folder, [f"{places[0]}/{images[stem]}" for stem in both], [f"{places[1]}/{masks[stem]}" for stem in both]
    )
    lists = (
        (places[0], [images[stem] for stem in images if stem not in masks], f"images without a PNG in {places[1]}"),
        (
            places[1],
            [masks[stem] for stem in masks if stem not in images],
            f"PNG files without an image in {places[0]}",
        ),
        (places[0], sorted({*found[0]} - {*images.values()}), "files that are no images, or two of one name"),
        (places[1], sorted({*found[1]} - {*masks.values()}), "files that are not PNG"),
    )
    problems = [f"{place}: found {len(names)} {what}: {shortened(names)}" for place, names, what in lists if names]
    try:
        classes = class_names(folder / root)
    except DataError as error:
        return Split(samples, problems=[*problems, str(error)])
    return Split(samples, classes, problems)


def class_names(folder: Path) -> list[str]:
    """Names of the classes from 1 on, as published: a table with the columns Idx and Name. None without the file."""
    files = sorted(folder.glob(NAMES))
    if not files:
        return []
    lines = files[0].read_text(encoding="utf-8", errors="replace").splitlines()
    header, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines if line.strip()] or [[]]
    if header[:1] != ["Idx"] or header[-1:] != ["Name"] or any(len(row) != len(header) for row in rows):
        raise DataError(f"{files[0].name}: expected a table with tabs between columns, from Idx to Name")
    if [row[0] for row in rows] != [str(number) for number in range(1, len(rows) + 1)]:
        raise DataError(f"{files[0].name}: expected the classes 1, 2, 3 ... in the column Idx, one a line")
    return [row[-1] for row in rows]


class PairInspection(NamedTuple):
    """What decoding a picture and its classes showed; `problem` is empty for a good pair."""

    image: ImageInspection
    num_bytes: int
    digest: str
    problem: str = ""
    values: bytes = b""  # the numbers that occur, each as a byte


def inspect_pair(paths: tuple[str, str], allowed: frozenset[int], measured_in: str = "") -> PairInspection:
    """Decode a picture and its classes, which must be `allowed`."""
    image = inspect_file(paths[0], measured_in)
    if image.problem:
        return PairInspection(image, 0, "", image.problem)
    content = Path(paths[1]).read_bytes()
    digest = hashlib.sha256(f"{image.digest} {hashlib.sha256(content).hexdigest()}".encode()).hexdigest()
    try:
        values = _values(content, image.size, allowed)
    except ValueError as error:
        return PairInspection(image, 0, "", str(error))
    return PairInspection(image, image.num_bytes + len(content), digest, "", values)


def _values(content: bytes, size: tuple[int, int], allowed: frozenset[int]) -> bytes:
    """The numbers in a file of classes; ValueError says what is wrong with it."""
    try:
        with Image.open(io.BytesIO(content)) as mask:
            mask.load()
    except Exception as error:  # decoders raise almost any kind for a damaged file
        raise ValueError(
            f"found classes that cannot be decoded ({str(error).split('<_io.BytesIO')[0].strip()})"
        ) from None
    if mask.mode not in MASK_MODES:
        raise ValueError(f"found classes of mode {mask.mode}, expected one number of 8 bits per pixel (mode L)")
    if mask.size != size:
        sizes = [f"{width}x{height}" for width, height in (size, mask.size)]
        raise ValueError(f"found {sizes[0]} pixels in the image and {sizes[1]} in its classes, expected equal sizes")
    values = np.unique(np.asarray(mask))
    wrong = [int(value) for value in values if int(value) not in allowed]
    if wrong:
        expected = f"0 to {max(allowed - {255})}" + (" and 255" if 255 in allowed else "")
        raise ValueError(f"found classes {shortened(wrong)}, expected {expected}")
    return values.astype(np.uint8).tobytes()
