"""The grid of patches: cutting images into it, putting them together, choosing patches, embedding those that are left.

Shapes: B images, N patches of the grid, n chosen ones, C channels, D width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.trees import send as send

Encoder: TypeAlias = Any  # a timm model with a `grid`; timm does not declare the attributes of its models


class Grid(NamedTuple):
    """Patches per column and per row; patch i sits at row i // cols, column i % cols."""

    rows: int
    cols: int

    @property
    def size(self) -> int:
        return self.rows * self.cols

    def coordinates(self) -> Tensor:
        """(N, 2) row and column of each patch, counted from 0."""
        index = torch.arange(self.size)
        return torch.stack([index // self.cols, index % self.cols], dim=1)


def grid_of(encoder: Encoder) -> Grid:
    """The grid `build_encoder` gave this encoder: its patches, or the squares a jigsaw of a CNN's input moves."""
    return encoder.grid


def to_patches(images: Tensor, grid: Grid) -> Tensor:
    """(B, C, H, W) -> (B, N, C, pixels of a patch)."""
    b, c, h, w = images.shape
    patches = images.reshape(b, c, grid.rows, h // grid.rows, grid.cols, w // grid.cols)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(b, grid.size, c, -1)


def to_images(patches: Tensor, size: Sequence[int], grid: Grid) -> Tensor:
    """(B, N, C, pixels of a patch) -> (B, C, H, W), the reverse of `to_patches`."""
    b, _, c, _ = patches.shape
    h, w = size
    patches = patches.reshape(b, grid.rows, grid.cols, c, h // grid.rows, w // grid.cols)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(b, c, h, w)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """rows (B, N, ...), index (B, M) -> (B, M, ...): for each image the rows it names."""
    return rows.gather(1, index.reshape(*index.shape, *[1] * (rows.ndim - 2)).expand(-1, -1, *rows.shape[2:]))


def random_order(count: int, size: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """(count, size): a uniformly random order for each image. Drawn on the CPU, sorted on the device."""
    return send(torch.rand(count, size, generator=generator), device).argsort(dim=1)


def embed_patches(encoder: Encoder, patches: Tensor) -> Tensor:
    """timm's patch embedding of patches that are cut out already: (B, n, C, pixels) -> tokens (B, n, D).

    A method that drops or reorders patches does so on pixels, which need no gradient, and embeds what is left.
    """
    proj = encoder.patch_embed.proj
    return encoder.patch_embed.norm(F.linear(patches.flatten(2), proj.weight.flatten(1), proj.bias))
