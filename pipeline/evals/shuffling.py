"""Jigsaw-shuffled validation batches, shared by the evaluations that need them.

Every image has a shuffle of its own; the released accuracy script shuffles 128 images alike, which has the same mean.
"""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pipeline.methods.base import Method
from pipeline.models.jigsaw import chosen_patches, permuted, shuffle_patches
from pipeline.models.patches import Grid, grid_of
from pipeline.trees import send

AT_ONCE, AHEAD = 128, 32  # images that are drawn for together, and how often that is done before they are used


class Shuffler:
    """Shuffles every image on its own (MJP Alg. 1), from one seeded generator.

    A GPU classifies small images faster than this is drawn for them, so a process of its own draws ahead there.
    """

    def __init__(self, ratio: float, seed: int) -> None:
        self.ratio, self.seed = ratio, seed
        self.drawn: Iterator[tuple[Tensor, Tensor]] | None = None
        self.left: tuple[Tensor, Tensor] | None = None

    def __call__(self, method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) -> shuffled images, and which patches were chosen (B, N) bool."""
        grid = grid_of(method.encoder)
        order, shuffled = (send(each, images.device) for each in self._take(len(images), grid, images.is_cuda))
        return shuffle_patches(images, order.long(), grid), shuffled

    def _take(self, count: int, grid: Grid, is_ahead: bool) -> tuple[Tensor, Tensor]:
        """Order (count, N) and choice (count, N) of the next images."""
        if self.drawn is None:
            # With a generator of its own: the loader would use the one that measures are seeded by.
            draws, generator = Draws(grid, self.ratio, self.seed), torch.Generator()
            ahead: Any = {"num_workers": 1, "prefetch_factor": AHEAD} if is_ahead else {}
            self.drawn = iter(DataLoader(draws, None, generator=generator, **ahead))
        parts = [self.left or next(self.drawn)]
        while sum(len(order) for order, _ in parts) < count:
            parts.append(next(self.drawn))
        order, shuffled = (torch.cat(each) for each in zip(*parts, strict=True))
        self.left = (order[count:], shuffled[count:]) if len(order) > count else None
        return order[:count], shuffled[:count]


class Draws(IterableDataset):
    """Without end: orders and choices of the next images, image by image, so that the batch size does not matter."""

    def __init__(self, grid: Grid, ratio: float, seed: int) -> None:
        self.grid, self.ratio, self.seed = grid, ratio, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rng, size = random.Random(self.seed), self.grid.size
        while True:
            slots, patches = list[int](), list[int]()  # of all these images together
            for first in range(0, AT_ONCE * size, size):
                chosen = chosen_patches(self.grid, self.ratio, rng)
                slots += [first + slot for slot in chosen]
                patches += permuted(chosen, rng)
            order = torch.arange(size, dtype=torch.int32).repeat(AT_ONCE)
            order[slots] = torch.tensor(patches, dtype=torch.int32)
            shuffled = torch.zeros(AT_ONCE * size, dtype=torch.bool)
            shuffled[slots] = True
            yield order.view(AT_ONCE, size), shuffled.view(AT_ONCE, size)
