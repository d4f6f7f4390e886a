"""Finds public data sets below the data root of a site: by the names that people use, and by their layout."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.published_sets.sets import SetEntry, catalogue


def find_sets(root: Path) -> dict[str, Path]:
    """Folders of public sets below a data root, or the root itself, by the names of the sets.

    A folder of a known name comes first. Another one counts if it is the only one with a layout that no other set has.
    """
    folders = _folders_in(root)
    found = {name: _find(root, folders, entry) for name, entry in catalogue().items() if entry.holds}
    return {name: folder for name, folder in found.items() if folder}


def looked_for(root: Path | None, name: str) -> str:
    """A sentence on what was looked for where; empty for a set that is never looked for."""
    entry = catalogue().get(name)
    if entry is None or not entry.holds:
        return ""
    content = ", and ".join(" or ".join(alternatives) for alternatives in entry.markers)
    wanted = f"a folder named {' or '.join((entry.folder, *entry.names))} that contains {content}"
    if root is None:
        return f"the site file names no `data_root`, in which Patchwork would look for {wanted}"
    if not root.is_dir():
        return f"data_root {root} not found; expected {wanted} in it"
    return "; ".join([f"looked in {root} for {wanted}, found none", *_unread(root, entry)])


def _find(root: Path, folders: list[Path], entry: SetEntry) -> Path | None:
    named = [folder for name in (entry.folder, *entry.names) for folder in _named(root, folders, name, entry)]
    if found := next((folder for folder in named if is_set(folder, entry)), None):
        return found
    others = [folder for folder in (root, *folders) if folder not in named] if entry.is_distinct else [root]
    alike = [folder for folder in others if is_set(folder, entry)]
    return alike[0] if len(alike) == 1 else None


def _named(root: Path, folders: list[Path], name: str, entry: SetEntry) -> Iterator[Path]:
    """Folders of a name such as `coco` or `coco/2017`, and those in them that have a name of the set again."""
    first, *rest = name.split("/")
    again = {_plain(each) for each in (entry.folder, *entry.names)}
    for folder in folders:
        if _plain(folder.name) == _plain(first):
            yield folder.joinpath(*rest)
            yield from (below for below in _folders_in(folder) if not rest and _plain(below.name) in again)


def is_set(folder: Path, entry: SetEntry) -> bool:
    """Whether a folder has the layout of the set."""
    has_all = all(any(_exists(folder / place) for place in places) for places in entry.markers)
    return has_all and not any(_exists(folder / place) for place in entry.lacks)


def _unread(root: Path, entry: SetEntry) -> list[str]:
    """Forms of the set that are there and are not read, and why."""
    places = (root, *_folders_in(root))
    found = [(folder / name, why) for name, why in entry.not_read.items() for folder in places]
    return [f"found {path}, {why}" for path, why in found if _exists(path)]


def _folders_in(root: Path) -> list[Path]:
    """The folders in a folder, sorted; none where it cannot be read."""
    try:
        paths = sorted(root.iterdir())
    except OSError:
        return []
    return [path for path in paths if path.name[0] != "." and os.path.isdir(path)]


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder, as far as this user may look."""
    return os.path.exists(path)


def _plain(name: str) -> str:
    """A name without case and punctuation: tiny-imagenet-200 and Tiny_ImageNet_200 are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
