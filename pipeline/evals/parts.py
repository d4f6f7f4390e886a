"""Parts of a long evaluation, kept until its result is written: what was finished before a kill is not repeated."""

import hashlib
import io
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.files import remove, write_atomic

log = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Parts:
    """Named parts in a folder of one evaluation; `key` says what they depend on. Without a folder nothing is kept."""

    folder: Path | None = None
    key: str = ""

    def once(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """What `compute` returned, now or before this evaluation was interrupted. Numbers are arrays without axes."""
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}-{self.key}.npz"
        if (kept := _read(path)) is not None:
            log.info("%s was finished before", name)
            return kept
        found = compute()
        write_atomic(path, _as_bytes(found))
        return found

    def forget(self) -> None:
        """All of them, also those of other inputs, once the result is written."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def key_of(*facts: object) -> str:
    """A short digest of what parts depend on."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _as_bytes(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    named: dict = {name: np.asarray(value) for name, value in arrays.items()}
    np.savez(buffer, **named)
    return buffer.getvalue()


def _read(path: Path) -> Arrays | None:
    """The arrays of a part; None if it is not there, or damaged and therefore computed again."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file makes numpy raise almost any kind
        log.warning("%s is damaged (%s); it is computed again", path, error)
        remove(path)
        return None
