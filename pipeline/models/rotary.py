"""Rotary positions (RoPE) of a plain ViT: queries and keys are turned by angles that depend on where their patch is.

A product of two turned vectors depends on the difference of their places alone. The rotations are timm's:
- rope: half of the pairs of channels for the column, half for the row, at fixed frequencies (RoPE-ViT, axial)
- rope_mixed: each pair has a learned frequency for the row and one for the column, in each head of each block
- rope_dinov3: as rope, with places from -1 to 1 across the image, whatever its size (DINOv3)

Which tokens stand at which places, `places.py` tells. Weights and their names are those of timm's own rotary models.

Shapes: B images, H heads, N patches, P prefix tokens, n patches that pass the blocks, T = P + n, C channels of a head.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import ConfigError
from pipeline.models.patches import Encoder, Grid, grid_of
from pipeline.models.places import RotaryKind

with dynamo_deferred():
    from timm.layers import AttentionRope, create_rope_embed
    from timm.layers.pos_embed_sincos import get_mixed_freqs, get_mixed_grid

# RoPE-ViT's names and temperatures in timm, where rows come second; DINOv3's, which pairs channels across half a head.
KINDS: dict[str, dict[str, Any]] = {
    "rope": {"rope_type": "cat", "temperature": 100.0, "grid_indexing": "xy", "in_pixels": False},
    "rope_mixed": {"rope_type": "mixed", "temperature": 10.0, "grid_indexing": "xy"},
    "rope_dinov3": {"rope_type": "dinov3", "temperature": 100.0, "rotate_half": True},
}


class Rotary:
    """What all blocks of an encoder share: its rotations, and the places of the tokens in the pass that runs."""

    def __init__(self, encoder: Encoder, kind: RotaryKind) -> None:
        block = encoder.blocks[0].attn
        shape = {"dim": encoder.embed_dim, "num_heads": block.num_heads}
        self.is_mixed = kind == "rope_mixed"
        if self.is_mixed:
            shape["depth"] = len(encoder.blocks)
        self.make = partial(create_rope_embed, **KINDS[kind], **shape)
        self.own, self.num_prefix = grid_of(encoder), encoder.num_prefix_tokens
        self.rope: Any = self.make(feat_shape=list(self.own))
        self.grid: Grid | None = None  # of the images, where it is not the encoder's own
        self.places: Tensor | None = None  # (B or 1, P+n): for each token that is there, a place
        self.order: Tensor | None = None  # (P+n,): the order in which these tokens stand

    def of_block(self, block: int) -> Tensor:
        """The rotation of every token in this block, sines before cosines: (T, 2C), (H, T, 2C), (B, H or 1, T, 2C)."""
        table = self._table(block)
        nowhere = table.new_zeros(*table.shape[:-2], 1, table.shape[-1])
        nowhere[..., table.shape[-1] // 2 :] = 1
        if self.places is None:
            found = torch.cat([nowhere.expand(*table.shape[:-2], self.num_prefix, -1), table], dim=-2)
        else:
            found = torch.cat([table, nowhere], dim=-2)[..., self.places, :]  # NOWHERE, -1, is the last row
            found = found.transpose(0, 1) if self.is_mixed else found.unsqueeze(1)
        return found if self.order is None else found.index_select(-2, self.order)

    def _table(self, block: int) -> Tensor:
        """(N, 2C), or of a mixed one (H, N, 2C): of each patch of the grid."""
        if not self.is_mixed:
            return (self.rope if self.grid is None else self._elsewhere(self.grid)).get_embed()
        rows, cols = get_mixed_grid(list(self.grid or self.own), "xy", self.rope.freqs.device)
        # Of this block alone; in float32, because bf16 resolves an angle of 13 to 1/16.
        with torch.autocast(self.rope.freqs.device.type, enabled=False):
            return get_mixed_freqs(self.rope.freqs[:, block], rows, cols)

    def _elsewhere(self, grid: Grid) -> Any:
        """Fixed rotations of another grid."""
        return self.make(feat_shape=list(grid)).to(self.rope.get_embed().device)


class RotaryAttention(AttentionRope):
    """timm's attention with rotations, at the places of the pass that runs."""

    rotary: Rotary
    block: int

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return super().forward(x, self.rotary.of_block(self.block), attn_mask, is_causal)


def add_rotary_positions(encoder: Encoder, kind: RotaryKind) -> None:
    """Give a ViT whose blocks have RotaryAttention its rotations; learned ones are `rope.freqs`, as in timm."""
    channels = encoder.embed_dim // encoder.blocks[0].attn.num_heads
    if channels % 4:
        raise ConfigError(
            f"model.pos_embed {kind} needs heads whose channels 4 divides, found {channels}; change embed_dim or "
            "num_heads"
        )
    rotary = Rotary(encoder, kind)
    encoder.rope = rotary.rope
    for number, block in enumerate(encoder.blocks):
        block.attn.rotary, block.attn.block = rotary, number
        block.attn.num_prefix_tokens = 0  # here a rotation of prefix tokens is one that changes nothing
        block.attn.rotate_half = kind == "rope_dinov3"
