"""Describing a folder in the format of COCO, or in the layout of ADE20K."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipeline.core.config import Layers, parse
from pipeline.core.errors import DataError
from pipeline.data.dense.detection import Detection, DetectionConfig
from pipeline.data.dense.pictures import MODES, DenseConfig
from pipeline.data.dense.segmentation import Segmentation, SegmentationConfig, inspect_pairs
from pipeline.data.describe.description import (
    Choices,
    Description,
    cannot_describe,
    refuse_min_side,
    seen_as,
    shown_sizes,
)
from pipeline.data.describe.duplicates import duplicate_notes
from pipeline.data.readers.ade20k import PUBLISHED
from pipeline.data.readers.coco import PARTS as LISTS
from pipeline.data.samples import Split, SplitName, shortened
from pipeline.data.store.inspection import ImageInspection, inspect_images

SPLITS: tuple[SplitName, ...] = get_args(SplitName)
HEAD = 2000  # bytes of a JSON file in which a list of COCO names one of its parts
UNKNOWN = {
    "num_classes": 1,
    "num_train": 1,
    "num_val": 1,
    "image_size": 1,
    "channels": 3,
    "mean": [0] * 3,
    "std": [1] * 3,
}
ALL_NUMBERS = frozenset(range(256))


# COCO


def object_lists(folder: Path) -> list[Path]:
    """JSON files of a folder, or of folders in it, that look like lists of objects."""
    found = sorted([*folder.glob("*.json"), *folder.glob("*/*.json")])
    return [path for path in found if path.is_file() and _looks_like_a_list(path)]


def describe_objects(folder: Path, lists: list[Path], choices: Choices, workers: int, progress: bool) -> Description:
    """Describe pictures with objects."""
    _refuse_share(choices)
    names: dict[str, str] = {}
    for split in SPLITS:
        path = _list_of(folder, lists, split)
        names[f"{split}_annotations"] = path.relative_to(folder).as_posix()
        names[f"{split}_images"] = _images_of(folder, path, split)
    kind = Detection(DetectionConfig(name=choices.name, **UNKNOWN, **names))
    splits = {split: kind.read(folder, split) for split in SPLITS}
    problems = [problem for found in splits.values() for problem in found.problems] + kind.split_problems(splits)
    mode = MODES[choices.channels or 3]
    looks = inspect_images(choices.name, splits, workers, progress, measured_in=mode) if not problems else {}
    for split, found in looks.items():
        problems += kind.sample_problems(splits[split].samples, found)
    if problems:
        raise cannot_describe(folder, problems, f"lists and images of COCO's format, such as {kind.layout}")
    known = {"num_classes": len(splits["train"].classes), "drop_empty": True, **names}
    return _description(DetectionConfig, "objects", "COCO's format", splits, looks, choices, known)


def _looks_like_a_list(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return any(f'"{part}"'.encode() in head for part in (*LISTS, "info", "licenses"))


def _list_of(folder: Path, lists: list[Path], split: SplitName) -> Path:
    """The list of a split, by its name; `instances_` ones where COCO's captions and keypoints lie next to them."""
    named = [path for path in lists if split in path.relative_to(folder).as_posix().lower()]
    chosen = [path for path in named if path.name.startswith("instances_")] or named
    if len(chosen) != 1:
        found = shortened([path.relative_to(folder).as_posix() for path in lists])
        raise DataError(
            f"{folder}: found {len(chosen)} lists of objects with {split!r} in their name ({found}), expected one; "
            "rename or move lists until there is one with train and one with val, or write the config by hand"
        )
    return chosen[0]


def _images_of(folder: Path, path: Path, split: SplitName) -> str:
    """The folder in which the first listed picture lies, the one with the split in its name before others."""
    try:
        file = json.loads(path.read_bytes())["images"][0]["file_name"]
        places = [folder, *folder.glob("*/"), *folder.glob("*/*/")]
        found = [place.relative_to(folder).as_posix() for place in places if (place / file).is_file()]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path}: found {error!r}, expected a JSON list of images and objects; extract or write it again"
        ) from None
    if not found:
        raise DataError(f"{path}: its first image {file} is not in {folder} or in folders of it; copy the images there")
    return sorted(found, key=lambda name: (split not in name.lower(), name))[0]


# ADE20K


def has_class_maps(folder: Path) -> bool:
    return any((folder / root / "annotations" / "training").is_dir() for root in ("", PUBLISHED))


def describe_pixels(folder: Path, choices: Choices, workers: int, progress: bool) -> Description:
    """Describe pictures with a class per pixel. 255 means no class if it occurs, otherwise 0 does."""
    _refuse_share(choices)
    kind = Segmentation(SegmentationConfig(name=choices.name, **UNKNOWN))
    splits = {split: kind.read(folder, split) for split in SPLITS}
    problems = [problem for found in splits.values() for problem in found.problems]
    mode = MODES[choices.channels or 3]
    pairs = inspect_pairs(choices.name, splits, ALL_NUMBERS, workers, progress, mode) if not problems else {}
    for split, found in pairs.items():
        problems += kind.sample_problems(splits[split].samples, found)
    if problems:
        raise cannot_describe(folder, problems, kind.layout)
    numbers = np.unique(np.frombuffer(b"".join(look.values for found in pairs.values() for look in found), np.uint8))
    ignored = 255 if 255 in numbers else 0
    largest = max((int(number) for number in numbers if number != 255), default=0)
    known = {"num_classes": len(splits["train"].classes) or largest + (ignored == 255), "ignored": ignored}
    if not splits["train"].classes:
        first = 0 if ignored else 1
        splits["train"].classes = [f"class {number}" for number in range(first, first + known["num_classes"])]
    looks = {split: [look.image for look in found] for split, found in pairs.items()}
    return _description(SegmentationConfig, "pixels", "the layout of ADE20K", splits, looks, choices, known)


# Both


def _refuse_share(choices: Choices) -> None:
    if choices.val_share:
        raise DataError("--val-share is for class folders; this folder has train and val of its own: leave it out")
    refuse_min_side(choices)


def _description(
    model: type[DenseConfig],
    what: str,
    format_of: str,
    splits: Mapping[SplitName, Split],
    looks: Mapping[SplitName, Sequence[ImageInspection]],
    choices: Choices,
    known: dict[str, Any],
) -> Description:
    every = [*looks["train"], *looks["val"]]
    seen, _ = seen_as(looks["train"], every, choices)
    counts = {f"num_{split}": len(splits[split].samples) for split in SPLITS}
    config = parse(
        model, Layers((f"configs/data/{choices.name}.yaml", {"name": choices.name, **seen, **counts, **known}))
    )
    content = config.model_dump(mode="json", exclude={"made_from", "part_of"})
    sizes = shown_sizes(every)
    return Description(
        config=config,
        content=content,
        sizes=sizes,
        classes=splits["train"].classes,
        what=f"Your own images in {format_of}",
        summary=f"{config.name}: {config.num_train} train and {config.num_val} val images with {what} of "
        f"{config.num_classes} classes, {sizes} pixels, seen as {config.channels} x {config.image_size} x "
        f"{config.image_size}",
        notes=duplicate_notes(splits, looks),
    )
