"""Extracting archives that came from outside."""

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tqdm import tqdm

LEFT_OUT = "__MACOSX"  # what macOS adds to zip archives


def extract(archive: Path, folder: Path, progress: bool = False) -> None:
    """Extract with the data filter: nothing lands outside the folder, nothing but data.

    Python before 3.11.4, Debian 12's among them, has no filter: there only plain files and folders are accepted.
    """
    if archive.suffix == ".zip":
        _extract_zip(archive, folder, progress)
        return
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, _bar(tar, archive, progress), filter="data")
            return
        for member in _bar(tar, archive, progress):
            if not _is_inside(member.name) or not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"{member.name!r} is not a plain file or folder inside the archive")
            member.mode = 0o755 if member.isdir() else 0o644
            tar.extract(member, folder)


def unpacked_size(archive: Path) -> int:
    """Bytes of all files in a zip archive, as numpy's are; 0 for a tar archive, which has no table of contents."""
    if archive.suffix not in (".zip", ".npz"):
        return 0
    with zipfile.ZipFile(archive) as found:
        return sum(member.file_size for member in found.infolist())


def _extract_zip(archive: Path, folder: Path, progress: bool) -> None:
    """The same for a zip archive, of which no file gets a mode; zipfile compares the checksum of each."""
    with zipfile.ZipFile(archive) as found:
        for member in _bar(found.infolist(), archive, progress):
            path, kind = PurePosixPath(member.filename), stat.S_IFMT(member.external_attr >> 16)
            if not _is_inside(member.filename) or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise zipfile.BadZipFile(f"{member.filename!r} is not a plain file or folder inside the archive")
            target = folder / path
            if path.parts[:1] == (LEFT_OUT,):
                continue
            (target if member.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
            if not member.is_dir():
                with found.open(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _bar(members: Iterable, archive: Path, progress: bool) -> Iterable:
    return tqdm(members, f"unpack {archive.name}", unit=" files", disable=not progress)
