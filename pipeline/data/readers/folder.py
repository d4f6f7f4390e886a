"""A plain folder of class folders: any class names, any image files of the usual kinds.

Either train/<class>/ and val/<class>/, or <class>/ alone: then `val_share` of each class is set aside as val. A hash of
the file names chooses it, so it is the same on every machine, and a new image moves hardly any other. ImageNet-A and
sets that are made in its layout have <class>/ alone, and all of it is val.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from pipeline.data.images.images import FileImages
from pipeline.data.samples import Split, shortened

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = "PNG, JPEG, BMP, WebP, TIFF or PPM"
# What operating systems leave behind; names that begin with a dot are left out too.
LEFTOVERS = {"Thumbs.db", "desktop.ini", "__MACOSX"}


def read_folder(folder: Path, split: str, val_share: float | None = None) -> Split:
    """The files of one split; nothing is decoded. A class index is the position among the sorted class names."""
    inside = "" if val_share else f"{split}/"
    if not (folder / inside).is_dir():
        return Split(FileImages(folder, [], []), problems=[_no_split(split)])
    classes, all_classes = _class_names(folder / inside), class_names(folder, val_share)
    label_of_class = {name: label for label, name in enumerate(all_classes)}
    contents = {name: _look_into(folder / inside / name) for name in classes}
    files, labels = [], []
    for name, content in contents.items():
        images = share_of_split(name, content.images, split, val_share) if val_share else content.images
        files += [f"{inside}{name}/{image}" for image in images]
        labels += [label_of_class[name]] * len(images)
    problems = _problems(contents, least=2 if val_share else 1) + _loose_problems(folder / inside, classes)
    where = "" if val_share else f"{split}: "
    return Split(FileImages(folder, files, labels), classes, [where + problem for problem in problems])


def read_class_folders(folder: Path, split: str) -> Split:
    """The layout of ImageNet-A: class folders directly in the set's folder, all of them val; nothing is decoded."""
    folders = sorted(_class_names(folder), key=unquote)
    contents = {name: _look_into(folder / name) for name in folders}
    files = [(f"{name}/{image}", label) for label, name in enumerate(folders) for image in contents[name].images]
    problems = _problems(contents, least=1) + _loose_problems(folder, folders)
    images = FileImages(folder, [file for file, _ in files], [label for _, label in files])
    return Split(images, [unquote(name) for name in folders], problems)


def class_folder(name: str) -> str:
    """The folder of a class in a set that is made: a name may have a slash in it, such as T-shirt/top."""
    return quote(name, safe=" ")


def class_names(folder: Path, val_share: float | None) -> list[str]:
    """Names of the classes of both splits, in the order of their labels."""
    roots = [folder] if val_share else [folder / "train", folder / "val"]
    return sorted({name for root in roots if root.is_dir() for name in _class_names(root)})


def has_splits(folder: Path) -> bool:
    """Whether train and val are separate folders."""
    return (folder / "train").is_dir() and (folder / "val").is_dir()


@dataclass
class _Content:
    """What one class folder contains."""

    images: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def _no_split(split: str) -> str:
    return (
        f"{split}: folder {split}/ not found; expected train/<class>/ and val/<class>/, "
        "or <class>/ alone and `val_share` in the config"
    )


def _class_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not is_left_out(entry.name))


def is_left_out(name: str) -> bool:
    return name.startswith(".") or name in LEFTOVERS


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _look_into(folder: Path) -> _Content:
    content = _Content()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_left_out(entry.name):
            continue
        # The kind of an entry comes with its name: no question to the disk for each of a million files.
        kind = content.folders if entry.is_dir() else content.images if is_image(entry.name) else content.others
        kind.append(entry.name)
    return content


def share_of_split(name: str, images: list[str], split: str, val_share: float) -> list[str]:
    """The images of one class that belong to a split."""
    ranked = sorted(images, key=lambda image: hashlib.sha256(os.fsencode(f"{name}/{image}")).digest())
    # At least one image of each class in both splits.
    num_val = min(max(1, round(val_share * len(images))), len(images) - 1)
    val = set(ranked[:num_val])
    return [image for image in images if (image in val) == (split == "val")]


def _problems(contents: dict[str, _Content], least: int) -> list[str]:
    """All that is wrong in class folders, one line for each kind."""
    few = [name for name, content in contents.items() if len(content.images) < least]
    nested = [f"{name}/{folder}" for name, content in contents.items() for folder in content.folders]
    others = [f"{name}/{file}" for name, content in contents.items() for file in content.others]
    names = [f"{name}/{image}" for name, content in contents.items() for image in content.images]
    undecodable = [name.encode(errors="replace").decode() for name in names if not is_utf8(name)]
    return [
        f"found {len(found)} {what}: {shortened(found)}; {remedy}"
        for found, what, remedy in (
            (few, f"classes with fewer than {least} images", "add images or remove the folder"),
            (nested, "folders inside class folders", "expected images directly in each class folder"),
            (others, f"files that are not images ({FORMATS}) in class folders", "move them elsewhere"),
            (undecodable, "file names that are not UTF-8", "rename them"),
        )
        if found
    ]


def _loose_problems(folder: Path, classes: list[str]) -> list[str]:
    """What is wrong next to the class folders; a README or a list of labels may be there."""
    kept = [entry for entry in os.scandir(folder) if not is_left_out(entry.name)]
    loose = sorted(entry.name for entry in kept if is_image(entry.name) and entry.is_file())
    problems = []
    if not classes:
        problems.append("no class folders found; expected one folder of images for each class")
    if loose:
        problems.append(f"found {len(loose)} images outside class folders: {shortened(loose)}; move them into one")
    return problems


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
