"""Feature maps for dense prediction: what the blocks of a ViT and the stages of a Swin give at each place of an image.

Shapes: B images, D width, P prefix tokens (CLS), rows x cols the grid of this input, which need not be the encoder's
own. No norm is applied: a method that wants one has its own.
"""

from collections.abc import Sequence

from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.models.patches import Encoder, Grid, embed_patches, grid_of, to_patches
from pipeline.models.places import at_places
from pipeline.models.position import add_positions, embed, num_prefix_tokens
from pipeline.models.windowed import is_windowed


def feature_maps(encoder: Encoder, images: Tensor, taps: Sequence[int] | None = None) -> list[Tensor]:
    """Maps (B, D, rows, cols) after these blocks of a ViT (None: the last one alone), in the order of the blocks.

    Of a Swin the outputs of its stages, (B, D_i, rows_i, cols_i), all or these. CLS takes part in attention and is in
    no map.
    """
    wanted, grid = _taps(encoder, taps), grid_of_input(encoder, images)
    if is_swin(encoder):
        tokens, steps, num_prefix = _embed_swin(encoder, images), encoder.layers, 0
    elif is_windowed(encoder):
        tokens, steps, num_prefix = _embed_windowed(encoder, images, grid), encoder.blocks, 0
    else:
        _refuse_other_grid(encoder, grid)
        tokens = embed(encoder, images, _positions(encoder, grid), grid)
        steps, num_prefix = encoder.blocks, num_prefix_tokens(encoder)
    maps = []
    with at_places(encoder, None, grid):
        for number, step in enumerate(steps[: max(wanted) + 1]):
            tokens = step(tokens)
            if number in wanted:
                places = tokens if tokens.ndim == 4 else tokens[:, num_prefix:].unflatten(1, grid)
                maps.append(places.permute(0, 3, 1, 2))
    return maps


def widths(encoder: Encoder, taps: Sequence[int] | None = None) -> list[int]:
    """Channels of each map that `feature_maps` returns."""
    return [encoder.feature_info[tap]["num_chs"] for tap in _taps(encoder, taps)]


def strides(encoder: Encoder, taps: Sequence[int] | None = None) -> list[int]:
    """Pixels of the input between two places of each map that `feature_maps` returns."""
    side = _patch(encoder)
    return [side * 2**stage if is_swin(encoder) else side for stage in _taps(encoder, taps)]


def is_swin(encoder: Encoder) -> bool:
    return hasattr(encoder, "layers")


def grid_of_input(encoder: Encoder, images: Tensor) -> Grid:
    """Patches of images of this size."""
    (height, width), (rows, cols) = images.shape[2:], encoder.patch_embed.patch_size
    if height % rows or width % cols:
        raise ConfigError(
            f"images of {height}x{width} are no whole number of patches of {rows}x{cols}; pad them to a multiple"
        )
    return Grid(height // rows, width // cols)


def freeze_unused(encoder: Encoder, taps: Sequence[int] | None = None) -> None:
    """What no map depends on is not trained: final norms, heads, later blocks. DDP waits for every other parameter."""
    steps, last = ("layers" if is_swin(encoder) else "blocks"), _taps(encoder, taps)[-1]
    for name, parameter in encoder.named_parameters():
        part, _, rest = name.partition(".")
        if part in ("norm", "fc_norm", "head", "neck") or (part == steps and int(rest.split(".")[0]) > last):
            parameter.requires_grad_(False)


def _taps(encoder: Encoder, taps: Sequence[int] | None) -> list[int]:
    """Which blocks or stages give a map, in order."""
    if not hasattr(encoder, "patch_embed"):
        raise ConfigError(f"{type(encoder).__name__} is neither a ViT nor a Swin, which have the maps that are needed")
    count = len(encoder.layers if is_swin(encoder) else encoder.blocks)
    if taps is None:
        return list(range(count)) if is_swin(encoder) else [count - 1]
    wrong = [tap for tap in taps if not 0 <= tap < count]
    if wrong or list(taps) != sorted(set(taps)) or not taps:
        kind = "stages" if is_swin(encoder) else "blocks"
        raise ConfigError(f"taps {list(taps)} of a model of {count} {kind}: expected numbers from 0, each larger")
    return list(taps)


def _patch(encoder: Encoder) -> int:
    rows, cols = encoder.patch_embed.patch_size
    if rows != cols:
        raise ConfigError(f"patches of {rows}x{cols} pixels have two strides; dense maps need square patches")
    return rows


def _positions(encoder: Encoder, grid: Grid) -> Tensor | None:
    """(1, P+N, D) on this grid; the encoder's own where it has the same."""
    positions = encoder.pos_embed
    if positions is None or grid == grid_of(encoder):
        return positions
    from timm.layers import resample_abs_pos_embed

    return resample_abs_pos_embed(positions, list(grid), list(grid_of(encoder)), num_prefix_tokens(encoder))


def _refuse_other_grid(encoder: Encoder, grid: Grid) -> None:
    if grid != grid_of(encoder) and hasattr(encoder.blocks[0].attn, "rel_pos"):
        own = grid_of(encoder)
        raise ConfigError(
            f"relative positions are of {own.rows}x{own.cols} patches, found an input of {grid.rows}x{grid.cols}; "
            "give images of the training size, such as the windows of sliding inference"
        )


def _embed_windowed(encoder: Encoder, images: Tensor, grid: Grid) -> Tensor:
    """(B, rows, cols, D): what enters the first block of a windowed ViT."""
    tokens = embed_patches(encoder, to_patches(images, grid)).unflatten(1, grid)
    if encoder.pos_embed is not None:
        from timm.layers import resample_abs_pos_embed_nhwc

        tokens = add_positions(tokens, resample_abs_pos_embed_nhwc(encoder.pos_embed, list(grid)))
    return encoder.norm_pre(encoder.patch_drop(encoder.pos_drop(tokens)))


def _embed_swin(encoder: Encoder, images: Tensor) -> Tensor:
    """(B, rows, cols, D): what enters the first stage; absolute positions, if any, are ours and not timm's."""
    tokens = encoder.patch_embed(images)
    positions, own = getattr(encoder, "pos_embed", None), grid_of(encoder)
    if positions is None:
        return tokens
    from timm.layers import resample_abs_pos_embed_nhwc

    resampled = resample_abs_pos_embed_nhwc(positions.unflatten(1, own), list(tokens.shape[1:3]))
    return add_positions(tokens, resampled)
