"""Attention with 2-D relative position biases (BEiT's, one table per block), for finetuning without absolute
positions."""

import torch
from torch import Tensor

from pipeline.core.dynamo import dynamo_deferred
from pipeline.models.patches import Encoder, grid_of

with dynamo_deferred():
    from timm.layers import Attention, RelPosBias


class RelativeAttention(Attention):
    """timm's attention plus a learned bias for each head and each offset between two patches."""

    rel_pos: RelPosBias

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return super().forward(x, attn_mask=self.rel_pos.get_bias())


def add_relative_positions(encoder: Encoder) -> None:
    """Give every block a table of zeros: at first, nothing is changed."""
    for block in encoder.blocks:
        block.attn.rel_pos = RelPosBias(grid_of(encoder), block.attn.num_heads, encoder.num_prefix_tokens)
        with torch.no_grad():
            block.attn.rel_pos.relative_position_bias_table.zero_()
