"""What is stated of a ViT of timm besides its weights: by --model, and by the config.json beside its file.

All statements are compared, and a contradiction is refused: a model that is built in another way than it was trained
answers, but not as it should. timm's hub writes such a config.json: `architecture`, `model_args`, `num_classes`,
`global_pool`, and how images are seen in `pretrained_cfg`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.models.architectures import unknown_architecture

VIEW = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


@dataclass(frozen=True)
class StatedModel:
    """An architecture of timm (`name` may have a tag, such as vit_base_patch16_224.mae), and what config.json says."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return without_tag(self.name)

    @property
    def view(self) -> dict[str, Any]:
        """What config.json says of images; old files say it without `pretrained_cfg`."""
        stated = self.config.get("pretrained_cfg")
        stated = stated if isinstance(stated, dict) else self.config
        return {key: stated[key] for key in VIEW if stated.get(key) is not None}

    def build(self, num_classes: int) -> Any:
        """The model, on torch's default device, with fresh weights."""
        with dynamo_deferred():
            import timm
            from timm.models import get_pretrained_cfg

        known = get_pretrained_cfg(self.name) or get_pretrained_cfg(self.architecture)
        cfg = (known.to_dict() if known else {}) | self.view
        given = dict(self.config.get("model_args") or {})
        if isinstance(pool := self.config.get("global_pool"), str):
            given = {"global_pool": pool} | given
        if known and "input_size" in self.view and self.view["input_size"] != list(known.input_size):
            given = {"img_size": tuple(self.view["input_size"][1:])} | given
        try:
            return timm.create_model(self.architecture, pretrained_cfg=cfg, num_classes=num_classes, **given)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            reason, *_ = str(error).splitlines() or [type(error).__name__]
            raise ConfigError(
                f"timm cannot build {self.architecture} as config.json next to the weights says ({reason}); correct "
                "`model_args` there"
            ) from None

    def resolved_view(self) -> dict[str, Any]:
        """How the model sees images; a tag and config.json that differ are refused."""
        with dynamo_deferred():
            from timm.data import resolve_data_config
            from timm.models import get_pretrained_cfg

        known = get_pretrained_cfg(self.name) or get_pretrained_cfg(self.architecture)
        of_timm = known.to_dict() if known else {}
        found = resolve_data_config(pretrained_cfg=of_timm | self.view)
        if "." in self.name:
            tagged = resolve_data_config(pretrained_cfg=of_timm)
            if differing := [key for key in self.view if _plain(tagged[key]) != _plain(found[key])]:
                raise ConfigError(
                    f"--model {self.name} and config.json next to the weights state different views of images "
                    f"({', '.join(f'{key} {tagged[key]} and {found[key]}' for key in differing)}); name "
                    f"{self.architecture} to follow config.json, or correct it"
                )
        return found


def find_stated_model(model: Path, named: str | None, in_key: str = "") -> StatedModel | None:
    """The architecture of a weight file by --model, by config.json and by its key; None where nothing names it."""
    config = config_next_to(model)
    by_config = config.get("architecture")
    stated = {"--model": named, "config.json": by_config if isinstance(by_config, str) else None, "the key": in_key}
    stated = {source: name for source, name in stated.items() if name}
    refuse_contradiction(
        f"the architecture of {model}", {source: without_tag(name or "") for source, name in stated.items()}
    )
    if not stated:
        return None
    name = next(name for name in stated.values() if name)
    if problem := unknown_architecture(name):
        raise ConfigError(f"{next(iter(stated))} {name}: {problem}")
    return StatedModel(name, config)


def build_without_weights(stated: StatedModel, num_classes: int) -> Any:
    """The structure of the model, which takes no memory."""
    with torch.device("meta"):
        return stated.build(num_classes)


def refuse_contradiction(fact: str, stated: Mapping[str, Any]) -> None:
    """Sources that state one fact must agree."""
    if len({*stated.values()}) > 1:
        words = ", ".join(f"{value} by {source}" for source, value in stated.items())
        raise ConfigError(f"{fact} is stated differently: {words}; expected one answer: correct what is wrong")


def config_next_to(model: Path) -> dict[str, Any]:
    """The config.json in the folder of a weight file; empty where there is none."""
    path = model.parent / "config.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); download it again, or remove it") from None
    return found if isinstance(found, dict) else {}


def without_tag(name: str) -> str:
    return name.split(".")[0]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value
