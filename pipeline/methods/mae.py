"""Masked autoencoder (MAE, CVPR 2022), the baseline of MP3 and DropPos: rebuild the pixels of removed patches.

Patches are put in random order once, while they are pixels: the first are visible, the rest are to be rebuilt. The
decoder stays in that order, with positions in the same order; a transformer does not care.

With rotary positions, each visible patch has the rotation of its own place, whichever others are left. The decoder has
its fixed sin-cos table whatever the encoder has: a mask token needs a place of its own to be told from the others.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.methods.base import METHODS, Batch, DecoderConfig, Measured, Method, Output
from pipeline.models.decoder import Decoder
from pipeline.models.initialisation import initialise_as_mae
from pipeline.models.patches import Encoder, Grid, embed_patches, grid_of, random_order, take, to_patches
from pipeline.models.places import at_places
from pipeline.models.position import add_positions, patch_positions, sincos_positions, with_cls


@METHODS.register("mae")
class MAE(Method):
    class Config(DecoderConfig):
        name: Literal["mae"] = "mae"
        norm_pix: bool = Field(True, description="targets are normalised patch by patch")
        mask_ratio: float = Field(0.75, gt=0, lt=1)
        """Share of the patches that are removed."""

    cfg: Config
    decoder_positions: Tensor

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        self.grid: Grid = grid_of(encoder)
        self.num_visible = int(self.grid.size * (1 - cfg.mask_ratio))
        pixels = encoder.patch_embed.proj.weight[0].numel()
        self.decoder = Decoder(encoder, cfg.decoder_width, cfg.decoder_depth, cfg.decoder_heads, pixels)
        self.mask_token = nn.Parameter(torch.empty(1, 1, cfg.decoder_width).normal_(std=0.02))
        positions = sincos_positions(self.grid, cfg.decoder_width, num_prefix=1)
        self.register_buffer("decoder_positions", positions, persistent=False)
        initialise_as_mae(encoder)
        initialise_as_mae(self.decoder)

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """order (B, N): for each image its patches, the visible ones first."""
        return {"order": random_order(len(batch.images), self.grid.size, batch.generator, batch.images.device)}

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        return Output(self.pixel_errors(images, draw["order"]).mean(), {})

    def pixel_errors(self, images: Tensor, order: Tensor) -> Tensor:
        """(B, N - visible): mean squared error of each removed patch."""
        patches = take(to_patches(images, self.grid), order)
        wanted = self.pixel_targets(patches[:, self.num_visible :])
        return (self.rebuild(patches[:, : self.num_visible], order).float() - wanted).square().mean(dim=-1)

    def rebuild(self, visible: Tensor, order: Tensor) -> Tensor:
        """Visible patches (B, V, C, pixels) -> the others' pixels (B, N - V, C * pixels), both in `order`."""
        encoder, count = self.encoder, self.num_visible
        tokens = embed_patches(encoder, visible)
        if encoder.pos_embed is None:
            tokens = with_cls(encoder, tokens)
        else:
            tokens = add_positions(tokens, patch_positions(encoder)[order[:, :count]])
            tokens = with_cls(encoder, tokens, encoder.pos_embed[:, :1])
        with at_places(encoder, order[:, :count]):
            tokens = encoder.blocks(encoder.norm_pre(encoder.pos_drop(tokens)))
        tokens = self.decoder.embed(encoder.norm(tokens))
        masks = self.mask_token.expand(len(tokens), self.grid.size - count, -1).to(tokens.dtype)
        cls_position, positions = self.decoder_positions[:, :1], self.decoder_positions[0, 1:][order]
        positions = torch.cat([cls_position.expand(len(tokens), -1, -1), positions], dim=1)
        return self.decoder(add_positions(torch.cat([tokens, masks], dim=1), positions), first=1 + count)

    def pixel_targets(self, patches: Tensor) -> Tensor:
        """(B, n, C, pixels) -> (B, n, C * pixels), each patch normalised (unbiased variance) if the config says so."""
        wanted = patches.flatten(2)
        if not self.cfg.norm_pix:
            return wanted
        return (wanted - wanted.mean(dim=-1, keepdim=True)) / (wanted.var(dim=-1, keepdim=True) + 1e-6).sqrt()

    def measure(self, batch: Batch) -> dict[str, Measured]:
        return {"loss": self.pixel_errors(batch.images, self.draw(batch, 1.0)["order"]).mean(dim=1)}

    def no_weight_decay(self) -> set[str]:
        """As released: vectors and biases are spared, CLS and mask token are decayed; learned positions are not."""
        return {"encoder.pos_embed", "encoder.rope.freqs"}
