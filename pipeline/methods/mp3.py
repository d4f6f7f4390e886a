"""MP3, masked patch position prediction (ICML 2022), on a ViT without position embeddings.

A random share 1 - eta of the patches is context. In every block all tokens ask, but only the context and CLS answer:
keys and values come from that block's current context tokens (Sec. 3.2, Alg. 1). A linear head predicts the position
of every patch.

Without positions a transformer does not care about the order of its tokens, so the context is put first, once, while
patches are still pixels; every block then takes its keys and values from a slice, and the work for them shrinks with
eta.

Pretraining has no rotations either: the model has `pos_embed: none`, and permuted patches give permuted answers. A
model with rotary positions, which have no parameters or fresh ones, may be finetuned from it.

On speech (Sec. 4.3) the task is made easier: a random share `known_ratio` of the frames gets a fixed sin-cos embedding
of its position, other ones for every sample. The paper does not say whether they count; here the loss and
`position_top1` are over the others, and `position_top1_all` over all.

`fidelity`: the text's context is int(N (1 - eta)) patches (paper, corrected). Algorithm 1 (released: no other code
is) takes int(N eta) of them, and indexes the random order by itself, which favours low indices slightly.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.config import added
from pipeline.core.errors import ConfigError
from pipeline.core.sizes import Size
from pipeline.methods.base import (
    METHODS,
    Batch,
    Measured,
    Method,
    Output,
    PretrainConfig,
    Primary,
    cross_entropies,
    percent,
)
from pipeline.models.encoder import ModelConfig
from pipeline.models.initialisation import initialise_as_deit
from pipeline.models.patches import Encoder, Grid, embed_patches, grid_of, random_order, take, to_patches
from pipeline.models.position import add_positions, sincos_positions, with_cls

IGNORED = -100  # instead of a position that does not count


@METHODS.register("mp3")
class MP3(Method):
    class Config(PretrainConfig):
        name: Literal["mp3"] = "mp3"
        known_ratio: float = added(
            0.0, before=0.0, ge=0, lt=1, description="share of the patches of each image whose positions are told"
        )

        def check(self, model: ModelConfig, image_size: Size) -> None:
            super().check(model, image_size)
            if model.positions != "none":
                raise ValueError(
                    f"method mp3 predicts positions, so the model must not have them: set model.pos_embed to none, "
                    f"found {model.positions}" + ("; finetuning may have them" if model.is_rotary else "")
                )

        def num_context(self, num_patches: int) -> int:
            share = self.mask_ratio if self.fidelity == "released" else 1 - self.mask_ratio
            return int(num_patches * share)

    primary = Primary("position_top1")
    cfg: Config
    known_positions: Tensor

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        self.grid: Grid = grid_of(encoder)
        self.num_context = cfg.num_context(self.grid.size)
        self.num_known = round(self.grid.size * cfg.known_ratio)
        if cfg.known_ratio:
            self._add_known_positions()
        self.head = nn.Linear(encoder.embed_dim, self.grid.size)
        initialise_as_deit(self.head)

    def _add_known_positions(self) -> None:
        """(N, D), no part of the weights."""
        ratio, size = self.cfg.known_ratio, self.grid.size
        if self.num_known in (0, size):
            raise ConfigError(
                f"method.known_ratio {ratio} reveals {self.num_known} of {size} positions; reveal some, not all"
            )
        try:
            table = sincos_positions(self.grid, self.encoder.embed_dim)[0]
        except ValueError as error:
            raise ConfigError(f"method.known_ratio {ratio}: {error}; change model.embed_dim") from None
        self.register_buffer("known_positions", table, persistent=False)

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """order (B, N): for each image its patches, the context first; known (B, N) bool: slots with a position."""
        order = random_order(len(batch.images), self.grid.size, batch.generator, batch.images.device)
        drawn = {"order": order.gather(1, order) if self.cfg.fidelity == "released" else order}
        known = self.draw_known(len(order), batch.generator, order.device)
        return drawn if known is None else {**drawn, "known": known}

    def draw_known(self, count: int, generator: torch.Generator, device: torch.device) -> Tensor | None:
        """(count, N) bool: the slots whose positions are told; None, and nothing is drawn, where none are."""
        if not self.num_known:
            return None
        return random_order(count, self.grid.size, generator, device) < self.num_known

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        known = draw.get("known")
        logits = self.position_logits(images, draw["order"], self.num_context, known).flatten(0, 1)
        positions = draw["order"].flatten()
        right = (logits.detach().argmax(dim=1) == positions).float()
        if known is None:
            return Output(F.cross_entropy(logits, positions), {"position_top1": 100 * right.mean()})
        judged = ~known.flatten()
        scalars = {
            "position_top1": 100 * (right * judged).sum() / judged.sum(),
            "position_top1_all": 100 * right.mean(),
        }
        return Output(F.cross_entropy(logits, positions.where(judged, IGNORED), ignore_index=IGNORED), scalars)

    def position_logits(self, images: Tensor, order: Tensor, num_context: int, known: Tensor | None = None) -> Tensor:
        """(B, N, N): for each slot of `order` the logits of its position, seen by the first `num_context` slots.

        Slots that are `known` (B, N) are told their position.
        """
        tokens = embed_patches(self.encoder, take(to_patches(images, self.grid), order))
        if known is not None:
            tokens = add_positions(tokens, self.known_positions[order] * known.unsqueeze(-1))
        tokens = self.encoder.norm_pre(self.encoder.pos_drop(with_cls(self.encoder, tokens)))
        for block in self.encoder.blocks:
            tokens = masked_block(block, tokens, 1 + num_context)
        return self.head(self.encoder.norm(tokens)[:, 1:])

    def measure(self, batch: Batch) -> dict[str, Measured]:
        found = self.measure_at(batch, self.num_context)
        return {name: value for name, value in found.items() if name != "position_top5"}

    def measure_at(self, batch: Batch, num_context: int) -> dict[str, Measured]:
        """Position top-1 and top-5 in per cent and cross-entropy over all patches whose positions are not told, with
        any number of context patches; where some are told, also top-1 over all."""
        order = random_order(len(batch.images), self.grid.size, batch.generator, batch.images.device)
        known = self.draw_known(len(order), batch.generator, order.device)
        logits = self.position_logits(batch.images, order, num_context, known).float()
        if known is None:
            return _accuracies(logits, order)
        right = (logits.argmax(dim=2) == order).float().mean(dim=1)
        judged = known.int().argsort(dim=1, stable=True)[:, : -self.num_known]
        return {**_accuracies(take(logits, judged), take(order, judged)), "position_top1_all": percent(right)}


def _accuracies(logits: Tensor, positions: Tensor) -> dict[str, Measured]:
    """logits (B, n, N) of patches that come from positions (B, n)."""
    right = (logits.argmax(dim=2) == positions).float().mean(dim=1)
    among_five = logits.topk(min(5, logits.shape[2]), dim=2).indices == positions.unsqueeze(-1)
    return {
        "position_top1": percent(right),
        "position_top5": percent(among_five.any(dim=2).float().mean(dim=1)),
        "loss": cross_entropies(logits, positions),
    }


def masked_block(block: Any, tokens: Tensor, num_keys: int) -> Tensor:
    """A timm block in which only the first `num_keys` tokens are attended to."""
    attended = masked_attention(block.attn, block.norm1(tokens), num_keys)
    tokens = tokens + block.drop_path1(block.ls1(attended))
    return tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))


def masked_attention(attn: Any, tokens: Tensor, num_keys: int) -> Tensor:
    """MP3 Alg. 1: queries from all tokens, keys and values from the first `num_keys`."""
    width = attn.qkv.weight.shape[0] // 3
    query_weight, key_value_weight = attn.qkv.weight.split([width, 2 * width])
    query_bias, key_value_bias = attn.qkv.bias.split([width, 2 * width])
    query = F.linear(tokens, query_weight, query_bias).unflatten(2, (attn.num_heads, -1)).transpose(1, 2)
    key_value = F.linear(tokens[:, :num_keys], key_value_weight, key_value_bias)
    key, value = key_value.unflatten(2, (2, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
    dropout = attn.attn_drop.p if attn.training else 0.0
    found = F.scaled_dot_product_attention(attn.q_norm(query), attn.k_norm(key), value, dropout_p=dropout)
    return attn.proj_drop(attn.proj(attn.norm(found.transpose(1, 2).flatten(2))))
