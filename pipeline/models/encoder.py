"""Encoders are timm models: one typed config, one call.

timm is imported where it is used, not at the top: it takes ten seconds, and configs are read without it.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.config import Strict
from pipeline.errors import CheckpointError, ConfigError


class ModelConfig(Strict):
    """A timm architecture and what differs from its defaults; `null` keeps timm's own value."""

    name: str = Field(description="short name, part of the run's name")
    arch: str = Field(description="timm architecture, such as vit_small_patch16_224")
    patch_size: int | None = Field(None, ge=1)
    embed_dim: int | None = Field(None, ge=1)
    depth: int | None = Field(None, ge=1)
    num_heads: int | None = Field(None, ge=1)
    mlp_ratio: float | None = Field(None, gt=0)
    act_layer: Literal["gelu", "relu"] | None = None
    pos_embed: Literal["learn", "none"] = "learn"
    drop_path: float = Field(0.0, ge=0, lt=1)


def build_encoder(cfg: ModelConfig, image_size: int, channels: int, num_classes: int) -> nn.Module:
    """A timm model with fresh weights, drawn from torch's global generator."""
    import timm

    if not timm.is_model(cfg.arch):
        close = ", ".join(timm.list_models(f"*{cfg.arch.split('_')[0]}*")[:8])
        raise ConfigError(f"model.arch {cfg.arch!r} is not a timm architecture; near it: {close or 'nothing'}")
    given = {
        key: getattr(cfg, key) for key in ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "act_layer")
    }
    return timm.create_model(
        cfg.arch,
        img_size=image_size,
        in_chans=channels,
        num_classes=num_classes,
        pos_embed=cfg.pos_embed,
        drop_path_rate=cfg.drop_path,
        **{key: value for key, value in given.items() if value is not None},
    )


def load_encoder(encoder: nn.Module, path: Path) -> None:
    """Start from the weights another run exported; its classifier is dropped where the classes differ."""
    weights = read_weights(path)
    own = encoder.state_dict()
    head = {name for name in own if name.startswith("head.")}
    if any(name in weights and weights[name].shape != own[name].shape for name in head):
        weights = {name: value for name, value in weights.items() if name not in head} | {n: own[n] for n in head}
    fill_weights(encoder, weights, path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not there; finish the run that writes it first") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete its folder and run again") from None


def fill_weights(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load every tensor or none: names and shapes must be the module's own."""
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    wrong = [f"{name}: missing" for name in own if name not in found]
    wrong += [f"{name}: not expected" for name in found if name not in own]
    wrong += [f"{n}: found {found[n]}, expected {own[n]}" for n in own if n in found and found[n] != own[n]]
    if wrong:
        raise CheckpointError(f"{path} does not fit the model: " + "; ".join(wrong[:20]))
    module.load_state_dict(weights)
