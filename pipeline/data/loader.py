"""Feeding the loop: an order that is a function of the seed, micro-batches that do not depend on who computes them.

Epoch e visits a permutation drawn from (seed, e). Update s of the epoch takes the next `global_batch` entries, and
micro-batch m of it every `num_micro`-th entry from the m-th on, so that repeated views of one image fall into different
micro-batches, as repeated augmentation spreads them over GPUs. Rank r computes micro-batches r, r + world, ...
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from pipeline.data.kind import View
from pipeline.data.samples import Samples
from pipeline.seeds import seed_everything

Collate = Callable[[list[Any]], tuple[Any, Any]]
Key = tuple[int, int, int]  # epoch, position in the epoch, index of the image


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
) -> DataLoader:
    """Inputs and targets of this rank's micro-batches, from update `start` on."""
    return DataLoader(
        TrainViews(samples, view, plan.seed),
        collate_fn=getattr(view, "collate", collate),  # what a device completes has a form of its own
        batch_sampler=MicroBatches(plan, start, rank, world_size),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=4 if workers else None,
        worker_init_fn=_leave_signals_to_the_loop,
    )


def _leave_signals_to_the_loop(worker: int) -> None:
    """A time limit signals every process of a job; a worker that died of it would end the run before its checkpoint."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def eval_loader(
    samples: Samples,
    view: View,
    batch: int,
    rank: int,
    world_size: int,
    workers: int,
    collate: Collate | None = None,
) -> DataLoader:
    """Inputs and targets, in order: every `world_size`-th batch, so that batches are the same for any number."""
    starts = range(rank * batch, len(samples), batch * world_size)
    pin = torch.cuda.is_available()
    return DataLoader(
        EvalViews(samples, view),
        collate_fn=getattr(view, "collate", collate),
        batch_sampler=[list(range(start, min(start + batch, len(samples)))) for start in starts],
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=_leave_signals_to_the_loop,
    )
