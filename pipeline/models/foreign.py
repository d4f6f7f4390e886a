"""Models of timm as they are: any architecture by its name, with a weight file or with timm's own weights.

How such a model sees images (size, mean, std, crop, interpolation) is in timm's `pretrained_cfg`. The sizes are those
of training, not the larger ones that timm tests some models with: images of ImageNet-C have 224 pixels.
"""

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save

from pipeline.dynamo import dynamo_deferred
from pipeline.errors import CheckpointError, ConfigError
from pipeline.files import write_atomic
from pipeline.models.architectures import unknown_architecture
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder, Grid
from pipeline.models.position import has_position_table
from pipeline.models.weights import load_encoder, open_checkpoint
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


class ForeignModel(ModelConfig):
    """A model of timm as it is: family and positions follow from its structure, not from its name."""

    @property
    def family(self) -> Literal["vit", "swin", "cnn", "bert", "gpt2"]:
        return structure_of(self.arch).family

    @property
    def positions(self) -> Literal["learn", "none", "sincos", "sincos_learn", "relative"]:
        return "learn" if structure_of(self.arch).has_table else "none"


@dataclass(frozen=True)
class Structure:
    """What evaluations ask of a model before they load it."""

    family: Literal["vit", "swin", "cnn"]  # vit: tokens of patches in blocks; swin: stages of maps; cnn: any other
    has_table: bool  # of absolute positions, one for each patch


@functools.cache
def structure_of(name: str) -> Structure:
    """From the model without its weights, which takes a tenth of a second."""
    with dynamo_deferred():
        import timm

    if problem := unknown_architecture(name):
        raise ConfigError(f"--model {name}: {problem}")
    with torch.device("meta"):
        encoder: Any = timm.create_model(name)
    grid = getattr(getattr(encoder, "patch_embed", None), "grid_size", None)
    is_vit = hasattr(encoder, "blocks") and hasattr(encoder, "num_prefix_tokens") and grid is not None
    is_swin = hasattr(encoder, "layers") and getattr(encoder, "output_fmt", "") == "NHWC"
    return Structure("vit" if is_vit else "swin" if is_swin else "cnn", has_position_table(encoder))


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


def build_foreign(
    name: str, weights: Path, image_size: Size, channels: int, num_classes: int, must_classify: bool = True
) -> Encoder:
    """The model, filled from a file that must have all of its weights; it may lack the classifier, unless it must have.

    The model then has no classes.
    """
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
    if report.fresh and not must_classify and _has_no_classifier(encoder, weights):
        encoder.reset_classifier(0)
        log.info("%s has no classifier; it has features alone", weights)
    elif report.fresh:
        raise CheckpointError(
            f"{weights} has no {', '.join(report.fresh)} of the shape that {name} with {num_classes} classes needs; "
            "expected all weights, because it is evaluated without training"
        )
    log.info("%s", report.summary())
    return encoder.to(memory_format=torch.channels_last)  # convolutions take half the time


def _has_no_classifier(encoder: Encoder, weights: Path) -> bool:
    """Whether the classifier, and nothing else of a model, is missing in a file."""
    missing = encoder.state_dict().keys() - open_checkpoint(weights)[1].keys()
    classifiers = encoder.default_cfg["classifier"]
    heads = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    return bool(missing) and all(name.rpartition(".")[0] in heads for name in missing)


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
