"""How validation and evaluations are fed: batches that fill a GPU, views completed there, one batch ahead.

Random masks belong to numbered pieces of a data set, which are as large on every device. A GPU that has small images
computes such a piece faster than it can be told to, so it gets several at once (`Sizes`); what draws is given them one
by one (`validate.py`), so that its draws are those of any other device.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import chain, islice
from math import prod
from typing import Any, NamedTuple

import torch

from pipeline.core.sizes import pair
from pipeline.core.trees import to_device
from pipeline.data.images.gpu.device_views import Ahead
from pipeline.data.images.gpu.residence import PlacedImages
from pipeline.data.images.gpu.staging import Staged
from pipeline.data.kind import DataKind, View
from pipeline.data.store.cache import CachedImages
from pipeline.site import Site
from pipeline.tasks.base import Task

# What a GPU is given at once: 256 images of 224 px, 1024 of 64 px.
FULL_PIXELS, FULL_BATCH = 2**24, 1024
NUM_PIECES, MIN_PIECE = 8, 32  # in so many pieces it is loaded, unless they would have fewer images than this


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


def pieces_for(task: Task, device: torch.device, batch: int) -> int:
    """In how many pieces a loader hands over a batch for a GPU.

    One worker makes one piece. Of a small set each would make one or two whole batches: the first one would come late,
    and most workers would have nothing to do in the end.
    """
    is_cut = device.type == "cuda" and task.takes_staged and batch % (NUM_PIECES * MIN_PIECE) == 0
    return NUM_PIECES if is_cut else 1


def joined(pieces: Iterable[Any], count: int, device: torch.device) -> Iterator[Any]:
    """Batches, of which there are `count` pieces each; the last one may have fewer."""
    left = iter(pieces)
    if count == 1:
        yield from left
    while found := list(islice(left, count)):
        yield tuple(torch.cat(to_device(each, device)) for each in zip(*found, strict=True))


def ahead(batches: Iterable[Any], task: Task) -> Iterator[Any]:
    """The same batches; staged views are completed while the batch before is computed."""
    left = iter(batches)
    first = next(left, None)
    if first is not None:
        found = chain([first], left)
        yield from Ahead(found, task.transform.views) if isinstance(first[0], Staged) else found


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
