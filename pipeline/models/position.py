"""All position-embedding code: fixed sin-cos tables, the unknown position, running an encoder with given positions
instead of its own, and bringing positions to another grid.

Shapes: B images, N patches, P prefix tokens (CLS), D width.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models.patches import Encoder, Grid, embed_patches, grid_of, to_patches

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
    """(N, D) position embeddings of the patches, without the prefix tokens."""
    return encoder.pos_embed[0, num_prefix_tokens(encoder) :]


def num_prefix_tokens(encoder: Encoder) -> int:
    """Tokens before the patches: 1 (CLS) for a ViT, 0 for a Swin."""
    return getattr(encoder, "num_prefix_tokens", 0)


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


def encode(encoder: Encoder, images: Tensor, positions: Tensor | None = None) -> Tensor:
    """timm's `forward_features` with these position embeddings (B or 1, P+N, D), or else with the encoder's own.

    -> tokens (B, P+N, D) of a ViT; a feature map of a Swin, whose absolute positions timm does not know, or of a CNN.
    """
    if not hasattr(encoder, "patch_embed"):
        return encoder.forward_features(images)
    if positions is None:
        positions = getattr(encoder, "pos_embed", None)
    if hasattr(encoder, "layers"):  # Swin
        tokens = encoder.patch_embed(images)  # (B, H, W, D)
        if positions is not None:
            tokens = add_positions(tokens, positions.unflatten(1, tokens.shape[1:3]))
        return encoder.norm(encoder.layers(tokens))
    return encoder.norm(encoder.blocks(embed(encoder, images, positions)))


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
