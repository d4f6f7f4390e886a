"""Encoders of images are timm models: one typed config, one call. Those of texts (text.py) share the config.

timm is imported where it is used, not at the top: it takes seconds, and configs are read without it.
"""

import re
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import nn

from pipeline.core.config import Strict, added
from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import ConfigError
from pipeline.core.naming import Name
from pipeline.core.sizes import Size, pair, shown_size
from pipeline.models.architectures import TEXT
from pipeline.models.patches import Encoder, Grid
from pipeline.models.places import ROTARY, RotaryKind
from pipeline.models.position import PositionResampling, num_prefix_tokens, sincos_positions

CNN_SQUARE = 16  # pixels of the squares that a jigsaw moves in the input of a CNN, unless patch_size says otherwise
ONLY_FOR = {
    "patch_size": ("vit", "swin", "cnn"),
    "depth": ("vit", *TEXT),
    "cls_std": ("vit",),
    "pool": ("vit",),
    "act_layer": ("vit", *TEXT),
    "depths": ("swin",),
    "window_size": ("vit", "swin"),
    "add_relative": ("vit",),
    "add_absolute": ("vit",),
    "layer_scale": ("vit",),
    "drop_path": ("vit", "swin", "cnn"),
    "dropout": ("vit", *TEXT),
}
Table = Literal["learn", "none", "sincos", "sincos_learn"]
Positions = Literal[Table, "relative", RotaryKind]
Count = Annotated[int, Field(ge=1, le=1000)]
TEXT_WIDTH, TEXT_HEADS = 768, 12  # of the base size, where a config says nothing


