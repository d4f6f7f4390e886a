"""Archives of the development data, whose checksums are known: their files, also where Python has no data filter."""

import tarfile
from collections.abc import Iterable
from pathlib import Path


def unpack(tar: tarfile.TarFile, folder: Path, members: Iterable[tarfile.TarInfo] | None = None) -> None:
    for member in tar if members is None else members:
        if file := tar.extractfile(member):
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())
