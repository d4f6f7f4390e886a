"""All position-embedding code: fixed sin-cos tables, the unknown position, running an encoder with given positions
instead of its own, and bringing positions to another grid.

Shapes: B images, N patches, P prefix tokens (CLS), D width.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.errors import ConfigError
from pipeline.models.patches import Encoder, Grid, embed_patches, grid_of, to_patches
from pipeline.models.places import at_places

PositionResampling = Literal["timm", "released"]


def sincos_positions(grid: Grid, width: int, num_prefix: int = 0) -> Tensor:
    """(1, P+N, D) fixed embeddings of MAE and DropPos: one half of the channels for the column, one for the row.

    Each half is [sin | cos] over frequencies 10000^(-2k/D'); prefix tokens get zeros. A grid of one row or one column
    is a sequence, such as the frames of a sound: all channels are for the place in it (Vaswani et al. 2017).
    """
    axes = 1 if 1 in grid else 2
    if width % (2 * axes):
        raise ValueError(f"sin-cos positions need a width that {2 * axes} divides, found {width}")
    rows, cols = grid.coordinates().unbind(dim=1)
    places = [rows + cols] if axes == 1 else [cols, rows]
    count = width // (2 * axes)
    frequencies = 10000 ** (-torch.arange(count, dtype=torch.float64) / count)
    angles = [place[:, None] * frequencies for place in places]
    table = torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], dim=1)
    return F.pad(table, (0, 0, num_prefix, 0)).float().unsqueeze(0)


def patch_positions(encoder: Encoder) -> Tensor:
    """(N, D) position embeddings of the patches; those of prefix tokens come before them, where a model has any."""
    return position_table(encoder)[-position_grid(encoder).size :]


def position_table(encoder: Encoder) -> Tensor:
    """(P'+N, D): the table of absolute positions, where P' of the P prefix tokens have one."""
    if not has_position_table(encoder):
        raise ConfigError(
            f"{type(encoder).__name__} has no table with a position for each patch; expected absolute positions "
            "(`pos_embed`): skip this evaluation for this model"
        )
    return encoder.pos_embed[0]


def has_position_table(encoder: Encoder) -> bool:
    """Whether a model adds absolute positions, one for each patch."""
    table = getattr(encoder, "pos_embed", None)
    grid = getattr(getattr(encoder, "patch_embed", None), "grid_size", None)
    return isinstance(table, Tensor) and table.ndim == 3 and grid is not None and table.shape[1] >= math.prod(grid)


def num_prefix_tokens(encoder: Encoder) -> int:
    """Tokens before the patches: 1 (CLS) for a plain ViT, more with registers or a distillation token, 0 for a Swin."""
    return getattr(encoder, "num_prefix_tokens", 0)


def patch_tokens(encoder: Encoder, tokens: Tensor) -> Tensor:
    """(B, N, D): of what `encode` returns, the tokens of the patches."""
    expected = num_prefix_tokens(encoder) + grid_of(encoder).size
    if tokens.ndim != 3 or tokens.shape[1] != expected:
        raise ConfigError(
            f"the last layer of {type(encoder).__name__} has the shape {tuple(tokens.shape[1:])}; expected {expected} "
            "tokens, one for each patch: skip this evaluation for this model"
        )
    return tokens[:, num_prefix_tokens(encoder) :]


def refuse_without_cls(encoder: Encoder) -> None:
    """For who looks at the class token, which is the first one where there is one."""
    if getattr(encoder, "cls_token", None) is None:
        raise ConfigError(
            f"{type(encoder).__name__} has no class token here (it pools its patches, or registers come first); leave "
            "this evaluation out for this model"
        )


def reason_not_plain(encoder: Encoder) -> str:
    """Why `embed` is not what timm does with a model; empty for a ViT with a class token and a position for each token.

    Only such a ViT can be run with other positions than its own.
    """
    from timm.models.vision_transformer import VisionTransformer

    table = getattr(encoder, "pos_embed", None)
    if type(encoder) is not VisionTransformer:
        return f"it is a {type(encoder).__name__}, not timm's VisionTransformer"
    if encoder.cls_token is None:
        return "it has no class token"
    if encoder.num_prefix_tokens > 1:
        return f"it has {encoder.num_prefix_tokens} tokens before its patches (registers, or a distillation token)"
    if not hasattr(encoder.patch_embed, "proj") or hasattr(encoder.patch_embed, "backbone"):
        return "it embeds patches with a network of its own"
    if table is not None and table.shape[1] != encoder.patch_embed.num_patches + 1:
        return "its class token has no position"
    return ""


def refuse_other_than_plain(encoder: Encoder, what: str) -> None:
    """`what` needs a ViT that runs with positions that it is given."""
    if reason := reason_not_plain(encoder):
        raise ConfigError(
            f"{what} needs a ViT with a class token and a position for each token, such as vit_small_patch16_224 or "
            f"deit_small_patch16_224; this model differs: {reason}"
        )


def with_unknown(pos_embed: Tensor, unknown: Tensor, shuffled: Tensor) -> Tensor:
    """MJP Eq. 4: the shared unknown embedding wherever a patch was shuffled.

    pos_embed (1, P+N, D), unknown (1, D), shuffled (B, N) bool -> (B, P+N, D). The CLS token keeps its own.
    """
    num_prefix = pos_embed.shape[1] - shuffled.shape[1]
    shuffled = F.pad(shuffled, (num_prefix, 0), value=False)
    return torch.where(shuffled.unsqueeze(-1), unknown, pos_embed)


def with_cls(encoder: Encoder, tokens: Tensor, position: Tensor | None = None) -> Tensor:
    """The CLS token, plus its position (1, 1, D) where there is one, before the others."""
    cls = encoder.cls_token if position is None else encoder.cls_token + position
    return torch.cat([cls.expand(len(tokens), -1, -1).to(tokens.dtype), tokens], dim=1)


def add_positions(tokens: Tensor, positions: Tensor) -> Tensor:
    """tokens + positions in the tokens' precision, so that under bf16 autocast the residual stream is bf16.

    Expanded first: the gradient of shared positions is then summed over images in their own precision.
    """
    return tokens + positions.expand_as(tokens).to(tokens.dtype)


def encode(encoder: Encoder, images: Tensor, positions: Tensor | None = None, places: Tensor | None = None) -> Tensor:
    """timm's `forward_features` with these position embeddings (B or 1, P+N, D), or else with the encoder's own.

    `places` (B or 1, N) are those of rotary positions, where they are not the patches' own.
    -> tokens (B, P+N, D) of a ViT; a feature map of a Swin, whose absolute positions timm does not know, or of a CNN.
    """
    own = getattr(encoder, "pos_embed", None)
    if positions is None:
        positions = own
    if not reason_not_plain(encoder):
        with at_places(encoder, places):
            return encoder.norm(encoder.blocks(embed(encoder, images, positions)))
    if positions is not None and hasattr(encoder, "layers"):  # Swin
        tokens = encoder.patch_embed(images)  # (B, H, W, D)
        return encoder.norm(encoder.layers(add_positions(tokens, positions.unflatten(1, tokens.shape[1:3]))))
    if positions is not own:
        refuse_other_than_plain(encoder, "running a model with other positions than its own")
    return encoder.forward_features(images)


def embed(encoder: Encoder, images: Tensor, positions: Tensor | None, grid: Grid | None = None) -> Tensor:
    """What enters the first block of a ViT: tokens (B, P+N, D) with these position embeddings, or with none.

    `grid` is that of the images where it is not the encoder's own.
    """
    # As one product of matrices, which takes a third of the time of timm's convolution on a GPU.
    tokens = with_cls(encoder, embed_patches(encoder, to_patches(images, grid or grid_of(encoder))))
    if positions is not None:
        tokens = add_positions(tokens, positions)
    return encoder.norm_pre(encoder.patch_drop(encoder.pos_drop(tokens)))


def resized_positions(
    encoder: Encoder, value: Tensor, target: Tensor, antialias: bool, grid: Grid | None = None
) -> tuple[Tensor, str] | None:
    """(1, P+N, D) on the file's grid (None: a square one) -> the model's; the P prefix rows stay. None: impossible."""
    from timm.layers import resample_abs_pos_embed

    new = position_grid(encoder)
    num_prefix = target.shape[1] - new.size
    old = grid or square_grid(value.shape[1] - num_prefix)
    if old is None or old.size + num_prefix != value.shape[1] or value.shape[2] != target.shape[2]:
        return None
    value = resample_abs_pos_embed(value, list(new), list(old), num_prefix, antialias=antialias)
    return value, f"{old.rows}x{old.cols} -> {new.rows}x{new.cols}"


def resized_bias_table(
    attention: Any, value: Tensor, target: Tensor, window: Grid | None = None
) -> tuple[Tensor, str] | None:
    """((2r-1)(2c-1), heads) of the file's window (None: a square one) -> the model's window. None: impossible."""
    from timm.layers import resize_rel_pos_bias_table

    new = Grid(*attention.window_size)
    num_extra = target.shape[0] - _offsets(new).size
    old = window or _square_window(value.shape[0] - num_extra)
    # One offset alone (a window of one row or column) says nothing about its neighbours.
    if old is None or min(old) < 2 or _offsets(old).size + num_extra != value.shape[0]:
        return None
    if value.shape[1] != target.shape[1]:
        return None
    places, extra = value.float().split([_offsets(old).size, num_extra])
    # In this layout timm reads the old sides from the shape instead of taking them for equal.
    places = places.T.unflatten(1, _offsets(old))
    resized = resize_rel_pos_bias_table(places, tuple(new), (len(places), *_offsets(new)))
    table = torch.cat([resized.reshape(len(places), -1).T, extra])
    return table, f"{old.rows}x{old.cols} -> {new.rows}x{new.cols}"


def resized_offsets(value: Tensor, count: int) -> tuple[Tensor, str]:
    """(2n-1, D) relative positions along one side of a window -> those of another, by linear interpolation."""
    resized = F.interpolate(value.float().T[None], size=count, mode="linear")[0].T
    return resized, f"{len(value)} -> {count}"


def position_grid(encoder: Encoder) -> Grid:
    """The grid of a timm model's own positions, also of one that was built elsewhere."""
    return Grid(*encoder.patch_embed.grid_size)


def square_grid(num_patches: int) -> Grid | None:
    """The grid of a file that does not tell it; None if so many patches form no square."""
    side = math.isqrt(max(0, num_patches))
    return Grid(side, side) if side * side == num_patches else None


def _offsets(window: Grid) -> Grid:
    """Between two patches of a window there are so many offsets."""
    return Grid(2 * window.rows - 1, 2 * window.cols - 1)


def _square_window(num_offsets: int) -> Grid | None:
    offsets = square_grid(num_offsets)
    return Grid(*[(offsets.rows + 1) // 2] * 2) if offsets and offsets.rows % 2 else None
