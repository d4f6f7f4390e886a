"""Describing a folder of images without labels: what can be used of it, and what is left out and why."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pipeline.core.config import Layers, parse
from pipeline.core.errors import DataError
from pipeline.data.dense.pictures import MODES
from pipeline.data.describe.description import (
    Choices,
    Description,
    cannot_describe,
    image_keys,
    refuse_unknown_size,
    seen_as,
    shown_seen,
    shown_sizes,
)
from pipeline.data.describe.duplicates import duplicate_notes
from pipeline.data.images.unlabelled import UnlabelledConfig
from pipeline.data.readers.any_depth import OTHERS, look_below, read_any_depth
from pipeline.data.readers.sources import SOURCES
from pipeline.data.samples import Split, SplitName, one_line, shortened
from pipeline.data.store.inspection import ImageInspection, inspect_images

SMALLEST = 4  # an image may be enlarged so many times to the size at which a model sees it
MOST_LEFT_OUT = 1000  # files that a config names
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
DAMAGED, DEEP = "cannot be decoded", "more than 8 bits per channel"


def describe_unlabelled(
    folder: Path, choices: Choices, val_share: float | None, workers: int, progress: bool
) -> Description:
    """Describe images at any depth; those that cannot be used are left out by name: the set stays what it is."""
    splits = {split: read_any_depth(folder, split, val_share) for split in SPLITS}
    problems = [problem for split in splits.values() for problem in split.problems]
    if problems:
        raise cannot_describe(folder, problems, SOURCES["any_depth"].layout)
    refuse_unknown_size(splits, choices)
    for split in splits.values():
        split.samples.upright = True
    looks = _by_name(splits, inspect_images(choices.name, splits, workers, progress, MODES[choices.channels or 3]))
    unusable = _unusable(looks, choices)
    left_out = sorted(name for names in unusable.values() for name in names)
    _refuse_many(folder, left_out)
    splits = {split: read_any_depth(folder, split, val_share, left_out) for split in SPLITS}
    notes = [*_left_out_notes(folder, splits, val_share, unusable)]
    problems = [problem for split in splits.values() for problem in split.problems]
    if problems:
        raise cannot_describe(folder, [*problems, *notes], SOURCES["any_depth"].layout)
    used = {split: [looks[name] for name in _names(found)] for split, found in splits.items()}
    return _description(splits, used, choices, val_share, left_out, notes)


def _description(
    splits: Mapping[SplitName, Split],
    used: Mapping[SplitName, list[ImageInspection]],
    choices: Choices,
    val_share: float | None,
    left_out: list[str],
    notes: list[str],
) -> Description:
    every = [look for looks in used.values() for look in looks]
    seen, side = seen_as(used["train"], every, choices)
    content: dict[str, Any] = {
        "name": choices.name,
        "kind": "unlabelled",
        "num_train": len(used["train"]),
        "num_val": len(used["val"]),
        **image_keys(every, seen, side),
        "val_share": val_share,
        "left_out": left_out,
    }
    config = parse(UnlabelledConfig, Layers(("the folder", content)))
    split = f"{val_share:g} is val" if val_share else "split by folder"
    return Description(
        config=config,
        content=_fields(config),
        sizes=shown_sizes(every),
        classes=[],
        what="Your own images, without labels",
        summary=f"{config.name}: {config.num_train} train and {config.num_val} val images ({split}) without labels, "
        f"{shown_seen(config, shown_sizes(every))}",
        notes=[*notes, *duplicate_notes(splits, used)],
    )


def _by_name(
    splits: Mapping[SplitName, Split], looks: Mapping[SplitName, list[ImageInspection]]
) -> dict[str, ImageInspection]:
    return {name: look for split in SPLITS for name, look in zip(_names(splits[split]), looks[split], strict=True)}


def _names(split: Split) -> list[str]:
    return [split.samples.name(index) for index in range(len(split.samples))]


def _unusable(looks: Mapping[str, ImageInspection], choices: Choices) -> dict[str, list[str]]:
    """Reason -> images that are left out for it."""
    least = choices.min_side or (choices.image_size or 0) // SMALLEST
    small = f"a side below {least} pixels (--min-side)"
    found: dict[str, list[str]] = {}
    for name, look in sorted(looks.items()):
        if look.problem:
            found.setdefault(DEEP if look.mode else DAMAGED, []).append(name)
        elif min(look.size) < least:
            found.setdefault(small, []).append(name)
    return found


def _refuse_many(folder: Path, left_out: list[str]) -> None:
    if len(left_out) > MOST_LEFT_OUT:
        raise DataError(
            f"{folder}: found {len(left_out)} images that cannot be used, such as {shortened(left_out, 3)}; expected "
            f"at most {MOST_LEFT_OUT}, which the config names; move them elsewhere, or lower --min-side"
        )


def _left_out_notes(
    folder: Path, splits: Mapping[SplitName, Split], val_share: float | None, unusable: Mapping[str, list[str]]
) -> Iterable[str]:
    """One line for each reason for which files are left out."""
    skipped: dict[str, list[str]] = {}
    for root in [""] if val_share else [f"{split}/" for split in splits]:
        for reason, names in look_below(folder / root).skipped.items():
            skipped.setdefault(reason, []).extend(f"{root}{name}" for name in names)
    for reason, names in skipped.items():
        shown = _by_ending(names) if reason == OTHERS else shortened(names, 3)
        yield one_line(f"left out, {reason}: {len(names)} ({shown})")
    for reason, names in unusable.items():
        yield one_line(f"left out, {reason}: {len(names)} ({shortened(names, 3)})")


def _by_ending(names: list[str]) -> str:
    """How many files have each ending."""
    endings = [Path(name).suffix.lower() or "no ending" for name in names]
    counts = sorted({ending: endings.count(ending) for ending in {*endings}}.items(), key=lambda item: (-item[1], item))
    return shortened([f"{ending} {count}" for ending, count in counts])


def _fields(config: UnlabelledConfig) -> dict[str, Any]:
    """The keys of the config file, in an order for readers."""
    keys = ["name", "kind", "image_size", "channels", "num_train", "num_val", "val_share", "mean", "std", "eval_crop"]
    content = config.model_dump(mode="json", include={*keys, "upright", "left_out"})
    content = {key: content[key] for key in [*keys, "upright", "left_out"] if content[key] not in (None, False, [])}
    augment = config.augment.model_dump(mode="json", include={"crop", "hflip", "interpolation"})
    return {**content, "augment": augment}
