"""Running a trained method over a validation set, sharded over processes."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pipeline.data.transforms import BatchTransform
from pipeline.engine.distributed import World
from pipeline.methods.base import Method

Measure = Callable[[Method, Tensor, Tensor], dict[str, Tensor]]  # method, images, labels -> sums over the batch


@torch.no_grad()
def mean_over_set(
    method: Method, loader: DataLoader, batch_transform: BatchTransform, world: World, measure: Measure
) -> dict[str, float]:
    """Mean per image of what `measure` sums per batch. The method is left in the mode it was in."""
    was_training = method.training
    method.eval()
    sums: dict[str, Tensor] = {}
    count = 0
    for images, labels in loader:
        found = measure(method, batch_transform.normalise(images), labels.to(world.device))
        sums = {name: sums.get(name, 0) + value.double() for name, value in found.items()}
        count += len(labels)
    method.train(was_training)
    total = world.sum(torch.stack([*sums.values(), torch.tensor(float(count)).double().to(world.device)]))
    return {name: float(value / total[-1]) for name, value in zip(sums, total[:-1], strict=True)}


def accuracy(method: Method, images: Tensor, labels: Tensor, shuffled: Tensor | None = None) -> dict[str, Tensor]:
    """Top-1 and top-5 in per cent and cross-entropy, summed over the batch."""
    logits = method.predict(images, shuffled).logits.float()
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return {"top1": 100 * ranked[:, 0].sum(), "top5": 100 * ranked.any(dim=1).sum(), "loss": loss}
