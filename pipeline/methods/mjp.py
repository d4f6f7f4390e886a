"""Masked Jigsaw Puzzle position embeddings (MJP, CVPR 2023), on a ViT or a Swin with learned absolute positions.

Chosen patches are shuffled (Alg. 1), their positions replaced by one shared unknown embedding (Eq. 4), and a dense
absolute localisation loss keeps the remaining embeddings readable as rows and columns (Eq. 1-2).

`fidelity` sets the defaults of the fields in PRESETS; a field given in the config wins over it:
- paper: every iteration shuffles, per image, exact count, constant weight, plain L1 norm, three-layer regressor.
- released: what the authors' code does: from the end of warm-up on, every second iteration, one shuffle per batch,
  scheduled weight, mean over coordinates (half the norm), two-layer regressor; with the unknown embedding, positions
  start from N(0, 1) instead of N(0, 0.02) and are decayed. The weight moves once an epoch, 300 times in a run, and is
  at its top in the last epoch of the warm-up already.
- corrected (default): as released, but positions start and decay alike with and without the unknown embedding, so
  that variants differ in MJP alone.

The variants of Table 4 are combinations of `shuffle`, `unknown`, `index` and `dal`. The index table of row F is in
slot order as released (`slots`); the paper may mean one that travels with the patches (`patches`). One variant no
paper has: `shuffle: positions` hides the positions of the same patches and moves none, the unknown embedding alone.

With rotary positions, a slot has its coordinates: a shuffled patch keeps its content and takes the rotation of the slot
where it is put, and the unknown position is no rotation at all. There is no table to localise (`dal: none`), unless one
is added to the rotations (`model.add_absolute`); the unknown position then is both.

On a Swin, `released` pairs each row and column with the position of the next patch, and the last with the unknown
one: its regressor skips a CLS that a Swin does not have. On a CNN, which has no positions, MJP is the shuffle of
pixels alone.

As released in all three, because the paper does not say: the regressor starts from N(0, 0.02) and zero biases, CLS
from N(0, 0.02) (timm: 1e-6). Rows and columns count from 0 (Eq. 2 from 1: a regressor's bias absorbs it).
"""

import math
import random
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.sizes import Size
from pipeline.methods.base import METHODS, Batch, Method, MethodConfig, Output
from pipeline.models.architectures import TEXT
from pipeline.models.encoder import ModelConfig
from pipeline.models.initialisation import STD, initialise_as_deit
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches, shuffle_pixels
from pipeline.models.patches import Encoder, Grid, grid_of, send
from pipeline.models.places import all_places, hidden_at, rotary_of
from pipeline.models.position import encode, num_prefix_tokens, patch_positions, with_unknown

_RELEASED = {
    "shuffle_prob": 0.5,
    "per_image": False,
    "exact_count": False,
    "dal_schedule": "cosine",
    "dal_reduction": "mean",
    "dal_layers": 2,
    "position_std": 1.0,
}
PRESETS: dict[str, dict[str, Any]] = {
    "released": _RELEASED,
    "corrected": {**_RELEASED, "position_std": STD},
    "paper": {
        "shuffle_prob": 1.0,
        "warmup_ratio": 0.0,
        "per_image": True,
        "exact_count": True,
        "dal_schedule": "constant",
        "dal_reduction": "norm",
        "dal_layers": 3,
        "position_std": STD,
    },
}


