"""Describe a folder of class folders for evaluations alone: nothing is decoded here, and no config is written.

Mean and standard deviation are the model's, so only classes and images are counted; `prepare` decodes them. Without
train/ and val/, every image is evaluated; where something is trained on features, a share of each class is set aside.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.config import Layers, shown
from pipeline.core.errors import DataError
from pipeline.data.describe.dense import has_class_maps, object_lists
from pipeline.data.describe.describe import DEFAULT_SHARE
from pipeline.data.describe.description import cannot_describe
from pipeline.data.describe.sounds import has_sounds
from pipeline.data.images.classified import DataConfig
from pipeline.data.images.images import class_problems
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.folder import FORMATS, has_splits

DIGITS = 8  # of the digest of a folder's path, so that two folders of one name have results of their own
LAYOUT = f"<class>/, or val/<class>/, with {FORMATS} images directly in each"
UNKNOWN = 1  # a count that is not known yet


def describe_for_evaluation(folder: Path, seen: Mapping[str, Any], with_train: bool = False) -> DataConfig:
    """The config of a folder as a model sees it: `seen` has image_size, channels, mean and std."""
    if not folder.is_dir():
        raise DataError(f"--data {folder} not found; expected a folder of class folders")
    _refuse_other_formats(folder)
    layout = _layout(folder, with_train)
    counts = {"num_classes": UNKNOWN, "num_val": UNKNOWN, "num_train": UNKNOWN if with_train else 0}
    draft = _parsed(folder, {**seen, **layout, **counts})
    kind = kind_of(draft)
    splits = {split: kind.read(folder, split) for split in draft.splits}
    problems = [problem for split in splits.values() for problem in split.problems] + class_problems(splits)
    if problems:
        what_to_do = "fix the folder, then run this again; `attack` takes images without classes as --image FILE"
        raise cannot_describe(folder, problems, LAYOUT, what_to_do)
    found = {f"num_{name}": len(split.samples) for name, split in splits.items()}
    labels = {label for split in splits.values() for label in split.samples.labels}
    return _parsed(folder, {**seen, **layout, **counts, **found, "num_classes": max(labels) + 1})


def _parsed(folder: Path, content: dict[str, Any]) -> Any:
    return parse_data(Layers((shown(folder), {"name": _name(folder), "upright": True, **content})), "data.")


def _name(folder: Path) -> str:
    readable = re.sub("[^A-Za-z0-9_-]+", "_", folder.name).strip("_-") or "images"
    return f"{readable}-{hashlib.sha256(str(folder).encode()).hexdigest()[:DIGITS]}"


def _layout(folder: Path, with_train: bool) -> dict[str, Any]:
    """Which source reads the folder, and how."""
    if has_splits(folder) or ((folder / "val").is_dir() and not with_train):
        return {"source": "folder"}
    for there, missing in (("train", "val"), ("val", "train")):
        if (folder / there).is_dir():
            raise DataError(
                f"--data {folder}: found {there}/ but not {missing}/; add it, or name {folder / there} to use all of "
                "its images"
            )
    return {"source": "folder", "val_share": DEFAULT_SHARE} if with_train else {"source": "class_folders"}


def _refuse_other_formats(folder: Path) -> None:
    formats = {"COCO": object_lists, "ADE20K": has_class_maps, "Speech Commands": has_sounds}
    for name, is_found in formats.items():
        if is_found(folder):
            raise DataError(
                f"--data {folder} is in the format of {name}; expected class folders of images, which models of timm "
                "are evaluated on: train a run on it instead"
            )
