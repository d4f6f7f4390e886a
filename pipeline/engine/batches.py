"""The one source of batches: what training, validation and evaluations iterate over.

Where views are completed (by loader workers, or on the GPU), what lives in the GPU's memory and what is read ahead is
decided here; whoever iterates sees inputs and targets that the task's `train_batch` or `eval_batch` takes.

Random masks belong to numbered pieces of a data set, which are as large on every device. A GPU that has small images
computes such a piece faster than it can be told to, so it gets several at once (`Sizes`); what draws is given them one
by one (`validate.py`), so that its draws are those of any other device.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from pipeline.core.sizes import pair
from pipeline.core.trees import joined, to_device
from pipeline.data.images.gpu.interface import Completion
from pipeline.data.kind import BaseDataConfig, DataKind, View, kind_of
from pipeline.data.loader import Collate, HandoverFor, Loader, eval_loader, train_loader
from pipeline.data.samples import SplitName
from pipeline.data.store.manifest import MANIFEST, Manifest, read_manifest
from pipeline.data.store.opening import open_for_training, side_for_training
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig, batch_plan
from pipeline.site import Site
from pipeline.tasks.base import Task

log = logging.getLogger(__name__)

Loaded = Iterable[tuple[Any, Any]]  # inputs and targets of batches
Samples = Mapping[SplitName, Any]
SPLITS: tuple[SplitName, ...] = ("train", "val")
# What a GPU is given at once: 256 images of 224 px, 1024 of 64 px.
FULL_PIXELS, FULL_BATCH = 2**24, 1024
NUM_PIECES, MIN_PIECE = 8, 32  # in so many pieces it is loaded, unless they would have fewer images than this


class Sizes(NamedTuple):
    """How many samples make a batch."""

    piece: int  # those with a number and a generator of their own
    times: int = 1  # pieces that are handed over at once

    @property
    def batch(self) -> int:
        return self.piece * self.times


class Source:
    """The samples of a split, the view through which batches show them, and what completes a deferred view."""

    def __init__(
        self, samples: Any, view: Any, task: Task, site: Site, world: World, completion: Completion | None = None
    ) -> None:
        self.samples, self.view, self.task, self.completion = samples, view, task, completion
        self.place, self.device = (world.rank, world.size, site.workers), world.device
        # Batches of a deferred view have a form of their own, and memory in which workers hand them over.
        self.collate: Collate = view.collate if completion else task.collate
        self.handover: HandoverFor | None = view.handover if completion else None

    def from_step(self, run: RunConfig, step: int) -> Loaded:
        """This process's micro-batches of a training, from an update on."""
        place = self.place
        loader = train_loader(batch_plan(run), self.samples, self.view, step, *place, self.collate, self.handover)
        return self._completed(loader)

    def in_order(self, batch: int) -> Loaded:
        """This process's batches of the whole split, in order, for any number of passes."""
        loader = self._loader(batch)
        return self._completed(CachedBatches(loader) if self.completion and self.completion.is_resident else loader)

    def once(self, batch: int, label: str) -> Loaded:
        """The same for one pass, with a bar that shows how far it is, and in pieces where that is faster."""
        pieces = pieces_for(self.task, self.device, batch)
        return join_pieces(self._with_bar(self._loader(batch, pieces), label), pieces, self.device)

    def parts(self, parts: Sequence[Sequence[int] | np.ndarray], batch: int, label: str) -> Iterator[Loaded]:
        """The batches of each part, to be used up before the next: loader workers start once for all of them."""
        pieces, chosen = pieces_for(self.task, self.device, batch), [np.asarray(part).tolist() for part in parts]
        left = iter(self._with_bar(self._loader(batch, pieces, chosen), label))
        for part in chosen:
            yield join_pieces(islice(left, ceil(len(part) / (batch // pieces))), pieces, self.device)

    def _loader(self, batch: int, pieces: int = 1, parts: Sequence[Sequence[int]] | None = None) -> Loader:
        return eval_loader(self.samples, self.view, batch, *self.place, self.collate, parts, pieces, self.handover)

    def _with_bar(self, loader: Loader, label: str) -> Loaded:
        return self._completed(tqdm(loader, label, unit="batch", disable=None, leave=False))

    def _completed(self, loader: Loaded) -> Loaded:
        return self.completion.prefetch(loader) if self.completion else loader


@dataclass
class RunBatches:
    """The batches of one run in one process."""

    run: RunConfig
    train: Source
    validation: Loaded
    sizes: Sizes  # of validation

    def from_step(self, step: int) -> Loaded:
        """The micro-batches of training, from an update on."""
        return self.train.from_step(self.run, step)


def open_batches(
    run: RunConfig, site: Site, world: World, task: Task, folder: Path, index: Path, side: int | None
) -> RunBatches:
    """Open both splits of a run's data set, whose manifest is in `index`; train images are shrunk to `side`."""
    samples = {split: open_for_training(run.data, folder, split, index, site.cache, side) for split in SPLITS}
    train, val = sources_of_run(run.data, samples, read_manifest(index / MANIFEST), task, site, world)
    sizes = sizes_for(task, world.device, task.at_once)
    return RunBatches(run, train, val.in_order(sizes.batch), sizes)


def sources_of_run(
    data: BaseDataConfig, splits: Samples, manifest: Manifest, task: Task, site: Site, world: World
) -> tuple[Source, Source]:
    """Both splits of a set, seen through the views of training and of validation."""
    kind, device = kind_of(data), world.device
    views: dict[SplitName, View] = {"train": kind.train_view(), "val": kind.eval_view()}
    deferred = {split: _deferred(kind, view, task, site, device) for split, view in views.items()}
    if is_on_device(site, device):
        where = ["the device" if view else "the host" for view in deferred.values()]
        log.info("views of %s: training's are completed on %s, validation's on %s", data.name, *where)
    completion = Completion(data, device) if any(deferred.values()) else None
    if completion:
        splits = {split: completion.suited(found) if deferred[split] else found for split, found in splits.items()}
        if all(deferred.values()):
            splits = completion.move_if_small(splits, manifest, site.workers)
        if deferred["train"] and device.type == "cuda":
            for prepared in (completion, task.transform):
                prepared.prepare(records=site.graphs != "off", compiles=site.compile)

    def source(split: SplitName) -> Source:
        if view := deferred[split]:
            return Source(splits[split], view, task, site, world, completion)
        return Source(splits[split], views[split], task, site, world)

    return source("train"), source("val")


def open_evaluation(data: BaseDataConfig, samples: Any, task: Task, site: Site, world: World) -> Source:
    """Samples of a set, seen as in validation."""
    kind = kind_of(data)
    view = kind.eval_view()
    deferred = _deferred(kind, view, task, site, world.device)
    if deferred is None:
        return Source(samples, view, task, site, world)
    completion = Completion(data, world.device)
    return Source(completion.suited(samples), deferred, task, site, world, completion)


def side_of_crops(run: RunConfig, site: Site, index: Path) -> int | None:
    """The side of the images that crops of training are cut from, as a cache has them; None: as their files are."""
    return side_for_training(run.data, index) if site.cache else None


def is_on_device(site: Site, device: torch.device) -> bool:
    """Whether views are completed there, as far as they can be."""
    return site.views == "device" or (site.views == "auto" and device.type == "cuda")


def _deferred(kind: DataKind, view: View, task: Task, site: Site, device: torch.device) -> View | None:
    return kind.deferred(view) if task.takes_deferred and is_on_device(site, device) else None


def sizes_for(task: Task, device: torch.device, piece: int) -> Sizes:
    """Pieces of this size, on a GPU as many at once as fill it."""
    if device.type != "cuda" or not task.takes_deferred:
        return Sizes(piece)
    count = min(FULL_BATCH, FULL_PIXELS // prod(pair(task.data.input_size)))
    return Sizes(piece, max(1, count // piece))


def pieces_for(task: Task, device: torch.device, batch: int) -> int:
    """In how many pieces a loader hands over a batch for a GPU.

    One worker makes one piece. Of a small set each would make one or two whole batches: the first one would come late,
    and most workers would have nothing to do in the end.
    """
    is_cut = device.type == "cuda" and task.takes_deferred and batch % (NUM_PIECES * MIN_PIECE) == 0
    return NUM_PIECES if is_cut else 1


def join_pieces(pieces: Iterable[Any], count: int, device: torch.device) -> Iterator[Any]:
    """Batches, of which there are `count` pieces each; the last one may have fewer."""
    left = iter(pieces)
    if count == 1:
        yield from left
    while found := list(islice(left, count)):
        yield tuple(joined(to_device(each, device)) for each in zip(*found, strict=True))


class CachedBatches:
    """Cache the batches of a loader in the first pass: those of a set on the device are indices, always the same."""

    def __init__(self, loader: Loaded) -> None:
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
