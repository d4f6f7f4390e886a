"""New files and folders that appear whole or not at all, and never replace another; files have their mode from the
first byte on."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.core.errors import CheckpointError
from pipeline.core.files import draft_of, explained


@contextmanager
def new_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write to, which gets its name when the block ends well; if it does not, nothing is left."""
    refuse_existing(path)
    temporary = draft_of(path)
    with explained(path):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            with explained(path):
                file.flush()
                os.fsync(file.fileno())
        _name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which gets its name when the block ends well; if it does not, nothing is left."""
    refuse_existing(path)
    temporary = draft_of(path)
    with explained(path):
        temporary.mkdir()
    try:
        yield temporary
        refuse_existing(path)
        with explained(path):
            os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: Path) -> None:
    """Say what is wrong with a name before any work is done for it."""
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path} exists and is never overwritten; choose another name, or delete it first")
    if not path.parent.is_dir():
        raise CheckpointError(f"{path.parent} is not a folder; make it first")


def _name(temporary: Path, path: Path) -> None:
    with explained(path):
        try:
            os.link(temporary, path)  # unlike a rename, it fails where another file has the name by now
        except FileExistsError:
            refuse_existing(path)
        except OSError:  # a file system without links
            os.rename(temporary, path)
