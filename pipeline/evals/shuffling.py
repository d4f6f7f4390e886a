"""Jigsaw-shuffled validation batches, shared by the evaluations that need them.

Every image has a shuffle of its own; the released accuracy script shuffles 128 images alike, which has the same mean.
"""

import random

import torch
from torch import Tensor

from pipeline.methods.base import Method
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.models.patches import grid_of


class Shuffler:
    """Shuffles every image on its own (MJP Alg. 1), from one seeded generator."""

    def __init__(self, ratio: float, seed: int) -> None:
        self.ratio = ratio
        self.rng = random.Random(seed)

    def __call__(self, method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) -> shuffled images, and which patches were chosen (B, N) bool."""
        grid = grid_of(method.encoder)
        shuffled = torch.zeros(len(images), grid.size, dtype=torch.bool)
        order = torch.zeros(len(images), grid.size, dtype=torch.long)
        for i in range(len(images)):  # image by image, so that the batch size does not matter
            shuffled[i] = block_mask(grid, self.ratio, self.rng)
            order[i] = jigsaw_order(shuffled[i], self.rng)
        return shuffle_patches(images, order.to(images.device), grid), shuffled.to(images.device)
