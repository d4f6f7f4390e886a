"""Look at a folder of class folders and write the config of a data set for it: counts, classes, mean, std, split.

The config is a file to keep under version control: from then on the set is checked against it like a published one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml
from pydantic import Field

from pipeline.config import CONFIGS, Layers, Strict, parse, read_yaml, shown
from pipeline.data.classified import DataConfig
from pipeline.data.folder import class_names, has_splits, read_folder
from pipeline.data.images import class_problems
from pipeline.data.inspection import ImageInspection, image_problems, inspect_images
from pipeline.data.kind import DataName
from pipeline.data.opening import listed
from pipeline.data.pictures import MODES
from pipeline.data.samples import Split, SplitName, shortened
from pipeline.data.sources import SOURCES
from pipeline.errors import ConfigError, DataError
from pipeline.files import write_text
from pipeline.sizes import pair

DEFAULT_SHARE = 0.1
GREY_MODES = {"1", "L", "LA", "La"}


class Choices(Strict):
    """What a user says about a folder; None: what the folder suggests."""

    name: DataName
    image_size: int | None = Field(None, gt=0)
    channels: Literal[1, 3] | None = None
    val_share: float | None = Field(None, gt=0, lt=1)


@dataclass(frozen=True)
class Description:
    """The config of a set, and what was found besides, in words."""

    config: DataConfig
    sizes: str
    classes: list[str]

    @property
    def summary(self) -> str:
        cfg = self.config
        split = f"{cfg.val_share:g} of each class is val" if cfg.val_share else "split by folder"
        return (
            f"{cfg.name}: {cfg.num_train} train and {cfg.num_val} val images ({split}) of {cfg.num_classes} classes, "
            f"{self.sizes} pixels, seen as {cfg.channels} x {' x '.join(map(str, pair(cfg.image_size)))}"
        )


def describe(folder: Path, choices: Choices, workers: int = 0, progress: bool = True) -> Description:
    """Decode every image of the folder, and say what its config is."""
    val_share = _val_share(folder, choices.val_share)
    splits = {split: read_folder(folder, split, val_share) for split in get_args(SplitName)}
    problems = [problem for split in splits.values() for problem in split.problems] + class_problems(splits)
    mode = MODES[choices.channels or 3]
    inspections = inspect_images(choices.name, splits, workers, progress, measured_in=mode) if not problems else {}
    for split, found in inspections.items():
        problems += image_problems(splits[split].samples, found)
    if problems:
        raise _cannot_describe(folder, problems)
    content = _content(splits, inspections, choices) | {"val_share": val_share}
    config = parse(DataConfig, Layers((shown(config_path(choices.name)), content)))
    every = [*inspections["train"], *inspections["val"]]
    return Description(config, _sizes(every), class_names(folder, val_share))


def config_path(name: str) -> Path:
    return CONFIGS / "data" / f"{name}.yaml"


def write_config(description: Description, force: bool) -> bool:
    """Write the config file; returns whether it changed. One that says something else is kept without `force`."""
    path, content = config_path(description.config.name), _fields(description.config)
    if path.exists() and not force:
        known = read_yaml(path).get("data")
        if known == content:
            return False
        raise ConfigError(
            f"{shown(path)}: {_difference(known, content)}; use --force to overwrite the file, or choose another --name"
        )
    write_text(path, _yaml(description, content))
    return True


def _val_share(folder: Path, chosen: float | None) -> float | None:
    if not folder.is_dir():
        raise DataError(f"folder {folder} not found; give the folder of your class folders")
    if has_splits(folder):
        if chosen:
            raise DataError(f"{folder} has train/ and val/ already; leave out --val-share, or give one of the two")
        return None
    alone = [name for name in ("train", "val") if (folder / name).is_dir()]
    if alone:
        raise DataError(
            f"{folder}: found {alone[0]}/ but not {'val' if alone == ['train'] else 'train'}/; add it (a folder of "
            f"another name, such as test/, can be renamed), or describe {folder / alone[0]} alone, with --val-share"
        )
    return chosen or DEFAULT_SHARE


def _cannot_describe(folder: Path, problems: list[str]) -> DataError:
    problems = list(dict.fromkeys(problems))
    return DataError(
        f"{folder} cannot be described, number of problems: {len(problems)}\n"
        + "".join(f"  - {line}\n" for line in listed(problems))
        + f"expected: {SOURCES['folder'].layout}\n"
        "what to do: fix the folder, then run this again"
    )


def _content(
    splits: dict[SplitName, Split], inspections: dict[SplitName, list[ImageInspection]], choices: Choices
) -> dict[str, Any]:
    train, every = inspections["train"], [*inspections["train"], *inspections["val"]]
    is_grey = {found.mode for found in every} <= GREY_MODES
    channels = choices.channels or (1 if is_grey else 3)
    mean, std = _statistics(train, channels)
    side = _common_side(every)
    return {
        "name": choices.name,
        "source": "folder",
        "image_size": choices.image_size or side or _no_size(every),
        "channels": channels,
        "num_classes": len(set(splits["train"].classes)),
        "num_train": len(splits["train"].samples),
        "num_val": len(splits["val"].samples),
        "mean": mean,
        "std": std,
        # An image of the right size needs no border cut off.
        "eval_crop": 1.0 if side and side == (choices.image_size or side) else 0.875,
    }


def _statistics(inspections: list[ImageInspection], channels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, every image counting the same, for pixels from 0 to 1."""
    # Grey images were measured as RGB, whose channels are then equal.
    mean = np.mean([found.mean[:channels] for found in inspections], axis=0)
    mean_square = np.mean([found.mean_square[:channels] for found in inspections], axis=0)
    std = np.sqrt(np.maximum(mean_square - mean**2, 0))
    return [round(value / 255, 4) for value in mean.tolist()], [round(value / 255, 4) for value in std.tolist()]


