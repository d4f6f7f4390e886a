"""CelebA as published: img_align_celeba/, list_attr_celeba.txt and list_eval_partition.txt (Liu et al., ICCV 2015).

Each image has attributes, each of them 1 or -1. The attributes of an image are one label, a number whose bit i is set
where attribute i is 1. val is the published `valid` part, on which ST reports; `test` is not read.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeVar

from pipeline.core.errors import DataError
from pipeline.data.images.images import FileImages
from pipeline.data.readers.imagenet import image_names
from pipeline.data.samples import Split, shortened

Parsed = TypeVar("Parsed")
IMAGES, ATTRIBUTES, PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
# As downloaded (Img, Anno, Eval), all in one folder, and the folder below itself, as some archives unpack.
IMAGE_PLACES = (IMAGES, f"Img/{IMAGES}", f"{IMAGES}/{IMAGES}", f"celeba/{IMAGES}")
TEXT_PLACES = (".", "Anno", "Eval", "celeba")
PARTS = {"train": "0", "val": "1"}
NUM_PARTS = 3  # the last one is test
MOST_ATTRIBUTES = 63  # bits of a label


def read_celeba(folder: Path, split: str) -> Split:
    """The files of one split; nothing is decoded."""
    problems: list[str] = []
    place = _attempt(problems, _find_images, folder)
    attributes = _attempt(problems, _read_attributes, folder)
    parts = _attempt(problems, _read_partition, folder)
    if place is None or attributes is None or parts is None:
        return Split(FileImages(folder, [], []), problems=problems)
    names, label_of_name = attributes
    chosen = [name for name, part in parts.items() if part == PARTS[split]]
    present = set(image_names(folder / place))
    known = [name for name in chosen if name in label_of_name and name in present]
    images = FileImages(folder, [f"{place}/{name}" for name in known], [label_of_name[name] for name in known])
    return Split(images, names, _mismatches(split, chosen, label_of_name.keys(), present, parts.keys()))


def _attempt(problems: list[str], read: Callable[[Path], Parsed], folder: Path) -> Parsed | None:
    """What `read` returns; if it fails, one more problem, so that all are reported together."""
    try:
        return read(folder)
    except DataError as error:
        problems.append(str(error))
        return None


def _find_images(folder: Path) -> str:
    for place in IMAGE_PLACES:
        if (folder / place).is_dir() and image_names(folder / place):
            return place
    raise DataError(f"no images found in {', '.join(IMAGE_PLACES)}; expected those of {IMAGES}.zip in one of them")


def _read_attributes(folder: Path) -> tuple[list[str], dict[str, int]]:
    """Names of the attributes, and the label of each image."""
    lines = _lines(folder, ATTRIBUTES)
    if len(lines) < 2 or not lines[0].strip().isdigit():
        raise DataError(f"{ATTRIBUTES}: expected the number of images in line 1 and the attributes in line 2")
    names, rows = lines[1].split(), [line.split() for line in lines[2:]]
    if not 0 < len(names) <= MOST_ATTRIBUTES:
        raise DataError(f"{ATTRIBUTES}: found {len(names)} attributes in line 2, expected 1 to {MOST_ATTRIBUTES}")
    bad = [row[0] for row in rows if len(row) != 1 + len(names) or not {*row[1:]} <= {"1", "-1"}]
    if bad:
        raise DataError(f"{ATTRIBUTES}: found {len(bad)} lines without {len(names)} values 1 or -1: {shortened(bad)}")
    if len(rows) != int(lines[0]):
        raise DataError(f"{ATTRIBUTES}: found {len(rows)} images, expected {int(lines[0])} as its line 1 says")
    return names, {row[0]: sum(1 << bit for bit, value in enumerate(row[1:]) if value == "1") for row in rows}


def _read_partition(folder: Path) -> dict[str, str]:
    """The part of each image: 0 train, 1 valid, 2 test."""
    rows = [line.split() for line in _lines(folder, PARTITION)]
    valid = {str(part) for part in range(NUM_PARTS)}
    bad = [row[0] for row in rows if len(row) != 2 or row[1] not in valid]
    if bad:
        raise DataError(f"{PARTITION}: found {len(bad)} lines without a part 0, 1 or 2: {shortened(bad)}")
    return {row[0]: row[1] for row in rows}


def _lines(folder: Path, name: str) -> list[str]:
    for place in TEXT_PLACES:
        if (folder / place / name).is_file():
            text = (folder / place / name).read_text(encoding="utf-8", errors="replace")
            return [line for line in text.splitlines() if line.strip()]
    raise DataError(f"{name} not found in {', '.join(TEXT_PLACES)}")


def _mismatches(
    split: str, chosen: list[str], labelled: AbstractSet[str], present: AbstractSet[str], listed: AbstractSet[str]
) -> list[str]:
    """How the images on disk and the two lists differ; what is in no part is reported with train."""
    nowhere = sorted(present - listed) if split == "train" else []
    return [
        f"{split}: found {len(found)} {what}: {shortened(found)}"
        for found, what in (
            ([name for name in chosen if name not in present], f"images of {PARTITION} that are not in {IMAGES}"),
            ([name for name in chosen if name not in labelled], f"images of {PARTITION} that {ATTRIBUTES} lacks"),
            (nowhere, f"images in {IMAGES} that {PARTITION} does not list"),
        )
        if found
    ]
