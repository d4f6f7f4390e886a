"""Models of timm as they are: any architecture by its name, with a weight file or with timm's own weights.

How such a model sees images (size, mean, std, crop, interpolation) is in timm's `pretrained_cfg`, unless a user or the
config.json of its file says otherwise. The sizes are those of training, not the larger ones that timm tests some models
with: images of ImageNet-C have 224 pixels. The size of a model whose positions fix it is that of its file.
"""

import functools
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save

from pipeline.core.config import added
from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.core.files import write_atomic
from pipeline.core.sizes import Size, pair
from pipeline.models.architectures import unknown_architecture
from pipeline.models.encoder import ModelConfig
from pipeline.models.fitting import FittedModel, build_on_meta, classifier_of, create
from pipeline.models.patches import Encoder, Grid
from pipeline.models.position import has_position_table
from pipeline.models.weights import load_encoder

log = logging.getLogger(__name__)
INTERPOLATIONS = ("bicubic", "bilinear")
SQUARES = (16, 14, 12, 10, 8, 7, 4, 2, 1)  # pixels of what a jigsaw moves in a model without patches of its own
# Just under 1: the shorter side becomes that of the input, and the centre is cut out; 1.0 would squeeze the image.
WHOLE_CENTRE = 0.9999


@dataclass(frozen=True)
class ForeignView:
    """What a model makes of an image before it looks at it; None: nothing is stated for this model."""

    image_size: Size | None
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    crop: float
    interpolation: str

    def of_file(self, fitted: FittedModel) -> "ForeignView":
        """With the size and the channels of a weight file; what is stated for other channels does not apply to it."""
        if fitted.channels == self.channels:
            return replace(self, image_size=fitted.image_size or self.image_size)
        return replace(self, image_size=fitted.image_size, channels=fitted.channels, mean=None, std=None)


class ForeignModel(ModelConfig):
    """A model of timm as it is: family and positions follow from its structure, not from its name."""

    args: dict[str, Any] = added({}, before={}, description="more arguments of timm.create_model")

    @property
    def structure(self) -> "Structure":
        return structure_of(self.arch, json.dumps(self.args))

    @property
    def family(self) -> Literal["vit", "swin", "cnn", "bert", "gpt2"]:
        return self.structure.family

    @property
    def positions(self) -> Literal["learn", "none", "sincos", "sincos_learn", "relative"]:
        return "learn" if self.structure.has_table else "none"


@dataclass(frozen=True)
class Structure:
    """What evaluations ask of a model before they load it."""

    family: Literal["vit", "swin", "cnn"]  # vit: tokens of patches in blocks; swin: stages of maps; cnn: any other
    has_table: bool  # of absolute positions, one for each patch


@functools.cache
def structure_of(name: str, args: str = "{}") -> Structure:
    """From the model without its weights, which takes a tenth of a second; `args` are JSON."""
    if problem := unknown_architecture(name):
        raise ConfigError(f"--model {name}: {problem}")
    encoder = build_on_meta(name, json.loads(args))
    grid = getattr(getattr(encoder, "patch_embed", None), "grid_size", None)
    is_vit = hasattr(encoder, "blocks") and hasattr(encoder, "num_prefix_tokens") and grid is not None
    is_swin = hasattr(encoder, "layers") and getattr(encoder, "output_fmt", "") == "NHWC"
    return Structure("vit" if is_vit else "swin" if is_swin else "cnn", has_position_table(encoder))


def view_of(name: str, other: Mapping[str, Any] | None = None) -> ForeignView:
    """The view that timm states for a model, with what a user or a config.json says in its place."""
    with dynamo_deferred():
        from timm.data import resolve_data_config
        from timm.models import get_pretrained_cfg

    if problem := unknown_architecture(name):
        raise ConfigError(f"--model {name}: {problem}")
    stated = get_pretrained_cfg(name)
    if stated is None:
        raise ConfigError(f"--model {name}: timm has no such weights, and has no mean, std and size for them")
    found = resolve_data_config(pretrained_cfg=stated.to_dict() | dict(other or {}))
    channels, height, width = found["input_size"]
    if found["interpolation"] not in INTERPOLATIONS:
        raise ConfigError(
            f"--model {name}: timm resizes its images with {found['interpolation']}; expected one of "
            f"{', '.join(INTERPOLATIONS)}"
        )
    crop = 1.0 if found["crop_mode"] == "squash" else min(found["crop_pct"], WHOLE_CENTRE)
    size = height if height == width else (height, width)
    return ForeignView(size, channels, tuple(found["mean"]), tuple(found["std"]), crop, found["interpolation"])


def build_foreign(name: str, weights: Path, fitted: FittedModel, image_size: Size) -> Encoder:
    """The model with the sizes of its file, filled from it; it has no classes where the file has no classifier.

    `image_size` is that of the images it will see.
    """
    encoder = create(name, {"in_chans": fitted.channels, "num_classes": fitted.num_classes or 0, **fitted.args})
    encoder.grid = _grid(encoder, image_size)
    report = load_encoder(encoder, weights)
    if report.fresh:
        hint = "; if it was trained without positions, add --set pos_embed=none" if "pos_embed" in report.fresh else ""
        raise CheckpointError(
            f"{weights} has no {', '.join(report.fresh)} of the shape that {name} needs; expected all weights, because "
            f"it is evaluated without training{hint}"
        )
    if report.resized and not fitted.resampled:
        raise CheckpointError(
            f"{weights} fits {name} only when it is resized ({', '.join(report.resized)}), which is another model; "
            "give the sizes that it was trained with, such as --set img_size=96"
        )
    if fitted.num_classes is None:
        log.info("%s has no classifier (%s); only its features can be evaluated", weights, classifier_of(encoder))
    log.info("%s", report.summary())
    return encoder.to(memory_format=torch.channels_last)  # convolutions take half the time


def download(name: str, path: Path) -> Path:
    """timm's own weights of a model, kept in a file: fetched once, and from then on without a network."""
    if path.exists():
        return path
    with dynamo_deferred():
        import timm

    try:
        encoder = timm.create_model(name, pretrained=True)
    except Exception as error:  # the hub and the network fail in many ways
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"timm could not fetch weights of {name} ({type(error).__name__}: {reason}); connect to a network, or give "
            f"the weights in a file: with --weights, or at {path}"
        ) from None
    weights = {key: value.contiguous() for key, value in encoder.state_dict().items()}
    write_atomic(path, save(weights))
    return path


def _grid(encoder: Any, image_size: Size) -> Grid:
    """Its patches, or squares that a jigsaw moves in its input."""
    height, width = pair(image_size)
    grid = getattr(getattr(encoder, "patch_embed", None), "grid_size", None)
    if grid and not height % grid[0] and not width % grid[1]:
        return Grid(*grid)
    side = next(side for side in SQUARES if not height % side and not width % side)
    return Grid(height // side, width // side)
