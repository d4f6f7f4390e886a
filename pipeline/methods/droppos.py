"""DropPos, reconstructing dropped positions (NeurIPS 2023), on a ViT with position embeddings.

A share gamma of the patches is removed. Of the visible ones, a share gamma_pos loses its position embedding to one
learned mask token (Eq. 3); the rest are anchors. A light decoder names the positions that were dropped, against
smoothed targets (Eq. 5-7), each weighted by how close its patch is to CLS (Eq. 9).

With rotary positions, an anchor has the rotation of its place, and a patch whose position is dropped has none; the
decoder names the row and column that it lost. The mask token is added only where a table is (`model.add_absolute`).

Patches are put in random order once, while they are pixels: anchors first, then those whose positions are dropped,
then the removed ones. That is the same distribution as two independent maskings, and everything else is a slice.

`fidelity` sets the smoothing map:
- corrected (default): squared distance on the model's own grid, each row normalised.
- paper: Eq. 5 as printed, with the plain Euclidean distance.
- released: the authors' map: squared distance on the grid that their scripts ask for (a side of image_size // side
  cells: 16x16 for the 14x14 patches of 224 px), cut to the first N rows and columns; column j divided by the sum of
  row j.
As released in all three: the softmax runs over all N positions (Eq. 4, 6, 8 print (1 - gamma) N); affinities come
from an extra pass over the whole image, are softmaxed over all N patches and renormalised over the visible ones; the
loss is the weighted mean over the batch, not a sum. sigma moves per step as in Eq. 7 (released: per epoch).
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.errors import ConfigError
from pipeline.core.sizes import Size, pair
from pipeline.methods.base import (
    METHODS,
    Batch,
    DecoderConfig,
    Fidelity,
    Measured,
    Method,
    Output,
    Primary,
    cross_entropies,
    percent,
)
from pipeline.models.decoder import Decoder
from pipeline.models.initialisation import initialise_as_mae
from pipeline.models.patches import Encoder, Grid, embed_patches, grid_of, random_order, send, take, to_patches
from pipeline.models.places import NOWHERE, at_places
from pipeline.models.position import add_positions, encode, patch_positions, with_cls


@METHODS.register("droppos")
class DropPos(Method):
    class Config(DecoderConfig):
        name: Literal["droppos"] = "droppos"
        position_ratio: float = Field(0.75, gt=0, le=1)
        """Share of the visible patches whose positions are dropped (gamma_pos)."""
        sigma: float = Field(1.0, ge=0, description="sigma_0 of position smoothing; 0: one-hot targets")
        sigma_end: float = Field(0.0, ge=0)
        """Sigma of position smoothing at the end (sigma_T), reached linearly."""
        tau: float | None = Field(0.1, gt=0, description="temperature of attentive reconstruction; null: off")
        decoder_depth: int = Field(2, ge=1, le=1000)

    primary = Primary("position_top1")
    cfg: Config
    distances: Tensor

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        self.grid: Grid = grid_of(encoder)
        self._count_patches()
        if encoder.pos_embed is not None:
            self.mask_token = nn.Parameter(torch.empty(1, 1, encoder.embed_dim).normal_(std=0.02))
        self.decoder = Decoder(encoder, cfg.decoder_width, cfg.decoder_depth, cfg.decoder_heads, self.grid.size)
        distances = smoothing_distances(self.grid, cfg.fidelity, encoder.patch_embed.img_size)
        self.register_buffer("distances", distances, persistent=False)
        initialise_as_mae(encoder)
        initialise_as_mae(self.decoder)

    def _count_visible(self) -> int:
        return int(self.grid.size * (1 - self.cfg.mask_ratio))

    def _count_patches(self) -> None:
        self.num_visible = self._count_visible()
        self.num_anchors = int(self.num_visible * (1 - self.cfg.position_ratio))
        if self.num_anchors == self.num_visible:
            raise ConfigError(
                f"method.mask_ratio {self.cfg.mask_ratio} and position_ratio {self.cfg.position_ratio} drop no "
                f"position among {self.grid.size} patches; lower mask_ratio"
            )

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """order (B, N): anchors, patches with dropped positions, removed patches; sigma ()."""
        cfg = self.cfg
        sigma = torch.tensor(cfg.sigma + progress * (cfg.sigma_end - cfg.sigma))
        order = random_order(len(batch.images), self.grid.size, batch.generator, batch.images.device)
        return {"order": order, "sigma": send(sigma, order.device)}

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        order, anchors, visible = draw["order"], self.num_anchors, self.num_visible
        # First, so that its memory is free again before the pass that keeps activations.
        weights = torch.ones_like(order[:, anchors:visible], dtype=torch.float)
        if self.cfg.tau is not None:
            affinities = take(self.affinities(images), order[:, :visible])
            weights = (affinities / affinities.sum(dim=1, keepdim=True))[:, anchors:]
        logits = self.position_logits(images, order, visible, anchors).float()
        positions = order[:, anchors:visible]
        wanted = smoothed_targets(self.distances, draw["sigma"], self.cfg.fidelity, self.grid.size)[positions]
        errors = -(wanted * logits.log_softmax(dim=-1)).sum(dim=-1)  # (B, dropped)
        right = (logits.detach().argmax(dim=-1) == positions).float()
        return Output((errors * weights).sum() / weights.sum(), {"position_top1": 100 * right.mean()})

    def position_logits(self, images: Tensor, order: Tensor, visible: int, anchors: int) -> Tensor:
        """(B, visible - anchors, N): logits of the positions that slots `anchors` to `visible` of `order` lost."""
        encoder = self.encoder
        tokens = embed_patches(encoder, take(to_patches(images, self.grid), order[:, :visible]))
        if encoder.pos_embed is None:
            tokens = with_cls(encoder, tokens)
        else:
            masks = self.mask_token.expand(len(images), visible - anchors, -1)
            positions = torch.cat([patch_positions(encoder)[order[:, :anchors]], masks], dim=1)
            tokens = with_cls(encoder, add_positions(tokens, positions), encoder.pos_embed[:, :1])
        places = F.pad(order[:, :anchors], (0, visible - anchors), value=NOWHERE)
        with at_places(encoder, places):
            tokens = encoder.norm(encoder.blocks(encoder.norm_pre(encoder.pos_drop(tokens))))
        return self.decoder(self.decoder.embed(tokens), first=1 + anchors)

    @torch.no_grad()
    def affinities(self, images: Tensor) -> Tensor:
        """DropPos Eq. 9 (B, N): softmax over patches of the cosine between CLS and patch, the whole image in view."""
        assert self.cfg.tau is not None  # without tau there is no attentive reconstruction
        tokens = encode(self.encoder, images).float()
        return (F.cosine_similarity(tokens[:, :1], tokens[:, 1:], dim=-1) / self.cfg.tau).softmax(dim=-1)

    def measure(self, batch: Batch) -> dict[str, Measured]:
        return self.measure_at(batch, self.num_visible, self.num_anchors)

    def measure_at(self, batch: Batch, visible: int, anchors: int) -> dict[str, Measured]:
        """Plain top-1 over dropped positions in per cent, and cross-entropy, for any number of visible and anchors."""
        order = self.draw(batch, 1.0)["order"]
        logits = self.position_logits(batch.images, order, visible, anchors).float()
        positions = order[:, anchors:visible]
        right = (logits.argmax(dim=-1) == positions).float().mean(dim=1)
        return {"position_top1": percent(right), "loss": cross_entropies(logits, positions)}

    def no_weight_decay(self) -> set[str]:
        """As released: vectors and biases are spared, CLS and mask token are decayed; learned positions are not."""
        return {"encoder.pos_embed", "encoder.rope.freqs"}


def smoothing_distances(grid: Grid, fidelity: Fidelity, image_size: Size) -> Tensor:
    """dist(i, j) of DropPos Eq. 5; for `released`, over all cells of the grid that it takes instead."""
    if fidelity == "released":
        height, width = pair(image_size)
        if grid.rows != grid.cols or height != width:
            raise ConfigError(
                f"method.fidelity released: the released map is for square images and grids, found {height}x{width} "
                f"pixels and {grid.rows}x{grid.cols} patches; use corrected"
            )
        # The scripts give the patches a side where the code expects the pixels of one, and divides by it.
        side = height // grid.rows
        if side < grid.rows:
            raise ConfigError(
                f"method.fidelity released: the released map would have {side}x{side} cells, too few for "
                f"{grid.rows}x{grid.cols} patches; use corrected"
            )
        grid = Grid(side, side)
    place = grid.coordinates().double()
    distances = torch.cdist(place, place)
    return (distances if fidelity == "paper" else distances.square().round()).float()


def smoothed_targets(distances: Tensor, sigma: Tensor, fidelity: Fidelity, num_patches: int) -> Tensor:
    """w* of DropPos Eq. 5 (N, N): row i is the target of position i. At sigma 0 it is the identity."""
    weights = (-distances / sigma.square().clamp(min=1e-12)).exp()
    # Released: without keepdim, so that column j is divided by the sum of row j.
    weights = weights / weights.sum(dim=-1, keepdim=fidelity != "released")
    return weights[:num_patches, :num_patches]
