"""Checkpoints for exact resume: atomic, checked, and never alone.

A checkpoint is `step-<step>-<digest>.pt`; the digest of its bytes is in its name, so writing it is one rename and a
damaged file is recognised. The newest sound one is used; the one before it is kept for that case.

There is no RNG state in a checkpoint: every random choice is seeded from (seed, step, micro-batch) or (seed, epoch,
position), so the state of all generators is a function of the step.
"""

import hashlib
import io
import logging
import pickle
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import CheckpointError
from pipeline.files import write_atomic
from pipeline.results import CHECKPOINT

log = logging.getLogger(__name__)

KEPT = 2


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: dict[str, Any]) -> Path:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getbuffer()
        path = self.folder / f"step-{step:09d}-{_digest(content)}.pt"
        write_atomic(path, lambda file: file.write(content))
        self._tidy(step)
        return path

    def latest(self) -> dict[str, Any] | None:
        """The state of the newest sound checkpoint, or None to start from the beginning."""
        for _, path in reversed(self._all()):
            content = path.read_bytes()
            if _digest(content) == CHECKPOINT.fullmatch(path.name)[2]:
                return _load(path, content)
            log.warning("%s is damaged (its checksum differs): using the one before it", path)
        return None

    def clear(self) -> None:
        """Remove all of them."""
        for _, path in self._all():
            path.unlink(missing_ok=True)

    def _tidy(self, step: int) -> None:
        """Keep this step's checkpoint and the one before; later ones were damaged, or this step would not be new."""
        found = self._all()
        later = [path for found_step, path in found if found_step > step]
        earlier = [path for found_step, path in found if found_step <= step]
        for path in [*later, *earlier[:-KEPT], *self.folder.glob(".step-*.tmp")]:
            path.unlink(missing_ok=True)

    def _all(self) -> list[tuple[int, Path]]:
        """(step, path), oldest first."""
        found = [(CHECKPOINT.fullmatch(path.name), path) for path in self.folder.glob("step-*.pt")]
        return sorted((int(match[1]), path) for match, path in found if match)


def _load(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain values, so this program did not write it; delete it"
        ) from error


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
