"""Jigsaw-shuffled validation batches, shared by the evaluations that need them.

Every image has a shuffle of its own; the released accuracy script shuffles 128 images alike, which has the same mean.
"""

import random

import torch
from torch import Tensor

from pipeline.methods.base import Method
from pipeline.models.jigsaw import chosen_patches, permuted, shuffle_patches
from pipeline.models.patches import grid_of
from pipeline.trees import send


class Shuffler:
    """Shuffles every image on its own (MJP Alg. 1), from one seeded generator."""

    def __init__(self, ratio: float, seed: int) -> None:
        self.ratio = ratio
        self.rng = random.Random(seed)

    def __call__(self, method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) -> shuffled images, and which patches were chosen (B, N) bool."""
        grid, device = grid_of(method.encoder), images.device
        slots, patches = list[int](), list[int]()  # of all images together
        for first in range(0, len(images) * grid.size, grid.size):  # image by image: the batch size does not matter
            chosen = chosen_patches(grid, self.ratio, self.rng)
            slots += [first + slot for slot in chosen]
            patches += permuted(chosen, self.rng)
        order = torch.arange(grid.size).repeat(len(images))
        order[slots] = torch.tensor(patches, dtype=torch.long)
        shuffled = torch.zeros(len(order), dtype=torch.bool)
        shuffled[slots] = True
        order, shuffled = (send(each.view(len(images), grid.size), device) for each in (order, shuffled))
        return shuffle_patches(images, order, grid), shuffled
