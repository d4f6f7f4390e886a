"""Jigsaw-shuffled validation batches, shared by the evaluations that need them."""

import random

import torch
from torch import Tensor

from pipeline.data.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.methods.base import Method
from pipeline.models.position import grid_of


class Shuffler:
    """Shuffles every image on its own (MJP Alg. 1), from one seeded generator, and keeps the realised ratio."""

    def __init__(self, ratio: float, seed: int) -> None:
        self.ratio = ratio
        self.rng = random.Random(seed)

    def __call__(self, method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) -> shuffled images, and which patches were chosen (B, N) bool."""
        grid = grid_of(method.encoder)
        masks = [block_mask(grid, self.ratio, self.rng) for _ in images]
        order = torch.stack([jigsaw_order(mask, self.rng) for mask in masks]).to(images.device)
        return shuffle_patches(images, order, grid), torch.stack(masks).to(images.device)
