"""Jigsaw-shuffled validation batches, shared by the evaluations that need them.

Every image has a shuffle of its own; the released accuracy script shuffles 128 images alike, which has the same mean.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pipeline.core.trees import send
from pipeline.data.loader import begin_worker
from pipeline.methods.base import Method
from pipeline.models.jigsaw import chosen_set, permuted, shuffle_patches
from pipeline.models.patches import Grid, grid_of

AT_ONCE, AHEAD = 128, 128  # images that are drawn for together, and how often that is done before they are used


class Shuffler:
    """Shuffles every image on its own (MJP Alg. 1), from one seeded generator.

    A GPU classifies small images faster than this is drawn for them, so a process of its own draws ahead there; it
    begins at once, while the first images are read.
    """

    def __init__(self, method: Method, ratio: float, seed: int) -> None:
        self.grid = grid_of(method.encoder)
        self.drawn = drawn_for(self.grid, ratio, seed, is_ahead=next(method.parameters()).is_cuda)
        self.left: tuple[Tensor, Tensor] | None = None

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) -> shuffled images, and which patches were chosen (B, N) bool."""
        order, shuffled = (send(each, images.device) for each in self._take(len(images)))
        return shuffle_patches(images, order.long(), self.grid), shuffled

    def _take(self, count: int) -> tuple[Tensor, Tensor]:
        """Order (count, N) and choice (count, N) of the next images."""
        parts = [self.left or next(self.drawn)]
        while sum(len(order) for order, _ in parts) < count:
            parts.append(next(self.drawn))
        order, shuffled = (torch.cat(each) for each in zip(*parts, strict=True))
        self.left = (order[count:], shuffled[count:]) if len(order) > count else None
        return order[:count], shuffled[:count]


def drawn_for(grid: Grid, ratio: float, seed: int, is_ahead: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Orders and choices without end, drawn when they are asked for or ahead."""
    ahead: Any = {"num_workers": 1, "prefetch_factor": AHEAD, "worker_init_fn": begin_worker} if is_ahead else {}
    # With a generator of its own: the loader would use the one that measures are seeded by.
    return iter(DataLoader(Draws(grid, ratio, seed), None, generator=torch.Generator(), **ahead))


class Draws(IterableDataset):
    """Without end: orders and choices of the next images, image by image, so that the batch size does not matter."""

    def __init__(self, grid: Grid, ratio: float, seed: int) -> None:
        self.grid, self.ratio, self.seed = grid, ratio, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rng, size = random.Random(self.seed), self.grid.size
        while True:
            chosen, moves = list[int](), list[int]()  # of all these images together
            for _ in range(AT_ONCE):
                chosen.append(chosen_set(self.grid, self.ratio, rng))
                moves += permuted(range(chosen[-1].bit_count()), rng)
            shuffled = _bits_of(chosen, size)
            images, slots = shuffled.nonzero()
            firsts = np.searchsorted(images, images)  # where the slots of the same image begin
            order = np.tile(np.arange(size, dtype=np.int32), (AT_ONCE, 1))
            order[images, slots] = slots[firsts + np.array(moves, dtype=int)]
            yield torch.from_numpy(order), torch.from_numpy(shuffled)


def _bits_of(numbers: Sequence[int], size: int) -> np.ndarray:
    """bool (numbers, size), from the lowest bit of each."""
    num_bytes = -(-size // 8)
    rows = b"".join(number.to_bytes(num_bytes, "little") for number in numbers)
    packed = np.frombuffer(rows, dtype=np.uint8).reshape(-1, num_bytes)
    return np.unpackbits(packed, axis=1, count=size, bitorder="little").astype(bool)
