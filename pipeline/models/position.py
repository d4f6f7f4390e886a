"""All position-embedding code: the grid, and running a ViT with given instead of learned positions.

Shapes: B images, N patches, P prefix tokens (CLS), D width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


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


def grid_of(encoder: nn.Module) -> Grid:
    return Grid(*encoder.patch_embed.grid_size)


def patch_positions(encoder: nn.Module) -> Tensor:
    """(N, D) position embeddings of the patches, without the prefix tokens."""
    return encoder.pos_embed[0, encoder.num_prefix_tokens :]


def with_unknown(pos_embed: Tensor, unknown: Tensor, shuffled: Tensor) -> Tensor:
    """MJP Eq. 4: the shared unknown embedding wherever a patch was shuffled.

    pos_embed (1, P+N, D), unknown (1, D), shuffled (B, N) bool -> (B, P+N, D). The CLS token keeps its own.
    """
    num_prefix = pos_embed.shape[1] - shuffled.shape[1]
    shuffled = nn.functional.pad(shuffled, (num_prefix, 0), value=False)
    return torch.where(shuffled.unsqueeze(-1), unknown, pos_embed)


def encode(encoder: nn.Module, images: Tensor, positions: Tensor) -> Tensor:
    """timm's `forward_features` with these position embeddings (B or 1, P+N, D) -> tokens (B, P+N, D)."""
    tokens = encoder.patch_embed(images)
    prefix = encoder.cls_token.expand(len(tokens), -1, -1)
    tokens = encoder.pos_drop(torch.cat([prefix, tokens], dim=1) + positions)
    tokens = encoder.norm_pre(encoder.patch_drop(tokens))
    return encoder.norm(encoder.blocks(tokens))
