"""Running a trained method over a validation set, sharded over processes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipeline.core.seeds import random_state, seed_everything
from pipeline.core.trees import Tree
from pipeline.engine.batches import Loaded, Sizes
from pipeline.engine.compute.precision import Precision, in_precision
from pipeline.engine.parallel.distributed import World
from pipeline.engine.signals import LOOK_S, CutShort, StopRequest
from pipeline.methods.base import Batch, Method
from pipeline.tasks.base import Task
from pipeline.tasks.metrics import Metric, MetricValues

Measure = Callable[[Any, Batch], Any]  # what a metric takes of a batch; for means, values for each image by name


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode, in which nothing is dropped; the module is left in the mode it was in."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@torch.no_grad()
def measure_set(
    method: Method,
    batches: Loaded,
    task: Task,
    world: World,
    precision: Precision,
    measure: Measure,
    seed: int = 0,
    metric: Metric | None = None,
    sizes: Sizes | None = None,
    stop: StopRequest | None = None,
) -> MetricValues:
    """What `measure` finds in every batch, put together by a metric (by default the task's).

    Every piece of the set has a generator seeded by its number, so that random masks do not depend on the number of
    processes. `sizes` are those of the batches; without them batches are the pieces. A process that was left without
    a batch takes part all the same. The method is left in the mode it was in. Nothing waits for the device before the
    metric is asked. When one of the processes is asked to stop meanwhile, all of them raise CutShort.
    """
    metric, times = metric or task.metric(), sizes.times if sizes else 1
    measured = Pieces(method, measure, seed, sizes)
    cut = Cut(batches, stop)
    with evaluating(method):
        for place, (inputs, targets) in enumerate(cut):
            number = (world.rank + place * world.size) * times
            with in_precision(precision, world.device):
                for first, values in measured(*task.eval_batch(inputs, targets), number):
                    metric.update(values, first)
    if stop and world.any(cut.is_short):
        raise CutShort
    metric.merge(world.gather(metric.state()))
    return metric.compute()


class Cut:
    """Batches up to a request to stop, which is looked for every few seconds."""

    def __init__(self, batches: Loaded, stop: StopRequest | None) -> None:
        self.batches, self.stop, self.is_short = batches, stop, False

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        looked_at = time.monotonic()
        for batch in self.batches:
            if self.stop and time.monotonic() - looked_at > LOOK_S:
                looked_at = time.monotonic()
                if self.stop.is_raised:
                    self.is_short = True
                    return
            yield batch


class Pieces:
    """Measures batches whole where nothing is drawn, else piece by piece. The first piece tells which it is."""

    def __init__(self, method: Method, measure: Measure, seed: int, sizes: Sizes | None) -> None:
        self.method, self.measure, self.seed = method, measure, seed
        self.size = sizes.piece if sizes and sizes.times > 1 else None
        self.draws: bool | None = None if self.size else False  # None: not known before the first piece is measured

    def __call__(self, inputs: Tree, targets: Tree, number: int) -> Iterator[tuple[int, Any]]:
        """What is measured, each with the number of its first piece."""
        if self.size is None or len(inputs) <= self.size:
            yield number, self._measured(inputs, targets, number)
            return
        begin = 0
        while begin < len(inputs):
            stop = len(inputs) if self.draws is False else begin + self.size
            yield number, self._measured(inputs[begin:stop], targets[begin:stop], number)
            begin, number = stop, number + 1

    def _measured(self, inputs: Tree, targets: Tree, number: int) -> Any:
        drawn = seed_everything("measure", self.seed, number)
        batch = Batch(inputs, targets, torch.Generator().manual_seed(drawn))
        if self.draws is not None:
            return self.measure(self.method, batch)
        before = random_state(batch.generator)
        found = self.measure(self.method, batch)
        self.draws = random_state(batch.generator) != before
        return found
