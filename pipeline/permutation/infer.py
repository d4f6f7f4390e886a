"""Classify an image with a locked ViT and its key: the weights stay locked, the tokens are permuted (ST Eq. 5)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipeline.dynamo import dynamo_deferred
from pipeline.errors import CheckpointError, ConfigError
from pipeline.images import open_image
from pipeline.models.weights import fill_weights, read_weights
from pipeline.permutation.authorise import open_locked
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import Key
from pipeline.permutation.stated import refuse_contradiction, stated_of

IMAGENET = 1000  # classes, whose names timm has
MOST = 5


@dataclass(frozen=True)
class Guess:
    """An answer and how likely it is to the model."""

    probability: float
    name: str


def classify_image(model: Path, key: Key, image: Path, arch: str | None, device: torch.device) -> list[Guess]:
    """The most likely classes of an image; `arch` is the architecture of timm, unless the key or config.json names it.

    The model is built, and the image is seen, as config.json beside the model says, else as timm states it.
    """
    if key.family != "vit":
        raise ConfigError(f"the key is for the family {key.family}, which sees no images; give --text")
    stated = stated_of(model, arch, key.architecture)
    if stated is None:
        raise ConfigError(f"no config.json beside {model} names its architecture; name the one of timm with --model")
    weights, view = locked_weights(model, key), stated.resolved_view()
    if "head.weight" not in weights:
        raise CheckpointError(f"{model} has no head.weight; expected the weights of a classifier")
    said = {"its tensors": len(weights["head.weight"])}
    if (stated_classes := stated.config.get("num_classes")) is not None:
        said["config.json"] = stated_classes
    refuse_contradiction(f"the number of classes of {model}", said)
    with dynamo_deferred():
        from timm.data import ImageNetInfo, create_transform

    encoder = stated.build(num_classes=len(weights["head.weight"]))
    if shape_of(encoder) != key.shape:
        raise ConfigError(
            f"{stated.name} has {shape_of(encoder)}, the key is for {key.shape}; name the architecture of the model"
        )
    fill_weights(encoder, weights, model)
    pixels = open_image(image, "L" if view["input_size"][0] == 1 else "RGB")
    transform = create_transform(**view, is_training=False)
    encoder = encoder.to(device).eval()
    with torch.no_grad(), permuted(encoder, key):
        logits = encoder(transform(pixels)[None].to(device))[0]
    names = ImageNetInfo().index_to_description if len(logits) == IMAGENET else lambda label: ""
    return best(logits, lambda label: f"class {label}  {names(label)}".rstrip())


def locked_weights(model: Path, key: Key) -> dict[str, Tensor]:
    """The tensors of a locked model that is whole and fits the key."""
    parts = open_locked(model, key)
    return {name: value for part in parts for name, value in read_weights(part.path).items()}


def best(logits: Tensor, name: Callable[[int], str]) -> list[Guess]:
    """The few most likely answers."""
    found = logits.float().softmax(dim=0).cpu().topk(min(MOST, len(logits)))
    return [
        Guess(value, name(label)) for value, label in zip(found.values.tolist(), found.indices.tolist(), strict=True)
    ]
