"""The softmax attention of every block of a timm ViT, for evaluations that look at it.

timm's fused kernel never forms the matrix; for this pass alone the plain product is used instead, which gives the same
output. Full context and the encoder's own positions, also of a model that was pretrained with masked keys.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.engine.run import RunConfig
from pipeline.engine.validate import evaluating
from pipeline.models.patches import Encoder, grid_of
from pipeline.models.position import encode, num_prefix_tokens

See = Callable[[int, Tensor], None]


def reason_not_vit(subjects: Mapping[str, RunConfig]) -> str:
    others = [run.model.arch for run in subjects.values() if run.model.family != "vit"]
    if others:
        return f"{', '.join(others)} is not a ViT"
    dense = [run.method.name for run in subjects.values() if run.task in ("segment", "detect")]
    return f"method {', '.join(dense)} sees whole scenes, and this looks at images of one size" if dense else ""


@torch.no_grad()
def look_at_attention(encoder: Encoder, images: Tensor, see: See) -> Tensor:
    """`encode` the images; `see` is given each block's number, from 0, and its attention (B, heads, P+N, P+N).

    One block at a time, so that memory is bounded: `see` keeps what it needs. -> the tokens (B, P+N, D).
    """
    with evaluating(encoder), watch_attention(encoder, see):
        return encode(encoder, images)


@contextmanager
def watch_attention(encoder: Encoder, see: See) -> Iterator[None]:
    layers = [attention_of(block) for block in encoder.blocks]
    tokens = num_prefix_tokens(encoder) + grid_of(encoder).size
    fused = [layer.fused_attn for layer in layers]
    hooks = [
        layer.attn_drop.register_forward_hook(_shown_to(see, n, (layer.num_heads, tokens, tokens)))
        for n, layer in enumerate(layers)
    ]
    try:
        for layer in layers:
            layer.fused_attn = False
        yield
    finally:
        for layer, was in zip(layers, fused, strict=True):
            layer.fused_attn = was
        for hook in hooks:
            hook.remove()


def attention_of(block: Any) -> Any:
    """The attention of a block; it must have timm's plain path, where dropout is applied to the matrix."""
    layer = getattr(block, "attn", None)
    if not (hasattr(layer, "attn_drop") and hasattr(layer, "fused_attn")):
        raise ConfigError(
            f"{type(block).__name__} does not expose its attention; expected a block of timm's "
            "VisionTransformer: skip this evaluation for this model"
        )
    return layer


def over_patches(attention: Tensor, encoder: Encoder) -> Tensor:
    """(B, heads, P+N, P+N) -> (B, heads, N, N) in float: from patch to patch, each row scaled to sum to 1."""
    first = num_prefix_tokens(encoder)
    return normalised(attention[:, :, first:, first:].float())


def normalised(weights: Tensor) -> Tensor:
    """Each row scaled to sum to 1; a row without any weight stays 0."""
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def entropies(weights: Tensor) -> Tensor:
    """In nats, over the last dimension."""
    return torch.special.entr(weights).sum(dim=-1)


def _shown_to(see: See, number: int, shape: tuple[int, ...]) -> Callable[[Any, Any, Tensor], None]:
    def hook(module: Any, given: tuple[Tensor, ...], found: Tensor) -> None:
        attention = given[0]  # before dropout
        if attention.shape[1:] != shape:
            raise ConfigError(
                f"block {number + 1} has attention of the shape {tuple(attention.shape[1:])}; expected {shape}: one "
                "map for each head, from token to token; skip this evaluation for this model"
            )
        see(number, attention)

    return hook
