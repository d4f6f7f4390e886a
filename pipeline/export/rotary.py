"""A ViT with rotary positions as a model of timm, which builds these as an Eva under names of their own.

Its RoPE-ViT models are taken, with the sizes of the run; DINOv3's rotations go into them as arguments.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.core.errors import ConfigError
from pipeline.core.sizes import Size, pair
from pipeline.models.encoder import ModelConfig
from pipeline.models.formats import vit_as_rope
from pipeline.models.patches import Encoder
from pipeline.models.rotary import KINDS


def rotary_model(cfg: ModelConfig, encoder: Encoder, image_size: Size) -> tuple[str, dict[str, Any]]:
    """The architecture of timm, and the arguments that make it compute the same."""
    size = re.search("base|large", cfg.arch)
    mixed, beside = "_mixed" * (cfg.positions == "rope_mixed"), "_ape" * cfg.add_absolute
    block = encoder.blocks[0]
    arguments = {
        "img_size": pair(image_size),
        "patch_size": encoder.patch_embed.patch_size,
        "embed_dim": encoder.embed_dim,
        "depth": len(encoder.blocks),
        "num_heads": block.attn.num_heads,
        "mlp_ratio": cfg.mlp_ratio or ratio_for(block.mlp.fc1.out_features, encoder.embed_dim),
        "global_pool": encoder.global_pool,
        "use_fc_norm": not isinstance(encoder.fc_norm, nn.Identity),
        **_rotations(cfg.positions),
    }
    return f"vit_{size[0] if size else 'small'}_patch16_rope{mixed}{beside}_224", arguments


def ratio_for(hidden: int, width: int) -> float:
    """The `mlp_ratio` of which timm makes this hidden width: it rounds the product of ratio and width down."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def rotary_weights(encoder: Encoder) -> dict[str, Tensor]:
    """Under timm's names. Its RoPE-ViT scales what its blocks add; where nothing does here, these scales are 1."""
    weights = vit_as_rope(encoder.state_dict(), not encoder.no_embed_class)
    for number in range(len(encoder.blocks)):
        for scale in (f"blocks.{number}.gamma_1", f"blocks.{number}.gamma_2"):
            weights.setdefault(scale, torch.ones(encoder.embed_dim))
    return weights


def _rotations(kind: str) -> dict[str, Any]:
    asked = KINDS[kind]
    return {
        "rope_type": asked["rope_type"],
        "rope_temperature": asked["temperature"],
        "rope_grid_indexing": asked.get("grid_indexing", "ij"),
        "rope_rotate_half": asked.get("rotate_half", False),
    }


def refuse_other_than_plain_vit(encoder: Encoder, arch: str) -> None:
    """What else an architecture has is not in timm's rotary models."""
    block = encoder.blocks[0]
    others = {
        "no class token": encoder.cls_token is None,
        f"{encoder.num_prefix_tokens - 1} registers": encoder.num_prefix_tokens > 1,
        "a norm before its blocks": not isinstance(encoder.norm_pre, nn.Identity),
        "norms of queries and keys": not isinstance(block.attn.q_norm, nn.Identity),
        "no biases of queries and keys": block.attn.qkv.bias is None,
        "gated MLPs": block.mlp.fc2.in_features != block.mlp.fc1.out_features,
        f"blocks of the kind {type(block).__name__}": not hasattr(block, "ls1"),
    }
    if found := [what for what, is_there in others.items() if is_there]:
        raise ConfigError(
            f"it cannot be exported for timm: its architecture {arch} has {', '.join(found)}, which timm's rotary "
            "models do not have; expected a plain ViT, such as vit_small_patch16_224"
        )
