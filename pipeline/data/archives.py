"""Extracting archives that came from outside."""

import tarfile
from pathlib import Path, PurePosixPath


def extract(archive: Path, folder: Path) -> None:
    """Extract with the data filter: nothing lands outside the folder, nothing but data.

    Python before 3.11.4, Debian 12's among them, has no filter: there only plain files and folders are accepted.
    """
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
            return
        for member in tar.getmembers():
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"{member.name!r} is not a plain file or folder inside the archive")
            member.mode = 0o755 if member.isdir() else 0o644
            tar.extract(member, folder)
