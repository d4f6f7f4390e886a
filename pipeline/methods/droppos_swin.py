"""DropPos on a Swin (its Table S2), which the authors built on UM-MAE and did not release.

What Table S2 leaves open is chosen here, after UM-MAE (256 px, 16x16 cells, windows of 8, pixel shuffle in the
decoder):
- Positions belong to square cells of 16 px, like the patches of a ViT; a Swin's patches of 4 px are parts of them.
- A pyramid needs a rectangle, so the visible cells are put together into a square image of their own, 128 px for
  gamma 0.75. They are put there in random order: a Swin has relative biases, and in the right order the layout alone
  would tell most of a position.
- Positions are fixed sin-cos, one for each patch, at its true place; the patches of a cell lose theirs together.
- The last stage has one token for 2x2 cells; the decoder's first layer spreads it over them.
- A Swin has no CLS: affinities (Eq. 9) are to the mean over the image.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.errors import ConfigError
from pipeline.core.sizes import Size, pair, shown_size
from pipeline.methods.base import METHODS, Method
from pipeline.methods.droppos import DropPos, smoothing_distances
from pipeline.models.decoder import Decoder
from pipeline.models.encoder import ModelConfig
from pipeline.models.initialisation import initialise_as_mae
from pipeline.models.patches import Encoder, Grid, take, to_images, to_patches
from pipeline.models.position import add_positions, sincos_positions


@METHODS.register("droppos_swin")
class DropPosSwin(DropPos):
    class Config(DropPos.Config):
        name: Literal["droppos_swin"] = "droppos_swin"  # type: ignore[assignment]
        cells: int = Field(16, ge=2, description="number of cells per side of the image; each cell has one position")

        def check(self, model: ModelConfig, image_size: Size) -> None:
            if model.family != "swin" or model.positions != "none":
                raise ValueError(
                    "method droppos_swin works on a Swin and adds its own positions, found model.arch "
                    f"{model.arch} with pos_embed: {model.positions}"
                )
            if not isinstance(image_size, int):
                raise ValueError(f"method droppos_swin needs square images, found {shown_size(image_size)}")
            if image_size % self.cells:
                raise ValueError(f"method.cells {self.cells} does not divide data.image_size {image_size}")
            if self.side == 0:
                raise ValueError(f"method.mask_ratio {self.mask_ratio} leaves none of {self.cells**2} cells; lower it")
            self.check_decoder()

        @property
        def side(self) -> int:
            """Cells per side of the square that the visible cells form."""
            return math.isqrt(int(self.cells**2 * (1 - self.mask_ratio)))

        def encoder_size(self, image_size: Size) -> Size:
            return pair(image_size)[0] // self.cells * self.side

    cfg: Config
    positions: Tensor
    layout: Tensor

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        Method.__init__(self, cfg, encoder)
        self.grid = Grid(cfg.cells, cfg.cells)
        self._count_patches()
        self.cell_pixels = encoder.patch_embed.img_size[0] // cfg.side
        self.cell_patches, self.spread = self._proportions()
        self.mask_token = nn.Parameter(torch.empty(1, 1, 1, encoder.embed_dim).normal_(std=0.02))
        self.decoder = Decoder(encoder, cfg.decoder_width, cfg.decoder_depth, cfg.decoder_heads, self.grid.size)
        self.decoder.embed = nn.Linear(encoder.num_features, self.spread**2 * cfg.decoder_width)
        distances = smoothing_distances(self.grid, cfg.fidelity, cfg.cells * self.cell_pixels)
        self.register_buffer("distances", distances, persistent=False)
        patches = Grid(*[cfg.cells * self.cell_patches] * 2)
        table = sincos_positions(patches, encoder.embed_dim)[0].T.unflatten(1, patches).unsqueeze(0)
        # (N, patches of a cell, D): the true places of every cell's patches.
        positions = to_patches(table, self.grid)[0].transpose(1, 2).contiguous()
        self.register_buffer("positions", positions, persistent=False)
        # The order of cells is random; laying its slots out mixed keeps anchors from filling the upper windows.
        layout = torch.randperm(self.num_visible, generator=torch.Generator().manual_seed(0))
        self.register_buffer("layout", layout, persistent=False)
        initialise_as_mae(encoder)
        initialise_as_mae(self.decoder)

    def _count_visible(self) -> int:
        return self.cfg.side**2

    def _proportions(self) -> tuple[int, int]:
        """Patches per side of a cell, and cells per side of one token of the last stage."""
        patch = self.encoder.patch_embed.patch_size[0]
        stride = patch * 2 ** (len(self.encoder.layers) - 1)
        spread = stride // self.cell_pixels
        fits = self.cell_pixels % patch == 0 and stride % self.cell_pixels == 0
        if not fits or self.cfg.side % spread or self.cfg.cells % spread:
            raise ConfigError(
                f"method droppos_swin: {self.cfg.side}x{self.cfg.side} visible cells of {self.cell_pixels} px do not "
                f"fit patches of {patch} px and a last stage of {stride} px; change method.cells or mask_ratio"
            )
        return self.cell_pixels // patch, spread

    def position_logits(self, images: Tensor, order: Tensor, visible: int, anchors: int) -> Tensor:
        cells = take(to_patches(images, self.grid), order[:, :visible])
        masks = self.mask_token.expand(len(images), visible - anchors, *self.positions.shape[1:])
        positions = torch.cat([self.positions[order[:, :anchors]], masks], dim=1)
        features = self.features(cells[:, self.layout], positions[:, self.layout])
        tokens = F.pixel_shuffle(self.decoder.embed(features).permute(0, 3, 1, 2), self.spread)
        return self.decoder(tokens.flatten(2).transpose(1, 2)[:, self.layout.argsort()], first=anchors)

    def features(self, cells: Tensor, positions: Tensor) -> Tensor:
        """Cells (B, n, C, pixels), positions (B or 1, n, patches, D), row by row -> (B, H, W, F) of the last stage."""
        side = math.isqrt(cells.shape[1])
        size, grid = side * self.cell_pixels, Grid(side, side)
        tokens = self.encoder.patch_embed(to_images(cells, (size, size), grid))
        laid_out = to_images(positions.transpose(2, 3), tuple(tokens.shape[1:3]), grid).permute(0, 2, 3, 1)
        return self.encoder.norm(self.encoder.layers(add_positions(tokens, laid_out)))

    @torch.no_grad()
    def affinities(self, images: Tensor) -> Tensor:
        assert self.cfg.tau is not None
        features = self.features(to_patches(images, self.grid), self.positions.unsqueeze(0)).float()
        mean = features.mean(dim=(1, 2), keepdim=True)
        near = F.cosine_similarity(features, mean, dim=-1)  # (B, H, W)
        near = near.repeat_interleave(self.spread, dim=1).repeat_interleave(self.spread, dim=2)
        return (near.flatten(1) / self.cfg.tau).softmax(dim=-1)

    def no_weight_decay(self) -> set[str]:
        return Method.no_weight_decay(self)
