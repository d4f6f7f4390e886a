"""Rotary positions (RoPE) of a plain ViT: queries and keys are turned by angles that depend on where their patch is.

A product of two turned vectors depends on the difference of their places alone. The rotations are timm's:
- rope: half of the pairs of channels for the column, half for the row, at fixed frequencies (RoPE-ViT, axial)
- rope_mixed: each pair has a learned frequency for the row and one for the column, in each head of each block
- rope_dinov3: as rope, with places from -1 to 1 across the image, whatever its size (DINOv3)

Which tokens stand at which places, `places.py` tells. Weights and their names are those of timm's own rotary models.
Rotations are computed once for each grid, learned ones once for each block and pass. A pair of channels is turned as
one complex number, in one pass over queries and one over keys, or two where pairs are half a head apart; timm's way
takes six.

Shapes: B images, H heads, N patches, P prefix tokens, n patches that pass the blocks, T = P + n, C channels of a head.
A turn is a pair, cosine and sine, for each pair of channels.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import ConfigError
from pipeline.models.patches import Encoder, Grid, grid_of
from pipeline.models.places import RotaryKind

with dynamo_deferred():
    from timm.layers import Attention, create_rope_embed, maybe_add_mask, resolve_self_attn_mask

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
        self.is_mixed, self.pairs_halves = kind == "rope_mixed", kind == "rope_dinov3"
        if self.is_mixed:
            shape["depth"] = len(encoder.blocks)
        self.make = partial(create_rope_embed, **KINDS[kind], **shape)
        self.own, self.num_prefix = grid_of(encoder), encoder.num_prefix_tokens
        self.trained: Grid | None = None  # where rows and columns are rescaled to those of this grid
        self.rope: Any = self.make(feat_shape=list(self.own))
        self.rope.register_buffer("of_own_grid", self._table_of(self.own), persistent=False)
        self.elsewhere: dict[Grid, Tensor] = {}
        self.grid: Grid | None = None  # of the images, where it is not the encoder's own
        self.places: Tensor | None = None  # (B or 1, P+n): for each token that is there, a place
        self.order: Tensor | None = None  # (P+n,): the order in which these tokens stand

    def rescale(self, trained: Grid) -> None:
        """From now on, the rows and columns of every grid lie within those of this one (timm's `ref_feat_shape`).

        DINOv3's do so on any grid.
        """
        self.trained = trained
        self.rope.of_own_grid = self._table_of(self.own).to(self.rope.of_own_grid.device)
        self.elsewhere.clear()

    def of_block(self, block: int) -> Tensor:
        """The turns of every token in this block: (T, C/2, 2), (H, T, C/2, 2) or (B, H or 1, T, C/2, 2)."""
        turns = table = self._table()
        if self.is_mixed:
            turns = _turns(table[:, :1] * self._frequencies(block, 0) + table[:, 1:] * self._frequencies(block, 1))
        if self.places is None:
            found = turns[..., :-1, :, :]
        else:
            found = turns[..., self.num_prefix :, :, :][..., self.places, :, :]  # NOWHERE, -1, is the last row
            found = found.transpose(0, 1) if self.is_mixed else found.unsqueeze(1)
        return found if self.order is None else found.index_select(-3, self.order)

    def _frequencies(self, block: int, axis: int) -> Tensor:
        """(H, 1, C/2), in float32 at least, because bf16 resolves an angle of 13 to 1/16."""
        return _in_full(self.rope.freqs[axis, block]).unsqueeze(1)

    def _table(self) -> Tensor:
        """(P+N+1, ...) turns, or columns and rows of mixed ones: of prefix tokens, of patches, and of NOWHERE."""
        if self.grid is None:
            return self.rope.of_own_grid
        device, known = self.rope.of_own_grid.device, self.elsewhere.get(self.grid)
        if known is not None and known.device == device:
            return known
        table = self._table_of(self.grid).to(device)
        if not torch.compiler.is_compiling():  # a recorded graph writes over what it made
            self.elsewhere[self.grid] = table
        return table

    def _table_of(self, grid: Grid) -> Tensor:
        if self.is_mixed:
            places = grid.coordinates() * torch.tensor(self.trained or grid) / torch.tensor(grid)
            return F.pad(places.flip(1), (0, 0, self.num_prefix, 1))
        rope = self.make(feat_shape=list(grid), ref_feat_shape=self.trained)
        sines, cosines = rope.get_embed().chunk(2, dim=-1)  # each twice: side by side, or one half after the other
        once = slice(sines.shape[-1] // 2) if self.pairs_halves else slice(None, None, 2)
        table = torch.stack([cosines[:, once], sines[:, once]], dim=-1)
        unturned = _turns(table.new_zeros(1, table.shape[1]))
        return torch.cat([unturned.expand(self.num_prefix, -1, -1), table, unturned])


def _turns(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _in_full(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def turned(values: Tensor, turns: Tensor, pairs_halves: bool) -> Tensor:
    """Queries or keys (B, H, T, C), turned; a pair is two channels side by side, or half a head apart.

    Afterwards its channels are side by side in both cases: products of queries and keys do not depend on their order.
    """
    full = _in_full(values)
    pairs = full.unflatten(-1, (2, -1)).transpose(-1, -2) if pairs_halves else full.unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # which makes one kernel of this, and none of complex numbers
        (first, second), (cosines, sines) = pairs.unbind(dim=-1), turns.unbind(dim=-1)
        real = torch.addcmul(first * cosines, second, sines, value=-1)
        found = torch.stack([real, torch.addcmul(first * sines, second, cosines)], dim=-1)
    else:
        numbers = torch.complex(*pairs.unbind(dim=-1)) if pairs_halves else torch.view_as_complex(pairs)
        found = torch.view_as_real(numbers * torch.view_as_complex(_in_full(turns)))
    return found.flatten(-2).type_as(values)


class RotaryAttention(Attention):
    """timm's attention with rotations, at the places of the pass that runs."""

    rotary: Rotary
    block: int

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        turns = self.rotary.of_block(self.block)
        query = turned(self.q_norm(query), turns, self.rotary.pairs_halves)
        key = turned(self.k_norm(key), turns, self.rotary.pairs_halves)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            found = F.scaled_dot_product_attention(query, key, value, attn_mask, dropout, is_causal)
        else:
            scores = query * self.scale @ key.transpose(-2, -1)
            bias = resolve_self_attn_mask(x.shape[1], scores, attn_mask, is_causal)
            found = self.attn_drop(maybe_add_mask(scores, bias).softmax(dim=-1)) @ value
        found = self.norm(found.transpose(1, 2).flatten(2))
        return self.proj_drop(self.proj(found if self.gate is None else found * self.gate(x).sigmoid()))


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