@METHODS.register("mjp")
class MJP(Method):
    class Config(MethodConfig):
        name: Literal["mjp"] = "mjp"
        shuffle: Literal["none", "patches", "pixels", "positions"] = Field(
            "patches",
            description="JP: chosen patches. SPP: all patches and the pixels inside them, whatever the ratio. "
            "positions: chosen patches get the unknown position and stay where they are",
        )
        index: Literal["none", "slots", "patches"] = "none"
        """A second table that is added to the positions (IDX): none, one row for each slot, or one row for each patch.
        """
        unknown: bool = True
        """Whether shuffled patches share one unknown position embedding (UNK)."""
        dal: Literal["none", "pca", "linear", "nonlinear"] = "nonlinear"
        """Dense absolute localisation: off, a PCA of the positions (no weights), or a linear or nonlinear regressor."""
        shuffle_ratio: float = Field(0.03, ge=0, le=1)
        """Share of the patches that are shuffled (gamma)."""
        dal_weight: float = Field(0.01, ge=0)
        """Weight of the dense absolute localisation loss (lambda)."""
        warmup_ratio: float = Field(20 / 300, ge=0, lt=1)
        """Share of the training before which nothing is shuffled; the DAL weight rises until then."""
        shuffle_prob: float = Field(ge=0, le=1)
        """Probability that a micro-batch is shuffled; the default depends on `fidelity`."""
        per_image: bool
        """Whether each image has a shuffle of its own, not one per micro-batch; the default depends on `fidelity`."""
        exact_count: bool
        """Whether the number of shuffled patches is exact; the default depends on `fidelity`."""
        dal_schedule: Literal["constant", "cosine"]
        """constant: one weight. cosine: it rises in the warm-up, then falls to half; the default depends on `fidelity`.
        """
        dal_updates: int = Field(300, ge=1, description="times that a cosine DAL weight moves in a run")
        dal_reduction: Literal["mean", "norm"]
        """mean: the L1 error is averaged over coordinates. norm: it is summed; the default depends on `fidelity`."""
        dal_layers: Literal[2, 3]
        """Layers of the nonlinear regressor; the default depends on `fidelity`."""
        position_std: float = Field(gt=0)
        """Standard deviation of the position embeddings at the start, where the unknown one is used; the default
        depends on `fidelity`.
        """

        @model_validator(mode="before")
        @classmethod
        def _fill_from_fidelity(cls, given: Any) -> Any:
            if not isinstance(given, dict):
                return given
            # A misspelt fidelity is one problem, not one for every field it would have set.
            return {**PRESETS.get(str(given.get("fidelity")), PRESETS["corrected"]), **given}

        @model_validator(mode="after")
        def _is_possible(self) -> "MJP.Config":
            if self.dal == "pca" and self.per_image and self.unknown and self.shuffle != "none":
                raise ValueError("dal: pca projects one set of positions, so it needs per_image: false")
            if self.shuffle == "pixels" and self.unknown:
                raise ValueError("shuffle: pixels moves every patch, so no position would be left; set unknown: false")
            if self.shuffle == "positions" and not self.unknown:
                raise ValueError("shuffle: positions moves no patch and hides only positions; set unknown: true")
            return self

        def check(self, model: ModelConfig, image_size: Size) -> None:
            if model.family in TEXT:
                raise ValueError(f"method mjp moves patches of images, found model.arch {model.arch}")
            has_table = model.table == "learn"
            if model.is_rotary and not has_table and (self.dal != "none" or self.index != "none"):
                raise ValueError(
                    f"method mjp reads and adds to a table (dal, index), and pos_embed: {model.positions} has none; "
                    "set method.dal and method.index to none, or model.add_absolute to true"
                )
            needs_table = self.unknown or self.dal != "none" or self.index != "none"
            if needs_table and not has_table and not model.is_rotary:
                raise ValueError(
                    f"method mjp works on learned positions, model {model.name} has {model.positions}; set "
                    "model.pos_embed to learn, or method.unknown to false, dal to none and index to none"
                )

    cfg: Config
    coordinates: Tensor

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        self.grid: Grid = grid_of(encoder)
        self.register_buffer("coordinates", self.grid.coordinates().float(), persistent=False)
        self.regressor = _regressor(cfg, encoder)
        has_table = getattr(encoder, "pos_embed", None) is not None
        if cfg.unknown and has_table:
            # A row (E_unk is 1 x D in Eq. 4), not a vector: vectors are never decayed, and `released` decays it.
            self.unknown = nn.Parameter(torch.empty(1, encoder.embed_dim).normal_(std=cfg.position_std))
        if cfg.index != "none":
            self.index = nn.Parameter(torch.zeros_like(encoder.pos_embed))
        if cfg.unknown and has_table and cfg.position_std != STD:
            nn.init.normal_(encoder.pos_embed, std=cfg.position_std)
        # Last, so that what was drawn above does not depend on it.
        if self.regressor:
            initialise_as_deit(self.regressor)
        if num_prefix_tokens(encoder):
            nn.init.trunc_normal_(encoder.cls_token, std=encoder.cls_std or STD)

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """order (B or 1, N), shuffled (B or 1, N) bool, dal_weight (); for SPP also pixel_order (pixels a patch,)."""
        cfg = self.cfg
        rng = random.Random(int(torch.randint(2**62, (), generator=batch.generator)))
        is_on = cfg.shuffle != "none" and progress >= cfg.warmup_ratio and rng.random() < cfg.shuffle_prob
        count = len(batch.images) if cfg.per_image else 1
        masks = [self._choose(is_on, rng) for _ in range(count)]
        orders = [jigsaw_order(self._move(mask), rng) for mask in masks]
        drawn = {
            "order": torch.stack(orders),
            "shuffled": torch.stack(masks),
            "dal_weight": torch.tensor(dal_weight(cfg, progress)),
        }
        if cfg.shuffle == "pixels":
            every = torch.full((batch.images[0, 0].numel() // self.grid.size,), is_on)
            drawn["pixel_order"] = jigsaw_order(every, rng)
        return {name: send(value, batch.images.device) for name, value in drawn.items()}

    def _choose(self, is_on: bool, rng: random.Random) -> Tensor:
        """(N,) bool: the patches to shuffle, or whose positions to hide."""
        if self.cfg.shuffle == "pixels":
            return torch.full((self.grid.size,), is_on)
        return block_mask(self.grid, self.cfg.shuffle_ratio if is_on else 0.0, rng, self.cfg.exact_count)

    def _move(self, chosen: Tensor) -> Tensor:
        return torch.zeros_like(chosen) if self.cfg.shuffle == "positions" else chosen

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        shuffled = draw["shuffled"]
        if "pixel_order" in draw:
            images = shuffle_pixels(images, draw["pixel_order"], self.grid)
        images = shuffle_patches(images, draw["order"], self.grid)
        positions, places = self.slot_positions(shuffled, draw["order"]), self.slot_places(shuffled)
        tokens = encode(self.encoder, images, positions, places)
        class_loss = F.cross_entropy(self.classify(tokens).logits, targets)
        scalars = {"class_loss": class_loss.detach(), "shuffled_ratio": shuffled.float().mean()}
        if self.cfg.dal == "none":
            return Output(class_loss, scalars)
        # Without the unknown embedding no position is hidden, so all of them are regressed.
        kept = ~shuffled if self.cfg.unknown else torch.ones_like(shuffled)
        dal_loss = self.localisation_loss(kept)
        scalars["dal_loss"] = dal_loss.detach()
        return Output(class_loss + draw["dal_weight"] * dal_loss, scalars)

    def localisation_loss(self, kept: Tensor) -> Tensor:
        """MJP Eq. 2 over the kept patches (B or 1, N): L1 between (row, column) and its regression."""
        positions = patch_positions(self.encoder)
        if self.cfg.fidelity == "released" and self.cfg.unknown and num_prefix_tokens(self.encoder) == 0:
            positions = torch.cat([positions[1:], self.unknown])
        # In fp32: bf16 resolves column 13 to 1/16, and CUDA has no bf16 QR for the PCA.
        with torch.autocast(positions.device.type, enabled=False):
            predicted = self.regressor(positions) if self.regressor else _pca_projection(positions, kept[0])
        error = (predicted - self.coordinates).abs().sum(dim=-1)  # (N,)
        if self.cfg.dal_reduction == "mean":
            error = error / 2
        weights = kept.float().mean(dim=0)
        return (error * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)

    def slot_positions(self, shuffled: Tensor | None = None, order: Tensor | None = None) -> Tensor | None:
        """`order` tells where the patches went; an evaluation does not."""
        positions: Any = super().slot_positions()
        if shuffled is not None and hasattr(self, "unknown"):
            positions = with_unknown(positions, self.unknown, shuffled)
        return positions if self.cfg.index == "none" else positions + self._indices(order)

    def slot_places(self, shuffled: Tensor | None = None) -> Tensor | None:
        """Patches stand where they were put, which the slot tells; unknown positions are nowhere."""
        if shuffled is None or not self.cfg.unknown or rotary_of(self.encoder) is None:
            return None
        return hidden_at(all_places(self.grid, shuffled.device), shuffled)

    def _indices(self, order: Tensor | None) -> Tensor:
        """The index table (1, P+N, D), or (B or 1, P+N, D) with each row where its patch went."""
        if self.cfg.index == "slots" or order is None:
            return self.index
        num_prefix = num_prefix_tokens(self.encoder)
        moved = self.index[0, num_prefix:][order]
        return torch.cat([self.index[:, :num_prefix].expand(len(moved), -1, -1), moved], dim=1)

    def export(self) -> nn.Module:
        """The index table, one addend more for each slot, is moved into the positions: the sum stays what it was."""
        if self.cfg.index != "none":
            with torch.no_grad():
                self.encoder.pos_embed += self.index
                self.index.zero_()
        return self.encoder

    def no_weight_decay(self) -> set[str]:
        kept_free = super().no_weight_decay() | {"unknown", "index"}
        if self.cfg.fidelity != "released":
            return kept_free
        # The released list spares the one name `pos_embed`, which the unknown embedding turns into another.
        return kept_free - {"index"} - ({"encoder.pos_embed", "unknown"} if self.cfg.unknown else set())


def dal_weight(cfg: MJP.Config, progress: float) -> float:
    """lambda: constant, or as released a linear rise in the warm-up, its last update at the top, then half a cosine."""
    if cfg.dal_schedule == "constant":
        return cfg.dal_weight
    warmup = round(cfg.warmup_ratio * cfg.dal_updates)
    update = math.floor(progress * cfg.dal_updates + 1e-9)  # 29 / 300 * 300 is below 29
    if update < warmup:
        return cfg.dal_weight * update / max(1, warmup - 1)
    rest = (update - warmup) / (cfg.dal_updates - warmup)
    return cfg.dal_weight * (0.75 + 0.25 * math.cos(math.pi * rest))


def _regressor(cfg: MJP.Config, encoder: Encoder) -> nn.Module | None:
    """g of MJP Eq. 1: D -> (row, column)."""
    if cfg.dal == "linear":
        return nn.Linear(encoder.embed_dim, 2)
    if cfg.dal == "nonlinear":
        width = encoder.embed_dim
        hidden = [layer for _ in range(cfg.dal_layers - 1) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 2))
    return None


def _pca_projection(positions: Tensor, kept: Tensor) -> Tensor:
    """Un-centred embeddings (N, D) on the two main directions of the kept ones, with the gradient through both.

    The others enter as zero rows, which leaves the directions alone and the shapes fixed.
    """
    weights = kept.float().unsqueeze(-1)
    centred = (positions - (positions * weights).sum(0) / weights.sum().clamp(min=1)) * weights
    directions = torch.pca_lowrank(centred.float(), q=2, center=False, niter=5)[2]
    return positions @ directions
