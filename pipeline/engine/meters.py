"""Metrics: sums on the device, read by the host only when a line is due, appended as JSON lines.

`metrics.jsonl` is the truth about a run and holds nothing that depends on the machine's speed, so that an interrupted
run ends with the same file as an uninterrupted one; times go to `timing.jsonl`. On resume the metrics file is cut
back to what it was at the checkpoint: no point is missing, none is there twice.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import CheckpointError
from pipeline.core.files import explained, write_atomic
from pipeline.engine.parallel.distributed import World


class Meters:
    """Running means of named scalars since the last line; a step weighs one, however many processes share it.

    Scalars that come together have their sums in one tensor, which stays where it is: one addition for all of them,
    which a CUDA graph can hold. The host counts for itself.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.sums: dict[tuple[str, ...], Tensor] = {}
        self.counts: dict[str, float] = {}
        self.restored: dict[str, Tensor] = {}  # sums of a checkpoint, until their scalars come again

    def add(self, share: float = 1.0, /, **scalars: Tensor) -> None:
        """Add what is a share of this process's step; the shares of a step sum to one."""
        self.accumulate(share, scalars)
        self.count(tuple(scalars), share)

    def accumulate(self, share: float, scalars: Mapping[str, Tensor]) -> None:
        """The device's part of `add`."""
        names = tuple(scalars)
        if names not in self.sums:
            zero = torch.zeros((), device=self.world.device)
            self.sums[names] = torch.stack([self.restored.pop(name, zero) for name in names])
        self.sums[names] += torch.stack([value.detach().float() for value in scalars.values()]) * share

    def count(self, names: Iterable[str], share: float = 1.0) -> None:
        """The host's part of `add`."""
        for name in names:
            self.counts[name] = self.counts.get(name, 0) + share

    def read(self) -> dict[str, float]:
        """Means over micro-batches and processes; waits for the device."""
        totals = self._totals()
        means = torch.stack([totals[name] / self.counts[name] for name in totals])
        found = dict(zip(totals, self.world.mean(means).tolist(), strict=True))
        for values in self.sums.values():
            values.zero_()
        self.counts, self.restored = {}, {}
        return found

    def _totals(self) -> dict[str, Tensor]:
        """The sum of every scalar that was counted, by name, in order."""
        found = dict(self.restored)
        for names, values in self.sums.items():
            for name, value in zip(names, values.unbind(), strict=True):
                found[name] = found[name] + value if name in found else value
        return {name: found[name] for name in sorted(self.counts)}

    def state_dict(self) -> dict[str, Any]:
        """All processes must ask at the same step; of several, a sum is one number for each."""
        sums = {name: value.clone() for name, value in self._totals().items()}
        if self.world.size > 1 and sums:
            everyone = self.world.gather(torch.stack([*sums.values()]).tolist())
            sums = dict(zip(sums, torch.tensor(everyone).unbind(dim=1), strict=True))
        return {"sums": sums, "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.counts = {}, dict(state["counts"])
        self.restored = {name: self._own(value).to(self.world.device) for name, value in state["sums"].items()}

    def _own(self, sums: Tensor) -> Tensor:
        """This process's part of a checkpoint; if another number of processes wrote it, the mean of theirs."""
        return sums[self.world.rank] if sums.ndim and len(sums) == self.world.size else sums.mean()


class MetricsFile:
    """An append-only JSONL file that can be cut back to a checkpoint."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        """Keep the first bytes of the file, or all of it."""
        self.path = path
        size = path.stat().st_size if path.exists() else 0
        keep_bytes = size if keep_bytes is None else keep_bytes
        if size < keep_bytes:
            raise CheckpointError(
                f"{path} has {size} bytes, the checkpoint was written when it had {keep_bytes}; "
                "it was truncated or replaced: restore it, or delete the run's state folder to start the run again"
            )
        kept = path.read_bytes()[:keep_bytes] if size else b""
        # A file of its own: DVC may have linked the old one to its cache, which appending would change.
        write_atomic(path, kept)
        with explained(path):
            self.file = path.open("ab")

    def append(self, **values: Any) -> None:
        values = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
        with explained(self.path):
            self.file.write(json.dumps(values).encode() + b"\n")
            self.file.flush()

    def sync(self) -> int:
        """Put every line on disk; returns the size to cut back to."""
        with explained(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.path.stat().st_size


class Stopwatch:
    """Images per second and the share of time spent waiting for data, since the last reading."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.waited = 0.0
        self.num_images = 0

    def fetched(self, num_images: int, since: float) -> None:
        """Count images that were waited for since a time of `time.perf_counter`."""
        self.waited += time.perf_counter() - since
        self.num_images += num_images

    def read(self, num_processes: int) -> dict[str, float]:
        elapsed = time.perf_counter() - self.start
        rate = self.num_images * num_processes / elapsed
        values = {"images_per_s": round(rate, 1), "data_wait": round(self.waited / elapsed, 4)}
        self.start, self.waited, self.num_images = time.perf_counter(), 0.0, 0
        return values
