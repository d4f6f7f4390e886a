"""What a description of a folder is, whatever the folder holds: a config, and what was found besides, in words."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from pipeline.core.config import Strict
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.image_files import depth_problem
from pipeline.core.naming import Name
from pipeline.core.sizes import pair
from pipeline.data.samples import Split, SplitName
from pipeline.data.store.inspection import ImageInspection
from pipeline.data.store.opening import listed

MOST_OPENED = 50  # images of a split whose size is looked at before all are decoded
GREY_MODES = {"1", "L", "LA", "La"}


class Choices(Strict):
    """What a user says about a folder; None: what the folder suggests."""

    name: Name
    """Name of the data set."""
    image_size: int | None = Field(None, gt=0)
    """Side at which a model sees the images, in pixels."""
    channels: Literal[1, 3] | None = None
    """1: grey, 3: colour."""
    val_share: float | None = Field(None, gt=0, lt=1)
    """Share of the images that becomes val; of each class where there are classes."""
    min_side: int | None = Field(None, gt=0, description="images without labels: smaller ones are left out")
    unlabelled: bool | None = Field(None, description="true: folders are no classes, false: they are")


@dataclass(frozen=True)
class Description:
    """The config of a set and the keys of its file; the rest is for people."""

    config: Any
    content: dict[str, Any]
    sizes: str
    classes: list[str]
    what: str  # such as: your own images, a folder of class folders
    summary: str
    contents: Literal["images", "clips"] = "images"
    notes: Sequence[str] = ()  # what was assumed, left out or found twice


def refuse_min_side(choices: Choices) -> None:
    """For sets of which no file is left out."""
    if choices.min_side:
        raise DataError("--min-side is for images without labels; leave it out, or use --unlabelled")


def cannot_describe(
    folder: Path, problems: Sequence[str], layout: str, what_to_do: str = "fix the folder, then run this again"
) -> DataError:
    problems = list(dict.fromkeys(problems))
    return DataError(
        f"{folder} cannot be described, number of problems: {len(problems)}\n"
        + "".join(f"  - {line}\n" for line in listed(problems))
        + f"expected: {layout}\n"
        f"what to do: {what_to_do}"
    )


def seen_as(
    train: Sequence[ImageInspection], every: Sequence[ImageInspection], choices: Choices
) -> tuple[dict[str, Any], int | None]:
    """Size, channels, mean and std with which a model sees the images, and the side that all of them have, if any."""
    is_grey = {found.mode for found in every} <= GREY_MODES
    channels = choices.channels or (1 if is_grey else 3)
    mean, std = _statistics(train, channels)
    side = _common_side(every)
    return {
        "image_size": choices.image_size or side or _no_size([found.size for found in every]),
        "channels": channels,
        "mean": mean,
        "std": std,
    }, side


def image_keys(every: Sequence[ImageInspection], seen: Mapping[str, Any], side: int | None) -> dict[str, Any]:
    """Keys of a config of images: how they are seen, and whether they are turned by their EXIF orientation."""
    # An image of the right size needs no border cut off.
    eval_crop = 1.0 if side and side == seen["image_size"] else 0.875
    return {**seen, "eval_crop": eval_crop, "upright": any(found.is_turned for found in every)}


def shown_seen(config: Any, sizes: str) -> str:
    """Sizes of the files, and what a model sees of them."""
    upright = ", turned by their EXIF orientation" if config.upright else ""
    side = " x ".join(map(str, pair(config.image_size)))
    return f"{sizes} pixels{upright}, seen as {config.channels} x {side}"


def shown_sizes(inspections: Sequence[ImageInspection]) -> str:
    return _range_of([found.size for found in inspections])


def _range_of(sizes: Collection[tuple[int, int]]) -> str:
    widths, heights = zip(*sizes, strict=True)
    smallest, largest = f"{min(widths)}x{min(heights)}", f"{max(widths)}x{max(heights)}"
    return smallest if smallest == largest else f"{smallest} to {largest}"


def _statistics(inspections: Sequence[ImageInspection], channels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, every image counting the same, for pixels from 0 to 1."""
    # Grey images were measured as RGB, whose channels are then equal.
    mean = np.mean([found.mean[:channels] for found in inspections], axis=0)
    mean_square = np.mean([found.mean_square[:channels] for found in inspections], axis=0)
    std = np.sqrt(np.maximum(mean_square - mean**2, 0))
    return [round(value / 255, 4) for value in mean.tolist()], [round(value / 255, 4) for value in std.tolist()]


def _common_side(inspections: Sequence[ImageInspection]) -> int | None:
    """The side of all images, if they are squares of one size."""
    sizes = {found.size for found in inspections}
    (width, height) = next(iter(sizes))
    return width if len(sizes) == 1 and width == height else None


def refuse_unknown_size(splits: Mapping[SplitName, Split], choices: Choices) -> None:
    """Look at the first images, so that a missing --image-size is an error before all images are decoded."""
    if choices.image_size:
        return
    first = [split.samples.path(at) for split in splits.values() for at in range(min(len(split.samples), MOST_OPENED))]
    sizes = {size for path in first if (size := _size_of(path)) and min(size) >= (choices.min_side or 0)}
    if len(sizes) > 1:
        _no_size(sizes)


def _size_of(path: Path) -> tuple[int, int] | None:
    """Width and height as the header of a file states them; None for a file that is left out or refused later."""
    try:
        with Image.open(path) as image:
            return None if depth_problem(image) else image.size
    except Exception:  # decoders raise almost any kind for a damaged file
        return None


def _no_size(sizes: Collection[tuple[int, int]]) -> int:
    raise ConfigError(
        f"the images have {_range_of(sizes)} pixels, not one square size; "
        "say at which side a model sees them, such as --image-size 224"
    )