class ModelConfig(Strict):
    """An architecture and what differs from its defaults; `null` keeps the value of timm or transformers."""

    name: Name = Field(description="short name, part of the run's name")
    arch: str
    """Architecture: a model of timm, such as vit_small_patch16_224, or for texts bert or gpt2."""
    patch_size: Size | None = None
    """Size of a patch in pixels: one side of a square, or [height, width]."""
    embed_dim: int | None = Field(None, ge=1)
    """Width of the tokens."""
    depth: int | None = Field(None, ge=1, le=1000)
    """Number of blocks."""
    depths: tuple[Count, ...] | None = Field(None, description="blocks of each stage of a Swin")
    num_heads: Count | tuple[Count, ...] | None = None
    """Attention heads of a block; of a Swin, of each stage."""
    window_size: int | None = Field(
        None, ge=1, description="patches along a side of a window, of a Swin or of a ViT as ViTDet has it"
    )
    global_blocks: int | None = added(None, before=None, ge=1)
    """Number of blocks without windows in a ViT with windows: the last of as many equal parts."""
    mlp_ratio: float | None = Field(None, gt=0)
    """Hidden width of the MLP over the width of the tokens."""
    act_layer: Literal["gelu", "relu"] | None = None
    """Activation of the MLP."""
    pos_embed: Positions | None = Field(
        None,
        description="learned; none; sin-cos, fixed or learned from there; 2-D relative biases; rotations of queries "
        "and keys: axial (RoPE-ViT), with learned frequencies, or DINOv3's. A Swin's own relative biases stay whatever "
        "is said here. Texts: learned",
    )
    add_absolute: bool = added(False, before=False, description="a learned table in addition to rotations")
    add_relative: bool = added(
        False,
        before=False,
        description="relative positions added to absolute ones, zero at the start: of rows and columns in a ViT with "
        "windows (ViTDet), else of each offset (BEiT)",
    )
    layer_scale: float | None = added(
        None, before=None, gt=0, description="first value of a learned factor of each channel that a block adds"
    )
    cls_std: float | None = Field(None, gt=0)
    """Standard deviation of the class token (CLS) at the start; null: 0.02 where the method's code says so, else timm's
    1e-6.
    """
    pos_resampling: PositionResampling = Field(
        "timm",
        description="absolute positions of a checkpoint with another grid. timm: bicubic with antialiasing, fixed "
        "sin-cos tables computed for the new grid. released: bicubic without it, fixed tables too, as MAE, DropPos "
        "and DeiT do",
    )
    pool: Literal["cls", "avg"] | None = Field(None, description="what is classified: CLS, or the mean of the patches")
    head_std: float | None = Field(None, gt=0)
    """Standard deviation of the classifier's weights at the start; null: unchanged."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Probability of skipping a block for an image, rising linearly from 0 to this in the last one."""
    dropout: float = added(0.0, before=0.0, ge=0, lt=1)
    """Dropout of embeddings, of attention, of what blocks add, and before the classifier."""

    @property
    def family(self) -> Literal["vit", "swin", "cnn", "bert", "gpt2"]:
        if self.arch in TEXT:
            return "bert" if self.arch == "bert" else "gpt2"
        return "vit" if self.arch.startswith(("vit", "deit")) else "swin" if self.arch.startswith("swin") else "cnn"

    @property
    def is_windowed(self) -> bool:
        """A ViT most of whose blocks attend within windows; it has no CLS and no last norm."""
        return self.family == "vit" and self.window_size is not None

    @property
    def positions(self) -> Positions:
        """`pos_embed`, with the library's own choice in place of null."""
        return self.pos_embed or ("learn" if self.family in ("vit", *TEXT) else "none")

    @property
    def is_rotary(self) -> bool:
        return self.positions in ROTARY

    @property
    def table(self) -> Table:
        """The absolute positions that are added to the tokens, if any."""
        if self.is_rotary:
            return "learn" if self.add_absolute else "none"
        return "none" if self.positions == "relative" else self.positions  # type: ignore[return-value]

    @model_validator(mode="after")
    def _fits_the_architecture(self) -> "ModelConfig":
        for key, families in ONLY_FOR.items():
            if getattr(self, key) not in (None, 0) and self.family not in families:
                raise ValueError(f"{key} is for a {' or '.join(families)}, {self.arch} does not have it; remove it")
        if self.family == "cnn":
            keys = ("embed_dim", "num_heads", "mlp_ratio", "pos_embed")
            wrong = [key for key in keys if getattr(self, key) not in (None, "none")]
            if wrong:
                raise ValueError(f"{self.arch} is a CNN and has no {', '.join(wrong)}; remove it")
        if self.family == "swin" and self.positions == "relative":
            raise ValueError("a Swin always has relative positions; remove pos_embed: relative")
        if self.family in TEXT and self.positions != "learn":
            raise ValueError(f"{self.arch} has learned positions, found pos_embed {self.positions}; remove it")
        if self.add_relative and self.positions == "relative":
            raise ValueError("add_relative adds to absolute positions, found pos_embed: relative; remove one of them")
        self._check_rotary()
        self._check_windows()
        self._check_heads()
        return self

    def _check_rotary(self) -> None:
        if self.add_absolute and not self.is_rotary:
            raise ValueError(f"add_absolute adds a table to rotations, found pos_embed: {self.positions}; remove it")
        if not self.is_rotary:
            return
        if self.family != "vit":
            raise ValueError(f"pos_embed: {self.positions} is for a ViT, {self.arch} does not have it; remove it")
        if self.add_relative:
            raise ValueError(f"add_relative adds to absolute positions, found pos_embed: {self.positions}; remove one")
        if self.is_windowed:
            raise ValueError(
                f"a ViT with windows has no pos_embed: {self.positions}, since a place in one window is another one in "
                "the image; use a table and add_relative"
            )

    def _check_windows(self) -> None:
        if self.global_blocks is not None and not self.is_windowed:
            raise ValueError("global_blocks is for a ViT with windows; give it a window_size, or remove it")
        if self.is_windowed and self.pool is not None:
            raise ValueError(f"a ViT with windows classifies nothing, found pool: {self.pool}; remove it")
        if self.is_windowed and self.positions == "relative":
            raise ValueError("a ViT with windows has no pos_embed: relative; use add_relative")
        if self.is_windowed and self.dropout:
            raise ValueError(f"a ViT with windows has no dropout, found {self.dropout}; remove it, or use drop_path")

    def _check_heads(self) -> None:
        """timm takes a wrong number of heads without a word, and fails where nobody can tell why."""
        heads, num_stages = self.num_heads, len(self.depths or range(4))
        if self.family in ("vit", *TEXT) and isinstance(heads, tuple):
            name = "ViT" if self.family == "vit" else self.arch
            raise ValueError(f"num_heads of a {name} is one number, found {list(heads)}")
        if self.family in TEXT:
            heads = heads or TEXT_HEADS
        width = self.embed_dim or (TEXT_WIDTH if self.family in TEXT else None)
        if isinstance(heads, int) and width and width % heads:
            raise ValueError(f"num_heads {heads} does not divide embed_dim {width}")
        if self.family == "swin" and isinstance(heads, int):
            raise ValueError(f"num_heads of a Swin is a list, one number for each stage, found {heads}")
        if self.family == "swin" and isinstance(heads, tuple) and len(heads) != num_stages:
            raise ValueError(f"num_heads has {len(heads)} stages, depths has {num_stages}; make them equal")


