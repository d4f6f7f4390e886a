"""Running a trained method over a validation set, sharded over processes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pipeline.data.transforms import BatchTransform
from pipeline.engine.distributed import World
from pipeline.engine.precision import Precision, in_precision
from pipeline.methods.base import Batch, Method
from pipeline.seeds import seed_everything

Measure = Callable[[Any, Batch], dict[str, Tensor]]  # sums over the images of a batch


@torch.no_grad()
def mean_over_set(
    method: Method,
    loader: DataLoader,
    batch_transform: BatchTransform,
    world: World,
    precision: Precision,
    measure: Measure,
    seed: int = 0,
) -> dict[str, float]:
    """Mean per image of what `measure` sums per batch. The method is left in the mode it was in.

    Every batch has a generator seeded by its number, so that random masks do not depend on the number of processes.
    A process that was left without a batch takes part all the same.
    """
    was_training = method.training
    method.eval()
    sums: dict[str, Tensor] = {}
    count = 0
    for number, (images, labels) in enumerate(loader):
        drawn = seed_everything("measure", seed, world.rank + number * world.size)
        batch = Batch(batch_transform.normalise(images), labels.to(world.device), torch.Generator().manual_seed(drawn))
        with in_precision(precision, world.device):
            found = measure(method, batch)
        sums = {name: sums.get(name, 0) + value.double() for name, value in found.items()}
        count += len(labels)
    method.train(was_training)
    shares = world.gather(({name: float(value) for name, value in sums.items()}, count))
    total = sum(count for _, count in shares)
    return {name: sum(share.get(name, 0.0) for share, _ in shares) / total for name in shares[0][0]}
