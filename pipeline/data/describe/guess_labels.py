"""Whether the folders below a folder of images are classes, where the user does not say so.

A folder for each year or for each camera is no class. `describe` prints what was assumed, and the option for the other.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pipeline.data.readers.any_depth import look_below
from pipeline.data.readers.folder import has_splits
from pipeline.data.samples import shortened

# 2023, 2023-05, 20230514, "2023-05 Rome"; and the folders that cameras make, such as 100CANON.
DATE = r"(19|20)\d\d([-_. ]?(0[1-9]|1[0-2])([-_. ]?[0-3]\d)?)?(\D.*)?"
CAMERA = r"\d{3}[A-Z0-9_]{5}"


class Guess(NamedTuple):
    """Whether class folders are assumed, and why not; `folders` are those that would be classes."""

    is_labelled: bool
    reason: str = ""
    folders: tuple[str, ...] = ()


def guess_labels(folder: Path) -> Guess:
    """A mixture of both is taken for class folders, which are then refused with what does not fit."""
    paths = [path.split("/") for path in _images_of(folder)]
    folders = tuple(sorted({parts[0] for parts in paths if len(parts) > 1}))
    labelled = Guess(True, folders=folders)
    if not paths or _has_one_split(folder):
        return labelled
    if not folders:
        return Guess(False, "the images lie in no folders")
    if all(re.fullmatch(f"{DATE}|{CAMERA}", name) for name in folders):
        return Guess(False, f"the folders are named like dates or by cameras ({shortened(folders, 3)})", folders)
    depths = {len(parts) for parts in paths}
    if folders[1:] == () and 1 not in depths:
        return Guess(False, f"all images are in one folder ({folders[0]})", folders)
    # Several innermost folders of one name are parts of a layout, such as <class>/images/.
    if 2 not in depths and len({parts[-2] for parts in paths if len(parts) > 1}) > 1:
        return Guess(False, f"the images lie deeper than in one folder each ({'/'.join(paths[0])})", folders)
    return labelled


def _images_of(folder: Path) -> list[str]:
    """Paths of images below the folder, or below train/ and val/ in it."""
    roots = [folder / "train", folder / "val"] if has_splits(folder) else [folder]
    return [image for root in roots for image in look_below(root).images]


def _has_one_split(folder: Path) -> bool:
    """Whether there is train/ without val/, or val/ without train/."""
    return not has_splits(folder) and any((folder / name).is_dir() for name in ("train", "val"))
