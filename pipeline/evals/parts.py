"""Parts of a long evaluation, kept until its result is written: what was finished before a kill is not repeated.

A part that trains something is continued after its last whole epoch.
"""

import hashlib
import io
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.core.files import remove, write_atomic
from pipeline.engine.checkpoint import Checkpoints

log = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


class Resumable(Protocol):
    """A training; its state has tensors and plain values alone."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


@dataclass(frozen=True)
class Parts:
    """Named parts in a folder of one evaluation; `key` says what they depend on. Without a folder nothing is kept.

    `check` raises if a part must not be kept.
    """

    folder: Path | None = None
    key: str = ""
    check: Callable[[], None] = lambda: None

    def once(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """What `compute` returned, now or before this evaluation was interrupted. Numbers are arrays without axes."""
        if self.folder is None:
            return compute()
        if (kept := self._read_part(name)) is not None:
            log.info("%s is finished already", name)
            return kept
        found = compute()
        self.check()
        write_atomic(self._path(name), _as_bytes(found))
        shutil.rmtree(self._epochs_folder(name), ignore_errors=True)
        return found

    def left(self, names: Iterable[str]) -> list[str]:
        """Those that are not finished."""
        return [name for name in names if self._read_part(name) is None]

    def epochs(self, name: str, count: int, training: Resumable) -> Iterator[int]:
        """The numbers of the epochs that are left of a part; a training is given the state after its last one."""
        checkpoints = Checkpoints(self._epochs_folder(name)) if self.folder else None
        kept = checkpoints.latest() if checkpoints else None
        if kept:
            log.info("%s continues after epoch %d of %d", name, kept["epoch"], count)
            training.load_state_dict(kept["training"])
        for epoch in range(kept["epoch"] if kept else 0, count):
            yield epoch
            if checkpoints:
                checkpoints.save(epoch + 1, {"epoch": epoch + 1, "training": training.state_dict()})

    def _read_part(self, name: str) -> Arrays | None:
        return _read(self._path(name)) if self.folder else None

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}-{self.key}.npz"

    def _epochs_folder(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}-{self.key}"

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
