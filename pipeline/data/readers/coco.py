"""COCO's layout: a folder of images for each split, and a JSON list of images, categories and annotations.

What cannot be used is refused, all of it at once. What published COCO itself has is handled: boxes without width or
height (they have no pixel, so nobody trains on them), a polygon of two points beside others (left out), crowds (never
trained on, ignored in evaluation), images without objects. `area` may be missing: it is counted then.
"""

import json
import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.errors import DataError
from pipeline.data.dense.coco_samples import CocoSamples, listed_files
from pipeline.data.dense.objects import TableWriter
from pipeline.data.dense.outlines import LEAST_NUMBERS, Outline, bitmap, decompressed
from pipeline.data.samples import Split, shortened

log = logging.getLogger(__name__)
IMAGES = {"train": "train2017", "val": "val2017"}
ANNOTATIONS = {split: f"annotations/instances_{name}.json" for split, name in IMAGES.items()}
PARTS = ("images", "annotations", "categories")
TOLERANCE = 2.0  # pixels by which a box may stick out of its image: rounding


class Faults:
    """What is wrong with the entries of a list: for each kind of mistake, the entries that have it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: dict[str, list[object]] = defaultdict(list)

    def add(self, what: str, name: object) -> None:
        self.found[what].append(name)

    def lines(self) -> list[str]:
        return [f"{self.file}: found {len(names)} {what}: {shortened(names)}" for what, names in self.found.items()]


class _Image(NamedTuple):
    file: str
    height: int
    width: int


def read_coco(folder: Path, split: str, images: str, annotations: str, drop_empty: bool) -> Split:
    """The pictures of a split, by their ids, and their objects; no picture is decoded."""
    nothing = CocoSamples(folder, images, annotations, TableWriter().table([], [], [], [], []))
    try:
        content = _load(folder, annotations)
    except DataError as error:
        return Split(nothing, problems=[str(error)])
    faults = Faults(annotations)
    names = _categories(content["categories"], faults)
    pictures = _images(content["images"], faults)
    entries = _by_image(content["annotations"], pictures, faults)
    usable = {number for number in pictures if any(not entry.get("iscrowd") for entry in entries.get(number, ()))}
    kept = usable if drop_empty else pictures.keys()
    writer, counts = TableWriter(), []
    for number, picture in pictures.items():
        # Those of a picture that is left out are looked at all the same.
        target, before = writer if number in kept else TableWriter(), len(writer.ids)
        _add_objects(entries.get(number, []), picture, list(names), target, faults)
        if number in kept:
            counts.append(len(writer.ids) - before)
    chosen = {number: pictures[number] for number in pictures if number in kept}
    sizes = [(picture.height, picture.width) for picture in chosen.values()]
    table = writer.table([picture.file for picture in chosen.values()], list(chosen), sizes, counts, list(names))
    problems = faults.lines() + _file_problems(folder, images, annotations, [item.file for item in pictures.values()])
    return Split(CocoSamples(folder, images, annotations, table), list(names.values()), problems)


def _load(folder: Path, annotations: str) -> dict[str, list[Any]]:
    try:
        content = json.loads((folder / annotations).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{annotations}: not found; expected a JSON list of images and objects") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{annotations}: truncated or damaged JSON file ({error}); extract or write it again") from None
    lists = [part for part in PARTS if isinstance(content, dict) and isinstance(content.get(part), list)]
    if len(lists) < len(PARTS):
        lacking = ", ".join(part for part in PARTS if part not in lists)
        raise DataError(f"{annotations}: found no list of {lacking}; expected an object of {', '.join(PARTS)}")
    return content


def _categories(entries: list[Any], faults: Faults) -> dict[int, str]:
    """Names of the classes by their ids, in the order of ids; a set may leave out some numbers, as COCO does."""
    found: dict[int, str] = {}
    for place, entry in enumerate(entries):
        if not _has(entry, id=int, name=str):
            faults.add("categories without a whole number `id` and a `name`, at places", place)
        elif entry["id"] in found or entry["name"] in found.values():
            faults.add("categories whose id or name another one has", entry["name"])
        else:
            found[entry["id"]] = entry["name"]
    return dict(sorted(found.items()))


def _images(entries: list[Any], faults: Faults) -> dict[int, _Image]:
    """The pictures by their ids, in the order of ids."""
    found, files = {}, set()
    for place, entry in enumerate(entries):
        if not _has(entry, id=int, file_name=str, width=int, height=int) or min(entry["width"], entry["height"]) < 1:
            faults.add("images without `id`, `file_name`, `width` and `height` (numbers above 0), at places", place)
        elif not _is_inside(entry["file_name"]):
            faults.add("images whose file_name leads out of the folder of images", repr(entry["file_name"]))
        elif entry["id"] in found or entry["file_name"] in files:
            faults.add("images whose id or file_name another one has", entry["file_name"])
        else:
            found[entry["id"]] = _Image(entry["file_name"], entry["height"], entry["width"])
            files.add(entry["file_name"])
    return dict(sorted(found.items()))


def _by_image(entries: list[Any], pictures: Mapping[int, _Image], faults: Faults) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    seen = set()
    for place, entry in enumerate(entries):
        if not _has(entry, id=int, image_id=int, category_id=int):
            faults.add("annotations without whole numbers `id`, `image_id` and `category_id`, at places", place)
        elif entry["id"] in seen:
            faults.add("annotations whose id another one has", entry["id"])
        elif entry["image_id"] not in pictures:
            faults.add("annotations of images that are not listed", entry["id"])
        else:
            found[entry["image_id"]].append(entry)
        if isinstance(entry, dict):
            seen.add(entry.get("id"))
    return found


def _add_objects(
    entries: list[dict[str, Any]], picture: _Image, ids: list[int], target: TableWriter, faults: Faults
) -> None:
    for entry in entries:
        try:
            if entry["category_id"] not in ids:
                raise ValueError("of categories that are not listed")
            if entry.get("iscrowd", 0) not in (0, 1):
                raise ValueError("whose iscrowd is neither 0 nor 1")
            box = _box(entry.get("bbox"), picture)
            outline = outline_of(entry.get("segmentation"), picture.height, picture.width)
            area = _area(entry, outline, picture)
        except ValueError as error:
            faults.add(f"annotations {error}", entry["id"])
            continue
        label = ids.index(entry["category_id"]) + 1
        target.add(entry["id"], label, box, area, int(entry.get("iscrowd", 0)), outline)


def _box(value: Any, picture: _Image) -> list[float]:
    if not isinstance(value, list) or len(value) != 4 or not all(map(_is_number, value)):
        raise ValueError("whose bbox is not four finite numbers: x, y, width, height")
    x, y, width, height = map(float, value)
    if width < 0 or height < 0:
        raise ValueError("whose bbox has a negative width or height")
    beyond = max(-x, -y, x + width - picture.width, y + height - picture.height)
    if beyond > TOLERANCE or x > picture.width or y > picture.height:
        raise ValueError(f"whose bbox leaves the image by more than {TOLERANCE:g} pixels")
    return [x, y, width, height]


def outline_of(value: Any, height: int, width: int) -> Outline:
    """The outline of an annotation; ValueError says what is wrong with it."""
    if isinstance(value, dict):
        return _runs(value, height, width)
    if not isinstance(value, list) or not value:
        raise ValueError("without a segmentation, from which masks are made")
    if not all(isinstance(part, list) and all(map(_is_number, part)) for part in value):
        raise ValueError("whose segmentation is not a list of polygons [x, y, x, y ...] of finite numbers")
    polygons = [np.array(part, dtype=np.float64) for part in value if len(part) >= LEAST_NUMBERS]
    if not polygons:
        raise ValueError(f"whose polygons all have fewer than {LEAST_NUMBERS} numbers")
    if any(len(polygon) % 2 for polygon in polygons):
        raise ValueError("with a polygon of an odd number of numbers")
    if any(_is_far(polygon, height, width) for polygon in polygons):
        raise ValueError("with a polygon far outside the image")
    return polygons


def _is_far(polygon: np.ndarray, height: int, width: int) -> bool:
    """Whether a point is off by more than the image is long: connecting such points would take endless time."""
    return bool((abs(polygon.reshape(-1, 2) / (width, height) - 0.5) > 1.5).any())


def _runs(value: dict[str, Any], height: int, width: int) -> np.ndarray:
    counts = value.get("counts")
    if value.get("size") != [height, width]:
        raise ValueError("whose run lengths (RLE) have another size than the image")
    if isinstance(counts, str):
        try:
            counts = decompressed(counts.encode())
        except ValueError as error:
            raise ValueError(f"with {error}") from None
    if not isinstance(counts, list) or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError("whose run lengths (RLE) are not whole numbers from 0 on")
    if sum(counts) != height * width:
        raise ValueError("whose run lengths (RLE) do not add up to the pixels of the image")
    return np.array(counts, dtype=np.int64)


def _area(entry: dict[str, Any], outline: Outline, picture: _Image) -> float:
    area = entry.get("area")
    if area is None:
        return float(bitmap(outline, picture.height, picture.width).sum())
    if not _is_number(area) or area < 0:
        raise ValueError("whose area is no finite number from 0 on")
    return float(area)


def _file_problems(folder: Path, images: str, annotations: str, listed: list[str]) -> list[str]:
    """What of the list is missing on disk. Files that the list does not name are left out, and counted in the log."""
    if not (folder / images).is_dir():
        return [f"{images}: folder not found"]
    present = set(listed_files(folder / images))
    # A file_name with a folder in it is rare, and then every file is asked for.
    missing = [file for file in listed if file not in present and not (folder / images / file).is_file()]
    if extra := sorted(present - set(listed)):
        log.info(
            "%s: %d files that %s does not list are left out: %s", images, len(extra), annotations, shortened(extra)
        )
    return [f"{images}: found {len(missing)} images of {annotations} missing: {shortened(missing)}"] if missing else []


def _has(entry: Any, **types: type) -> bool:
    return isinstance(entry, dict) and all(type(entry.get(key)) is kind for key, kind in types.items())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\n" not in name and "\0" not in name
