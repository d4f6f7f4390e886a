"""A plain ViT as a backbone of detectors (ViTDet, Li et al. 2022): most blocks attend within windows, a few globally.

timm has it as the image encoder of SAM, with the names of a plain ViT's weights. What is left out here is what SAM has
beyond ViTDet: its neck and its head. There is no class token, and no norm after the last block.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import ConfigError
from pipeline.core.sizes import Size, pair
from pipeline.models.initialisation import STD, initialise_as_deit
from pipeline.models.patches import Encoder, Grid
from pipeline.models.position import sincos_positions

if TYPE_CHECKING:
    from pipeline.models.encoder import ModelConfig

GLOBAL_BLOCKS = 4  # where a config says nothing


def build_windowed(cfg: "ModelConfig", image_size: Size, channels: int) -> Encoder:
    """Fresh weights from torch's global generator, as DeiT starts."""
    with dynamo_deferred():
        from timm.models.vision_transformer_sam import VisionTransformerSAM

    shape = _shape(cfg)
    encoder: Any = VisionTransformerSAM(
        img_size=pair(image_size),
        in_chans=channels,
        num_classes=0,
        drop_path_rate=cfg.drop_path,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
        use_abs_pos=cfg.positions != "none",
        use_rel_pos=cfg.add_relative,
        window_size=cfg.window_size,
        global_attn_indexes=global_blocks(shape["depth"], cfg.global_blocks or GLOBAL_BLOCKS),
        neck_chans=0,
        **shape,
    )
    encoder.neck = encoder.head = nn.Identity()
    encoder.default_cfg = {"classifier": ()}
    encoder.grid = Grid(*encoder.patch_embed.grid_size)
    initialise_as_deit(encoder)
    _start_positions(encoder, cfg.positions)
    return encoder


def is_windowed(encoder: Encoder) -> bool:
    """Such a ViT: its tokens are maps (B, rows, cols, D), without CLS."""
    return hasattr(encoder, "blocks") and hasattr(encoder.blocks[0], "window_size")


def global_blocks(depth: int, count: int) -> tuple[int, ...]:
    """The last block of each of `count` equal parts: 2, 5, 8 and 11 of 12."""
    if count > depth or depth % count:
        raise ConfigError(f"model.global_blocks {count} does not divide the {depth} blocks of the model; change one")
    return tuple(range(depth // count - 1, depth, depth // count))


def _shape(cfg: "ModelConfig") -> dict[str, Any]:
    """Sizes of the architecture, with those that the config changes."""
    import timm

    keys = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "act_layer")
    given = {key: getattr(cfg, key) for key in keys if getattr(cfg, key) is not None}
    with torch.device("meta"):
        plain: Encoder = timm.create_model(cfg.arch, **given)
    block = plain.blocks[0]
    return {
        "patch_size": plain.patch_embed.patch_size,
        "embed_dim": plain.embed_dim,
        "depth": len(plain.blocks),
        "num_heads": block.attn.num_heads,
        "mlp_ratio": block.mlp.fc1.out_features / plain.embed_dim,
        "act_layer": type(block.mlp.act),
    }


def _start_positions(encoder: Encoder, positions: str) -> None:
    """(1, rows, cols, D), as timm has them here."""
    if positions == "learn":
        nn.init.trunc_normal_(encoder.pos_embed, std=STD)
    if positions in ("sincos", "sincos_learn"):
        table = sincos_positions(encoder.grid, encoder.embed_dim).unflatten(1, tuple(encoder.grid))
        encoder.pos_embed = nn.Parameter(table, requires_grad=positions == "sincos_learn")