def build_encoder(cfg: ModelConfig, image_size: Size, channels: int, num_classes: int) -> nn.Module:
    """A timm model with fresh weights, drawn from torch's global generator; without a classifier for 0 classes."""
    with dynamo_deferred():
        import timm

    if cfg.is_windowed:
        from pipeline.models.windowed import build_windowed

        return build_windowed(cfg, image_size, channels)
    if not timm.is_model(cfg.arch):
        close = ", ".join(timm.list_models(f"*{cfg.arch.split('_')[0]}*")[:8])
        raise ConfigError(f"model.arch {cfg.arch!r} is not a timm architecture; similar names: {close or 'none'}")
    _refuse_rotary_architecture(cfg.arch)
    given = {"in_chans": channels, "num_classes": num_classes, "drop_path_rate": cfg.drop_path}
    try:
        encoder = timm.create_model(cfg.arch, **given, **_arguments(cfg, image_size))
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        reason, *_ = str(error).splitlines() or [type(error).__name__]  # torch adds a trace of its own
        raise ConfigError(f"timm cannot build {_described(cfg, image_size)}: {reason}; change one of these") from error
    encoder.grid = _grid_of_squares(cfg, image_size) if cfg.family == "cnn" else Grid(*encoder.patch_embed.grid_size)
    _add_positions(encoder, cfg)
    encoder.cls_std = cfg.cls_std  # for methods that start CLS themselves
    if cfg.cls_std:
        nn.init.trunc_normal_(encoder.cls_token, std=cfg.cls_std)
    if cfg.head_std and num_classes:
        nn.init.trunc_normal_(encoder.get_classifier().weight, std=cfg.head_std)
    return encoder


def _refuse_rotary_architecture(arch: str) -> None:
    """timm has rotary ViTs of a class of their own, which methods cannot take apart."""
    if found := re.fullmatch(r"(vit_\w+?)_rope(_mixed)?(_ape)?(_\w+)", arch):
        plain, mixed, beside, size = found.groups(default="")
        raise ConfigError(
            f"model.arch {arch} is built here as a plain ViT with rotations, which takes the same weights: set arch: "
            f"{plain}{size}, pos_embed: rope{mixed}{beside and ', add_absolute: true'} and layer_scale: 1.0e-5"
        )