def _common_side(inspections: list[ImageInspection]) -> int | None:
    """The side of all images, if they are squares of one size."""
    sizes = {found.size for found in inspections}
    (width, height) = next(iter(sizes))
    return width if len(sizes) == 1 and width == height else None


def _no_size(inspections: list[ImageInspection]) -> int:
    raise ConfigError(
        f"the images have {_sizes(inspections)} pixels, not one square size; "
        "say at which side a model sees them, such as --image-size 224"
    )


def _sizes(inspections: list[ImageInspection]) -> str:
    widths, heights = zip(*(found.size for found in inspections), strict=True)
    smallest, largest = f"{min(widths)}x{min(heights)}", f"{max(widths)}x{max(heights)}"
    return smallest if smallest == largest else f"{smallest} to {largest}"


def _fields(config: DataConfig) -> dict[str, Any]:
    """The keys of the config file, in the order of the class."""
    left_out = {"augment", "kind"} | ({"val_share"} if config.val_share is None else set())
    content = config.model_dump(mode="json", exclude=left_out)
    augment = config.augment.model_dump(mode="json", include={"crop", "hflip", "interpolation"})
    return {**content, "augment": augment}


def _difference(known: Any, content: dict[str, Any]) -> str:
    if not isinstance(known, dict):
        return "exists, and is not the config of a data set"
    keys = [key for key in {**known, **content} if known.get(key) != content.get(key)]
    return "exists with other values: " + "; ".join(
        f"{key} is {known.get(key, 'not given')}, found {content.get(key, 'nothing')}" for key in keys
    )


def _yaml(description: Description, content: dict[str, Any]) -> str:
    # Names come from outside: a line break in one must not end the comment.
    classes = shortened(description.classes, 20).encode("unicode_escape").decode()
    header = [
        f"Your own images, a folder of class folders; the site file says where: `data: {{{content['name']}: /path}}`.",
        "Written by `python -m pipeline describe`; mean and std are those of the train images.",
        f"Images of {description.sizes} pixels. Classes, from label 0 on: {classes}.",
    ]
    body = yaml.safe_dump({"data": content}, sort_keys=False, default_flow_style=None, width=110)
    return "".join(f"# {line}\n" for line in header) + body
