"""The sizes that a weight file tells of its model of timm: patches, image, channels, class token, windows, classes.

A model is built with the sizes of its file, whatever the defaults of its architecture are, and what a user gives must
agree with the file. Nothing is resampled, unless a user asks for positions of another image size.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.core.sizes import Size
from pipeline.models.patches import Encoder, Grid
from pipeline.models.position import has_position_table, num_prefix_tokens, position_grid, square_grid
from pipeline.models.weights import BIAS_TABLE, GRID, PATCHES, open_checkpoint

IMAGE_SIZE, POSITIONS = "img_size", "pos_embed"
UNREADABLE = ("embed_dim", "depth")  # they go with a number of heads, which no file tells
Facts = dict[str, Any]


@dataclass(frozen=True)
class FittedModel:
    """What a model of timm is built with, so that it is the one of its weight file."""

    args: Facts  # of timm.create_model, apart from channels and classes
    channels: int
    num_classes: int | None  # None: the file has no classifier
    image_size: Size | None  # None: the model works at any
    read: Facts = field(default_factory=dict)  # those arguments that the file told
    resampled: str = ""  # positions, such as 12x12 -> 16x16


def fit(name: str, given: Mapping[str, Any], file: Path, may_resample: bool = False) -> FittedModel:
    """The arguments of timm.create_model for a weight file, which must agree with those that are given."""
    encoder = build_on_meta(name, given)
    tensors = open_checkpoint(file, encoder.state_dict())[1]
    found, own = _facts(encoder, tensors), _facts(encoder, encoder.state_dict())
    read = {key: value for key, value in found.items() if own.get(key) != value}
    wrong = {key: (read[key], given.get(key, own.get(key))) for key in read if key in given or key in UNREADABLE}
    if not any(key in wrong for key in UNREADABLE):
        of_positions, resampled = _positions(build_on_meta(name, {**given, **read}), tensors, file)
        if may_resample and IMAGE_SIZE in given:
            of_positions.pop(IMAGE_SIZE, None)
        wrong |= {key: (value, given[key]) for key, value in of_positions.items() if key in given}
        read |= of_positions
    if wrong:
        raise _contradiction(name, file, wrong)
    encoder = build_on_meta(name, {**given, **read})
    args = {key: value for key, value in {**given, **read}.items() if key not in ("in_chans", "num_classes")}
    return FittedModel(
        args={key: value for key, value in args.items() if key != IMAGE_SIZE or _takes(encoder, IMAGE_SIZE)},
        channels=found.get("in_chans", given.get("in_chans", 3)),
        num_classes=_num_classes(encoder, tensors),
        image_size=_image_size(encoder) or _as_size(given.get(IMAGE_SIZE)),
        read={key: value for key, value in read.items() if key in args},
        resampled=resampled if IMAGE_SIZE not in read else "",
    )


def build_on_meta(name: str, args: Mapping[str, Any]) -> Encoder:
    """The structure of a model of timm, which takes no memory."""
    with torch.device("meta"):
        return create(name, args)


def create(name: str, args: Mapping[str, Any]) -> Encoder:
    """A model of timm with fresh weights. The image size is left out where an architecture works at any."""
    with dynamo_deferred():
        import timm

    try:
        return timm.create_model(name, **args)
    except TypeError as error:
        if IMAGE_SIZE in args and IMAGE_SIZE in str(error):
            return create(name, {key: value for key, value in args.items() if key != IMAGE_SIZE})
        raise _cannot_build(name, args, error) from None
    except (AssertionError, AttributeError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise _cannot_build(name, args, error) from None


def _cannot_build(name: str, args: Mapping[str, Any], error: Exception) -> ConfigError:
    reason, *_ = str(error).splitlines() or [type(error).__name__]
    return ConfigError(
        f"timm cannot build {name} with {shown_facts(args) or 'its defaults'} ({reason}); expected keywords of "
        "timm.create_model that this architecture has: correct --set"
    )


def shown_facts(facts: Mapping[str, Any]) -> str:
    """Arguments in words: img_size 96, patch_size 8."""
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _contradiction(name: str, file: Path, wrong: Mapping[str, tuple[Any, Any]]) -> CheckpointError:
    lines = "; ".join(f"{key}: found {found}, expected {expected}" for key, (found, expected) in wrong.items())
    remedies = ["leave out of --set what the file tells"]
    if IMAGE_SIZE in wrong:
        remedies.append("add --resample-positions to resample its positions to the img_size that is given")
    if any(key in wrong for key in UNREADABLE):
        remedies = [f"name the architecture of the file, or give its {', '.join(UNREADABLE)} and num_heads with --set"]
    return CheckpointError(f"{file} does not contain the requested {name} ({lines}); {', or '.join(remedies)}")


# What tensors tell. The same functions look at the file and at the model that timm builds.


def _facts(encoder: Encoder, tensors: Mapping[str, Tensor]) -> Facts:
    """Arguments of timm.create_model that tensors tell, as far as this architecture has them."""
    patches = tensors[PATCHES] if PATCHES in tensors and tensors[PATCHES].ndim == 4 else None
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    has_cls, registers = "cls_token" in tensors, tensors.get("reg_token")
    is_averaged = not has_cls or ("fc_norm.weight" in tensors and "norm.weight" not in tensors)
    told = {
        "patch_size": _side(patches.shape[2:]) if patches is not None else None,
        "embed_dim": len(patches) if patches is not None else None,
        "depth": len(blocks) or None,
        "class_token": has_cls,
        "reg_tokens": registers.shape[1] if registers is not None else 0,
        "global_pool": "avg" if is_averaged else None,
        "window_size": _window_size(tensors),
    }
    told = {key: value for key, value in told.items() if value is not None and _takes(encoder, key)}
    counts = {"in_chans": _channels(encoder, tensors), "num_classes": _num_classes(encoder, tensors)}
    return told | {key: value for key, value in counts.items() if value is not None}


def _takes(encoder: Encoder, argument: str) -> bool:
    """Whether a class of the model has this argument; timm's functions pass it on."""
    return any(argument in inspect.signature(each).parameters for each in type(encoder).__mro__[:-1])


