"""Some files of an archive of the development data, also where Python has no data filter."""

import tarfile
from collections.abc import Iterable
from pathlib import Path


def unpack(tar: tarfile.TarFile, folder: Path, members: Iterable[tarfile.TarInfo]) -> None:
    for member in members:
        if file := tar.extractfile(member):
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())
