"""How validation and evaluations are fed: batches that fill a GPU, views completed there, one batch ahead.

Random masks belong to numbered pieces of a data set, which are as large on every device. A GPU that has small images
computes such a piece faster than it can be told to, so it gets several at once (`Sizes`); what draws is given them one
by one (`validate.py`), so that its draws are those of any other device.
"""

from collections.abc import Iterable
from copy import copy
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch

from pipeline.data.cache import CachedImages
from pipeline.data.device_views import Ahead
from pipeline.data.kind import DataKind, View
from pipeline.data.residence import PlacedImages
from pipeline.data.staging import Staged
from pipeline.site import Site
from pipeline.sizes import pair
from pipeline.tasks.base import Task

# What a GPU is given at once: 256 images of 224 px, 1024 of 64 px.
FULL_PIXELS, FULL_BATCH = 2**24, 1024


class Sizes(NamedTuple):
    """How many samples make a batch."""

    piece: int  # those with a number and a generator of their own
    times: int = 1  # pieces that a loader hands over at once

    @property
    def batch(self) -> int:
        return self.piece * self.times


def sizes_for(task: Task, device: torch.device, piece: int) -> Sizes:
    """Pieces of this size, on a GPU as many at once as fill it."""
    if device.type != "cuda" or not task.takes_staged:
        return Sizes(piece)
    count = min(FULL_BATCH, FULL_PIXELS // prod(pair(task.data.input_size)))
    return Sizes(piece, max(1, count // piece))


def on_device(site: Site, device: torch.device) -> bool:
    """Whether views are completed there."""
    return site.views == "device" or (site.views == "auto" and device.type == "cuda")


def staged_evaluation(kind: DataKind, samples: Any, task: Task) -> tuple[View, Any]:
    """The evaluation view and its samples, in two parts where the device can do the second one."""
    view = kind.eval_view()
    staged = kind.staged(view) if task.takes_staged else None
    if staged is None:
        return view, samples
    if isinstance(samples, CachedImages):
        samples = copy(samples)  # others may show them as images
        samples.gives_arrays = True
    return staged, samples


def ahead(batches: Iterable[Any], task: Task) -> Iterable[Any]:
    """The same batches; staged views are completed while the batch before is computed."""
    left = iter(batches)
    first = next(left, None)
    if first is None:
        return []
    found = chain([first], left)
    return Ahead(found, task.transform.views) if isinstance(first[0], Staged) else found


class Kept:
    """Batches of a loader, kept after the first pass: of a set on the device they are places alone, always the same."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader, self.batches, self.is_whole = loader, list[Any](), False

    def __iter__(self) -> Any:
        if self.is_whole:
            yield from self.batches
            return
        self.batches.clear()
        for batch in self.loader:
            self.batches.append(batch)
            yield batch
        self.is_whole = True


def kept_if_placed(loader: Any, samples: Any) -> Any:
    """What validation of a training iterates over, once an epoch."""
    return Kept(loader) if isinstance(samples, PlacedImages) else loader
