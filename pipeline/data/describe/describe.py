"""Look at a folder and write the config of a data set for it: counts, classes, mean, std, split.

The folder holds class folders or images without labels, or is in the format of COCO, or in the layout of ADE20K or of
Speech Commands. The config is a file to keep under version control: from then on the set is checked against it like a
published one.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import yaml

from pipeline.core.config import CONFIGS, Layers, parse, read_yaml, shown
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.files import write_text
from pipeline.data.dense.pictures import MODES
from pipeline.data.describe.dense import describe_objects, describe_pixels, has_class_maps, object_lists
from pipeline.data.describe.description import Choices as Choices
from pipeline.data.describe.description import (
    Description,
    cannot_describe,
    image_keys,
    refuse_min_side,
    refuse_unknown_size,
    seen_as,
    shown_seen,
    shown_sizes,
)
from pipeline.data.describe.duplicates import duplicate_notes
from pipeline.data.describe.guess_labels import Guess, guess_labels
from pipeline.data.describe.sounds import describe_sounds, has_sounds, refuse_sounds_without_lists
from pipeline.data.describe.unlabelled import describe_unlabelled
from pipeline.data.images.classified import DataConfig
from pipeline.data.images.images import class_problems
from pipeline.data.readers.folder import class_names, has_splits, read_folder
from pipeline.data.readers.sources import SOURCES
from pipeline.data.samples import SplitName, one_line, shortened
from pipeline.data.store.inspection import image_problems, inspect_images

DEFAULT_SHARE = 0.1


def describe(folder: Path, choices: Choices, workers: int = 0, progress: bool = True) -> Description:
    """Decode every image or clip of the folder, and say what its config is."""
    if not folder.is_dir():
        raise DataError(f"folder {folder} not found; give the folder of your images")
    if choices.unlabelled is not None:
        return _describe_images(folder, choices, workers, progress)
    if lists := object_lists(folder):
        return describe_objects(folder, lists, choices, workers, progress)
    if has_class_maps(folder):
        return describe_pixels(folder, choices, workers, progress)
    if has_sounds(folder):
        return describe_sounds(folder, choices, workers, progress)
    return _describe_images(folder, choices, workers, progress)


def config_path(name: str) -> Path:
    return CONFIGS / "data" / f"{name}.yaml"


def write_config(description: Description, force: bool) -> bool:
    """Write the config file; returns whether it changed. One that says something else is kept without `force`."""
    path, content = config_path(description.config.name), description.content
    if path.exists() and not force:
        known = read_yaml(path).get("data")
        if known == content:
            return False
        raise ConfigError(
            f"{shown(path)}: {_difference(known, content)}; use --force to overwrite the file, or choose another --name"
        )
    write_text(path, _yaml(description))
    return True


def _describe_images(folder: Path, choices: Choices, workers: int, progress: bool) -> Description:
    """Describe class folders, or images without labels where the folders do not look like classes."""
    guess = guess_labels(folder) if choices.unlabelled is None else Guess(is_labelled=not choices.unlabelled)
    how = _describe_classes if guess.is_labelled else describe_unlabelled
    found = how(folder, choices, _val_share(folder, choices, guess), workers, progress)
    if choices.unlabelled is not None:
        return found
    classes = f"{len(found.classes)} folders are classes ({shortened(found.classes, 3)}); if not, use --unlabelled"
    nothing = f"no labels, because {guess.reason}; if each folder is a class, use --class-folders"
    note = f"assumed: {classes if guess.is_labelled else nothing}"
    return replace(found, notes=[one_line(note), *found.notes])


def _describe_classes(
    folder: Path, choices: Choices, val_share: float | None, workers: int, progress: bool
) -> Description:
    """Describe class folders."""
    refuse_min_side(choices)
    splits = {split: read_folder(folder, split, val_share) for split in get_args(SplitName)}
    problems = [problem for split in splits.values() for problem in split.problems] + class_problems(splits)
    for found in splits.values():
        found.samples.upright = True
    if not problems:
        refuse_unknown_size(splits, choices)
    mode = MODES[choices.channels or 3]
    inspections = inspect_images(choices.name, splits, workers, progress, measured_in=mode) if not problems else {}
    for split, looks in inspections.items():
        problems += image_problems(splits[split].samples, looks)
    if problems:
        refuse_sounds_without_lists(folder)
        what_to_do = "if the folders are classes, fix them; if not, add --unlabelled; then run this again"
        raise cannot_describe(folder, problems, SOURCES["folder"].layout, what_to_do)
    every = [*inspections["train"], *inspections["val"]]
    seen, side = seen_as(inspections["train"], every, choices)
    content = {
        "name": choices.name,
        "source": "folder",
        "num_classes": len(set(splits["train"].classes)),
        "num_train": len(splits["train"].samples),
        "num_val": len(splits["val"].samples),
        **image_keys(every, seen, side),
        "val_share": val_share,
    }
    config = parse(DataConfig, Layers((shown(config_path(choices.name)), content)))
    sizes = shown_sizes(every)
    return Description(
        config=config,
        content=_fields(config),
        sizes=sizes,
        classes=class_names(folder, val_share),
        what="Your own images, a folder of class folders",
        summary=_summary(config, sizes),
        notes=duplicate_notes(splits, inspections),
    )


def _val_share(folder: Path, choices: Choices, guess: Guess) -> float | None:
    """The share of the images that is val; None where train/ and val/ are folders."""
    chosen = choices.val_share
    if has_splits(folder):
        if chosen:
            raise DataError(f"{folder} has train/ and val/ already; leave out --val-share, or give one of the two")
        return None
    alone = [name for name in ("train", "val") if (folder / name).is_dir()]
    if alone and guess.is_labelled:
        raise DataError(
            f"{folder}: found {alone[0]}/ but not {'val' if alone == ['train'] else 'train'}/; add it (a folder of "
            f"another name, such as test/, can be renamed), or describe {folder / alone[0]} alone, with --val-share; "
            "--unlabelled takes all images of the folder, without labels"
        )
    return chosen or DEFAULT_SHARE


def _summary(cfg: DataConfig, sizes: str) -> str:
    split = f"{cfg.val_share:g} of each class is val" if cfg.val_share else "split by folder"
    return (
        f"{cfg.name}: {cfg.num_train} train and {cfg.num_val} val images ({split}) of {cfg.num_classes} classes, "
        f"{shown_seen(cfg, sizes)}"
    )


def _fields(config: DataConfig) -> dict[str, Any]:
    """The keys of the config file, in the order of the class."""
    left_out = {"augment", "kind"} | {key for key in ("val_share", "upright") if not getattr(config, key)}
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


def _yaml(description: Description) -> str:
    content = description.content
    classes = one_line(shortened(description.classes, 20))
    labels = f"Classes, from label 0 on: {classes}." if classes else "No labels: for pretraining."
    unit = " pixels" if description.contents == "images" else ""
    header = [
        f"{description.what}; the site file says where: `data: {{{content['name']}: /path}}`.",
        f"Written by `python -m pipeline describe`; mean and std are those of the train {description.contents}.",
        f"{description.contents.title()} of {description.sizes}{unit}. {labels}",
    ]
    body = yaml.safe_dump({"data": content}, sort_keys=False, default_flow_style=None, width=110)
    return "".join(f"# {line}\n" for line in header) + body
