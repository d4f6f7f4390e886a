"""Running a trained method over a validation set, sharded over processes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pipeline.engine.distributed import World
from pipeline.engine.metrics import Found, Metric
from pipeline.engine.precision import Precision, in_precision
from pipeline.methods.base import Batch, Method
from pipeline.seeds import seed_everything
from pipeline.tasks.base import Task

Measure = Callable[[Any, Batch], Any]  # what a metric takes of a batch; for means, values for each image by name


@torch.no_grad()
def measure_set(
    method: Method,
    loader: Iterable[Any],
    task: Task,
    world: World,
    precision: Precision,
    measure: Measure,
    seed: int = 0,
    metric: Metric | None = None,
) -> Found:
    """What `measure` finds in every batch, put together by a metric (by default the task's).

    Every batch has a generator seeded by its number, so that random masks do not depend on the number of processes.
    A process that was left without a batch takes part all the same. The method is left in the mode it was in.
    """
    metric = metric or task.metric()
    was_training = method.training
    method.eval()
    for place, (inputs, targets) in enumerate(loader):
        number = world.rank + place * world.size
        drawn = seed_everything("measure", seed, number)
        batch = Batch(*task.eval_batch(inputs, targets), torch.Generator().manual_seed(drawn))
        with in_precision(precision, world.device):
            metric.update(measure(method, batch), number)
    method.train(was_training)
    metric.merge(world.gather(metric.state()))
    return metric.compute()
