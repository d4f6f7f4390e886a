"""Feeding the loop: an order that is a function of the seed, micro-batches that do not depend on who computes them.

Epoch e visits a permutation drawn from (seed, e). Update s of the epoch takes the next `global_batch` entries, and
micro-batch m of it every `num_micro`-th entry from the m-th on, so that repeated views of one image fall into different
micro-batches, as repeated augmentation spreads them over GPUs. Rank r computes micro-batches r, r + world, ...
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.core.processes import STOP_SIGNALS, end_with_parent, stop_signals_blocked
from pipeline.core.seeds import seed_everything
from pipeline.data.kind import View
from pipeline.data.samples import Samples

Collate = Callable[[list[Any]], tuple[Any, Any]]
Key = tuple[int, int, int]  # epoch, position in the epoch, index of the image


class Handover(Protocol):
    """Memory of this process in which the workers of one pass hand over large tensors."""

    def begin(self, worker: int) -> None:
        """Called in a worker, first."""

    def reduce(self, tensor: Tensor) -> Any:
        """How a worker sends a tensor that lies there, as `pickle` reduces it; None for any other tensor."""


HandoverFor = Callable[[int, int, int], Handover | None]  # for this size of a batch, so many workers, batches ahead

BATCHES_AHEAD = 4  # that each worker of a training may have ready
SENT_BY_VALUE = 2**19  # bytes of a tensor, at most: a pipe holds 64 kB at a time
SENT_TYPES = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}  # numpy has these, too


@dataclass(frozen=True)
class BatchPlan:
    """The numbers that decide which images make which micro-batch."""

    seed: int
    num_images: int
    repeats: int  # views of one image in an epoch
    epochs: int
    global_batch: int
    num_micro: int  # micro-batches of one update, over all ranks

    @property
    def steps_per_epoch(self) -> int:
        return self.num_images // self.global_batch


class TrainViews(Dataset):
    """Samples seen through the training view, each drawn from its own seed."""

    def __init__(self, samples: Samples, view: View, seed: int) -> None:
        self.samples, self.view, self.seed = samples, view, seed

    def __getitem__(self, key: Key) -> tuple[Any, Any]:
        epoch, position, index = key
        seed_everything("view", self.seed, epoch, position)
        return self.view(self.samples[index])


class EvalViews(Dataset):
    """Samples seen through the validation view, in order."""

    def __init__(self, samples: Samples, view: View) -> None:
        self.samples, self.view = samples, view

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.view(self.samples[index])


class Loader(DataLoader):
    """Batches of views, made by workers of which each may have `ahead` of them ready."""

    def __init__(
        self,
        views: TrainViews | EvalViews,
        keys: Iterable[Any],
        batch: int,
        workers: int,
        ahead: int,
        collate: Collate | None,
        handover: HandoverFor | None,
    ) -> None:
        super().__init__(
            views,
            collate_fn=collate,
            batch_sampler=keys,
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
            prefetch_factor=ahead if workers else None,
        )
        self.size, self.handover = batch, handover

    def __iter__(self) -> Any:
        """Every pass has workers of its own, and memory in which they hand over pixels."""
        handover = self.handover(self.size, self.num_workers, self.prefetch_factor or 0) if self.handover else None
        self.worker_init_fn = partial(begin_worker, handover=handover)
        with stop_signals_blocked():  # a worker has torch's handlers first, which end it
            batches = super().__iter__()
        self.worker_init_fn = None
        setattr(batches, "handover", handover)  # noqa: B010 - it is there as long as they come
        return batches


class MicroBatches:
    """The keys of one rank's micro-batches from a given update on, to the end of training."""

    def __init__(self, plan: BatchPlan, start: int, rank: int, world_size: int) -> None:
        self.plan, self.start, self.rank, self.world_size = plan, start, rank, world_size

    def __iter__(self) -> Iterator[list[Key]]:
        plan, per_epoch = self.plan, self.plan.steps_per_epoch
        first_epoch, first_step = divmod(self.start, per_epoch)
        for epoch in range(first_epoch, plan.epochs):
            order = epoch_order(plan, epoch)
            for step in range(first_step if epoch == first_epoch else 0, per_epoch):
                begin = step * plan.global_batch
                for micro in range(self.rank, plan.num_micro, self.world_size):
                    positions = range(begin + micro, begin + plan.global_batch, plan.num_micro)
                    yield [(epoch, position, order[position]) for position in positions]


def epoch_order(plan: BatchPlan, epoch: int) -> list[int]:
    """Image indices in the order of one epoch, each `repeats` times in a row, cut to the size of the set."""
    generator = torch.Generator().manual_seed(seed_everything("order", plan.seed, epoch))
    order = torch.randperm(plan.num_images, generator=generator)
    return order.repeat_interleave(plan.repeats)[: plan.num_images].tolist()


def train_loader(
    plan: BatchPlan,
    samples: Samples,
    view: View,
    start: int,
    rank: int,
    world_size: int,
    workers: int,
    collate: Collate | None = None,
    handover: HandoverFor | None = None,
) -> Loader:
    """Inputs and targets of this rank's micro-batches, from update `start` on."""
    views, keys = TrainViews(samples, view, plan.seed), MicroBatches(plan, start, rank, world_size)
    return Loader(views, keys, plan.global_batch // plan.num_micro, workers, BATCHES_AHEAD, collate, handover)


def begin_worker(worker: int, handover: Handover | None = None) -> None:
    """Leave signals to the loop, end with it, send small tensors by value and pixels where they lie.

    A time limit signals every process of a job; a worker that died of it would end the run before its checkpoint.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    if handover:
        handover.begin(worker)
    ForkingPickler.register(Tensor, partial(_reduce, handover))


def _reduce(handover: Handover | None, tensor: Tensor) -> Any:
    """How a worker sends a tensor: a small one is copied through the pipe, a large one lies in memory that both map.

    For every such memory the receiver connects to the worker and waits for a thread of it that hardly gets a turn: four
    small tensors took 2 to 5 ms, as long as a step; by value they take 0.2 ms.
    """
    if handover and (lying := handover.reduce(tensor)):
        return lying
    if tensor.nbytes > SENT_BY_VALUE or tensor.dtype not in SENT_TYPES or tensor.requires_grad:
        return reduce_tensor(tensor)
    return torch.from_numpy, (tensor.numpy(),)


def eval_loader(
    samples: Samples,
    view: View,
    batch: int,
    rank: int,
    world_size: int,
    workers: int,
    collate: Collate | None = None,
    parts: Sequence[Sequence[int]] | None = None,
    pieces: int = 1,
    handover: HandoverFor | None = None,
) -> Loader:
    """Inputs and targets, in order: every `world_size`-th batch, so that batches are the same for any number.

    `parts` are indices of samples, by default one part of all of them; no batch has samples of two parts. Each batch
    comes in so many equal `pieces`, if it is a whole one.
    """
    parts = [range(len(samples))] if parts is None else parts
    mine = [chunk for part in parts for chunk in cut(part, batch)][rank::world_size]
    keys = [piece for chunk in mine for piece in cut(chunk, batch // pieces)]
    workers = min(workers, len(keys))  # others would start, which takes a while, and have nothing to do
    return Loader(EvalViews(samples, view), keys, batch // pieces, workers, 2 if pieces == 1 else 4, collate, handover)


def cut(indices: Any, size: int) -> list[Any]:
    """Into parts of this size; the last one may be smaller."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]