def _channels(encoder: Encoder, tensors: Mapping[str, Tensor]) -> int | None:
    first = encoder.default_cfg.get("first_conv")
    weight = tensors.get(f"{first if isinstance(first, str) or not first else first[0]}.weight")
    return weight.shape[1] if weight is not None and weight.ndim == 4 else None


def _num_classes(encoder: Encoder, tensors: Mapping[str, Tensor]) -> int | None:
    classifier = tensors.get(f"{classifier_of(encoder)}.weight")
    return None if classifier is None else len(classifier)


def classifier_of(encoder: Encoder) -> str:
    """The name of the classifier; a distilled model has two."""
    heads = encoder.default_cfg["classifier"]
    return heads if isinstance(heads, str) else next(iter(heads), "")


def _window_size(tensors: Mapping[str, Tensor]) -> int | None:
    """Window of a Swin, from the biases of its first block: one for each offset between two places of a window."""
    table = next((value for name, value in tensors.items() if name.endswith(f".attn.{BIAS_TABLE}")), None)
    offsets = math.isqrt(len(table)) if table is not None else 0
    return (offsets + 1) // 2 if offsets % 2 and table is not None and offsets**2 == len(table) else None


def _positions(encoder: Encoder, tensors: Mapping[str, Tensor], file: Path) -> tuple[Facts, str]:
    """What the table of absolute positions tells, where it is not the model's, and its grid beside the model's."""
    table = tensors.get(POSITIONS)
    if table is None or table.ndim != 3 or not has_position_table(encoder):
        return {}, ""
    own = position_grid(encoder)
    facts: Facts = {}
    own_prefix = encoder.pos_embed.shape[1] - own.size
    grid = _recorded_grid(file)
    for prefix in dict.fromkeys((own_prefix, num_prefix_tokens(encoder), 0)):
        if grid := (grid or square_grid(table.shape[1] - prefix)):
            break
    if grid is None:
        return {}, ""  # the loader says what does not fit
    if table.shape[1] - grid.size != own_prefix and _takes(encoder, "no_embed_class"):
        facts["no_embed_class"] = table.shape[1] == grid.size
    if grid != own:
        rows, cols = _pixels_of_patch(encoder)
        facts[IMAGE_SIZE] = _side((grid.rows * rows, grid.cols * cols))
    return facts, f"{grid.rows}x{grid.cols} -> {own.rows}x{own.cols}" if grid != own else ""


def _pixels_of_patch(encoder: Encoder) -> tuple[int, int]:
    """Behind a network that embeds patches, they are larger than what is cut from its map."""
    embed = encoder.patch_embed
    if not hasattr(embed, "backbone"):
        return embed.patch_size
    return embed.img_size[0] // embed.grid_size[0], embed.img_size[1] // embed.grid_size[1]


def _recorded_grid(file: Path) -> Grid | None:
    """The grid that an exported file records, where it is not a square."""
    if file.suffix != ".safetensors":
        return None
    try:
        with safe_open(file, "pt") as opened:
            recorded = (opened.metadata() or {}).get(GRID)
    except SafetensorError:  # it has another format than its name says
        return None
    return Grid(*map(int, recorded.split("x"))) if recorded else None


def _image_size(encoder: Encoder) -> Size | None:
    size = getattr(getattr(encoder, "patch_embed", None), "img_size", None)
    return _side(size) if size else None


def _as_size(value: Any) -> Size | None:
    return value if value is None or isinstance(value, int) else _side(value)


def _side(size: Any) -> Size:
    """One number for a square, as configs write it."""
    rows, cols = map(int, size)
    return rows if rows == cols else (rows, cols)
