"""Models of timm as they are: any architecture by its name, with a weight file or with timm's own weights.

How such a model sees images (size, mean, std, crop, interpolation) is in timm's `pretrained_cfg`. The sizes are those
of training, not the larger ones that timm tests some models with: images of ImageNet-C have 224 pixels.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from pipeline.dynamo import dynamo_deferred
from pipeline.errors import CheckpointError, ConfigError
from pipeline.files import write_atomic
from pipeline.models.architectures import unknown_architecture
from pipeline.models.patches import Encoder, Grid
from pipeline.models.weights import load_encoder
from pipeline.sizes import Size, pair

log = logging.getLogger(__name__)
INTERPOLATIONS = ("bicubic", "bilinear")
SQUARES = (16, 14, 12, 10, 8, 7, 4, 2, 1)  # pixels of what a jigsaw moves in a model without patches of its own
# Just under 1: the shorter side becomes that of the input, and the centre is cut out; 1.0 would squeeze the image.
WHOLE_CENTRE = 0.9999


@dataclass(frozen=True)
class ForeignView:
    """What a model makes of an image before it looks at it."""

    image_size: Size
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float
    interpolation: str


def view_of(name: str) -> ForeignView:
    """The view that timm states for a model."""
    with dynamo_deferred():
        from timm.data import resolve_data_config
        from timm.models import get_pretrained_cfg

    if problem := unknown_architecture(name):
        raise ConfigError(f"--model {name}: {problem}")
    stated = get_pretrained_cfg(name)
    if stated is None:
        raise ConfigError(f"--model {name}: timm has no such weights, and states no view of images for them")
    found = resolve_data_config(pretrained_cfg=stated.to_dict())
    channels, height, width = found["input_size"]
    if found["interpolation"] not in INTERPOLATIONS:
        raise ConfigError(
            f"--model {name}: timm resizes its images with {found['interpolation']}; expected one of "
            f"{', '.join(INTERPOLATIONS)}"
        )
    crop = 1.0 if found["crop_mode"] == "squash" else min(found["crop_pct"], WHOLE_CENTRE)
    size = height if height == width else (height, width)
    return ForeignView(size, channels, found["mean"], found["std"], crop, found["interpolation"])


def build_foreign(name: str, weights: Path, image_size: Size, channels: int, num_classes: int) -> Encoder:
    """The model, filled from a file that must have all of its weights."""
    with dynamo_deferred():
        import timm

    own_size = view_of(name).image_size
    sized = {} if pair(image_size) == pair(own_size) else {"img_size": pair(image_size)}
    try:
        encoder = timm.create_model(name, in_chans=channels, num_classes=num_classes, **sized)
    except TypeError:  # a model without a size of its own
        encoder = timm.create_model(name, in_chans=channels, num_classes=num_classes)
    encoder.grid = _grid(encoder, image_size)
    report = load_encoder(encoder, weights)
    if report.fresh:
        raise CheckpointError(
            f"{weights} has no {', '.join(report.fresh)} of the shape that {name} with {num_classes} classes needs; "
            "expected all weights, because it is evaluated without training"
        )
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
            f"timm could not fetch weights of {name} ({type(error).__name__}: {reason}); needed is a network, or the "
            f"weights in a file: give it with --weights, or put it at {path}"
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
