"""Checkpoints for exact resume: atomic, checked, and never alone.

A checkpoint is `step-<step>-<digest>.pt`; the digest of its bytes is in its name, so writing it is one rename and a
damaged file is recognised. The newest intact one is used; the one before it is kept for that case.

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

from pipeline.core.errors import CheckpointError
from pipeline.core.files import remove, require_space, write_atomic
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
        write_atomic(path, content)
        self._tidy(path)
        return path

    def latest(self) -> dict[str, Any] | None:
        """The state of the newest intact checkpoint, or None to start from the beginning."""
        found = [path for _, path in self._all()]
        while found:
            path = found.pop()
            content = path.read_bytes()
            if path.stem.endswith(_digest(content)):
                return _load(path, content)
            instead = "using the one before it" if found else "there is no other, so training starts from the beginning"
            log.warning("%s is damaged (its checksum differs): %s", path, instead)
        return None

    def require_space(self, num_bytes: int) -> None:
        """Refuse to train where checkpoints of this size would fill the disk."""
        # A new one is written before the oldest one is removed.
        num_new = max(1, KEPT + 1 - len(self._all()))
        require_space(self.folder, num_new * num_bytes, f"training with checkpoints of {num_bytes / 1e6:,.1f} MB")

    def clear(self) -> None:
        """Remove all of them."""
        for _, path in self._all():
            remove(path)

    def _tidy(self, new: Path) -> None:
        """Keep this checkpoint and the one before; later ones were damaged, or this step would not be new."""
        step = int(new.name.split("-")[1])
        others = [(found_step, path) for found_step, path in self._all() if path != new]
        earlier = [path for found_step, path in others if found_step < step]
        rest = [path for found_step, path in others if found_step >= step]
        for path in [*rest, *earlier[: 1 - KEPT], *self.folder.glob(".step-*.tmp")]:
            remove(path)

    def _all(self) -> list[tuple[int, Path]]:
        """(step, path), oldest first."""
        found = [(CHECKPOINT.fullmatch(path.name), path) for path in self.folder.glob("step-*.pt")]
        return sorted((int(match[1]), path) for match, path in found if match)


def _load(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} contains more than tensors and plain values, so this program did not write it; delete it"
        ) from error


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