def _grid_of_squares(cfg: ModelConfig, image_size: Size) -> Grid:
    """What a jigsaw moves in the input of a CNN."""
    (height, width), (rows, cols) = pair(image_size), pair(cfg.patch_size or CNN_SQUARE)
    return Grid(height // rows, width // cols)


def _described(cfg: ModelConfig, image_size: Size) -> str:
    """The architecture and what a config says of it, in words."""
    words = [f"{key} {value}" for key, value in _given_values(cfg).items()]
    return ", ".join([f"{cfg.arch} for images of {shown_size(image_size)}", *words])


def _given_values(cfg: ModelConfig) -> dict[str, Any]:
    keys = ("patch_size", "embed_dim", "depth", "depths", "num_heads", "window_size", "mlp_ratio", "act_layer")
    return {key: getattr(cfg, key) for key in keys if getattr(cfg, key) is not None}


def _arguments(cfg: ModelConfig, image_size: Size) -> dict[str, Any]:
    """timm's arguments for this family."""
    if cfg.family == "cnn":
        return {}
    given = _given_values(cfg)
    if cfg.family == "swin":
        # DropPos runs one Swin on images of two sizes.
        return {**given, "img_size": image_size, "strict_img_size": False}
    given |= {"img_size": image_size, "pos_embed": "none" if cfg.table == "none" else "learn"}
    if cfg.layer_scale:
        given["init_values"] = cfg.layer_scale
    if cfg.dropout:
        rates = ("pos_drop_rate", "attn_drop_rate", "proj_drop_rate", "drop_rate")
        given |= dict.fromkeys(rates, cfg.dropout)
    if cfg.pool:
        given["global_pool"] = {"cls": "token", "avg": "avg"}[cfg.pool]
    if cfg.positions == "relative" or cfg.add_relative:
        from pipeline.models.relative import RelativeAttention

        given["attn_layer"] = RelativeAttention
    if cfg.is_rotary:
        from pipeline.models.rotary import RotaryAttention

        given["attn_layer"] = RotaryAttention
    return given


def timm_arguments(cfg: ModelConfig, image_size: Size) -> dict[str, Any]:
    """What timm.create_model needs to build an encoder that computes the same, apart from channels and classes."""
    return {key: value for key, value in _arguments(cfg, image_size).items() if not key.endswith("drop_rate")}


def reason_not_of_timm(cfg: ModelConfig) -> str:
    """Why timm cannot build such an encoder; empty if it can."""
    if cfg.family in TEXT:
        return "it reads texts, and timm has models of images; its encoder.safetensors has the names of transformers"
    if cfg.is_windowed:
        return "it is a ViT with windows, which no architecture of timm builds"
    if cfg.positions == "relative" or cfg.add_relative:
        return "its blocks have relative positions of this project, which no architecture of timm has"
    if cfg.is_rotary and cfg.act_layer == "relu":
        return "timm's rotary models have the activation gelu and no other, found model.act_layer: relu"
    if cfg.family == "swin" and cfg.positions != "none":
        return f"it is a Swin with absolute positions (pos_embed: {cfg.positions}), which timm's Swin does not have"
    return ""


def _add_positions(encoder: Encoder, cfg: ModelConfig) -> None:
    """Those that timm does not make: sin-cos tables, relative biases, rotations, absolute positions of a Swin."""
    if cfg.positions == "relative" or cfg.add_relative:
        from pipeline.models.relative import add_relative_positions

        add_relative_positions(encoder)
    if cfg.is_rotary:
        from pipeline.models.rotary import add_rotary_positions

        add_rotary_positions(encoder, cast(RotaryKind, cfg.positions))
    if cfg.positions in ("sincos", "sincos_learn"):
        try:
            table = sincos_positions(encoder.grid, encoder.embed_dim, num_prefix_tokens(encoder))
        except ValueError as error:
            raise ConfigError(f"model.pos_embed {cfg.pos_embed}: {error}") from None
        encoder.pos_embed = nn.Parameter(table, requires_grad=cfg.positions == "sincos_learn")
    if cfg.positions == "learn" and cfg.family == "swin":
        encoder.pos_embed = nn.Parameter(torch.empty(1, encoder.grid.size, encoder.embed_dim))
        nn.init.trunc_normal_(encoder.pos_embed, std=0.02)
