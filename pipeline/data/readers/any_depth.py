"""Images at any depth of a folder, without labels: which files are read, and which are skipped and why.

Either train/ and val/, or any folder, of whose images `val_share` is set aside as val. A hash of the file names chooses
it, as for class folders. Hidden files, what operating systems leave behind and files of other kinds are skipped by
their names; images that cannot be used are `left_out` by the config, which `describe` writes.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.data.images.images import FileImages
from pipeline.data.readers.folder import FORMATS, is_image, is_left_out, is_utf8, share_of_split
from pipeline.data.samples import Split, shortened

HIDDEN, OTHERS, UNDECODABLE = "hidden or system files", f"not {FORMATS}", "name is not UTF-8"


@dataclass
class FolderContent:
    """The files below a folder, by their paths in it; those that are skipped by the reason."""

    images: list[str] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)  # folders that could not be listed

    def skip(self, reason: str, name: str) -> None:
        self.skipped.setdefault(reason, []).append(name)


def read_any_depth(folder: Path, split: str, val_share: float | None = None, left_out: Collection[str] = ()) -> Split:
    """The files of one split, each with label 0; nothing is decoded."""
    inside = "" if val_share else f"{split}/"
    if not (folder / inside).is_dir():
        problem = f"{split}: folder {split}/ not found; expected train/ and val/, or `val_share` in the config"
        return Split(FileImages(folder, [], []), problems=[problem])
    content, unusable = look_below(folder / inside), {*left_out}
    found = [name for name in (f"{inside}{image}" for image in content.images) if name not in unusable]
    images = share_of_split("", found, split, val_share) if val_share else found
    where = "" if val_share else f"{split}: "
    problems = [where + problem for problem in _problems(found, content, least=2 if val_share else 1)]
    return Split(FileImages(folder, images, [0] * len(images)), problems=problems)


def look_below(folder: Path) -> FolderContent:
    """All files below a folder, in the order of their paths."""
    content = FolderContent()
    for root, files in _folders(folder, content):
        for file in files:
            name = f"{root}{file}"
            if not is_utf8(name):
                content.skip(UNDECODABLE, name.encode(errors="replace").decode())
            elif is_left_out(file):
                content.skip(HIDDEN, name)
            elif is_image(file):
                content.images.append(name)
            else:
                content.skip(OTHERS, name)
    content.images.sort()
    return content


def _folders(folder: Path, content: FolderContent) -> Iterator[tuple[str, list[str]]]:
    """Each folder at or below this one once, also behind links: its path with a slash at the end, and its files."""
    seen = set()
    closed = lambda error: content.closed.append(os.path.relpath(error.filename, folder))  # noqa: E731
    for root, folders, files in os.walk(folder, onerror=closed, followlinks=True):
        place = os.stat(root)
        is_known = (place.st_dev, place.st_ino) in seen
        seen.add((place.st_dev, place.st_ino))
        inside = "" if Path(root) == folder else f"{os.path.relpath(root, folder)}/"
        for name in [] if is_known else folders:
            if is_left_out(name):
                content.skip(HIDDEN, f"{inside}{name}/")
        folders[:] = [] if is_known else sorted(name for name in folders if not is_left_out(name))
        if not is_known:
            yield inside, sorted(files)


def _problems(images: list[str], content: FolderContent, least: int) -> list[str]:
    problems = []
    if len(images) < least:
        problems.append(f"found {len(images)} usable images ({FORMATS}) at any depth, expected {least} or more")
    if content.closed:
        problems.append(f"found {len(content.closed)} folders that cannot be opened: {shortened(content.closed)}")
    return problems
