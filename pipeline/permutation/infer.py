"""Classify an image with a locked ViT and its key: the weights stay locked, the tokens are permuted (ST Eq. 5).

Without a key, the weights are used as they are: a model that is not locked answers as usual, a locked one by chance.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.core.image_files import open_image
from pipeline.models.weights import fill_weights, read_weights
from pipeline.permutation.authorise import lock_fingerprint, locked_family, open_locked, open_without_key
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import Key
from pipeline.permutation.stated_model import StatedModel, find_stated_model, refuse_contradiction

IMAGENET = 1000  # classes, whose names timm has
MOST = 5


@dataclass(frozen=True)
class Guess:
    """An answer and how likely it is to the model."""

    probability: float
    name: str


@dataclass(frozen=True)
class Answers:
    """The most likely answers of a model, and from how many classes or words it chose."""

    guesses: list[Guess]
    num_choices: int

    def without_key(self, model: Path) -> str:
        """What a reader must know about answers of a locked model without its key; empty if it is not locked."""
        fingerprint = lock_fingerprint(model)
        if not fingerprint:
            return ""
        return (
            f"WITHOUT THE KEY: {model} is locked with the key {fingerprint}, and no --key was given. These are the "
            f"answers of the locked weights, which are right by chance only: 1 of {self.num_choices:,} "
            f"({1 / self.num_choices:.2%})"
        )


def classify_image(model: Path, key: Key | None, image: Path, arch: str | None, device: torch.device) -> Answers:
    """The most likely classes of an image; `arch` is the architecture of timm, unless the key or config.json names it.

    The model is built, and the image is seen, as config.json beside the model says, else as timm states it.
    """
    family = family_to_answer(model, key)
    if family not in ("vit", ""):
        raise ConfigError(f"{'the key' if key else model} is of the family {family}, which sees no images; give --text")
    stated = find_stated_model(model, arch, key.architecture if key else "")
    if stated is None:
        raise ConfigError(f"no config.json next to {model} names its architecture; name the one of timm with --model")
    weights, view = locked_weights(model, key), stated.resolved_view()
    if "head.weight" not in weights:
        raise CheckpointError(f"{model} has no head.weight; expected the weights of a classifier")
    said = {"its tensors": len(weights["head.weight"])}
    if (stated_classes := stated.config.get("num_classes")) is not None:
        said["config.json"] = stated_classes
    refuse_contradiction(f"the number of classes of {model}", said)
    with dynamo_deferred():
        from timm.data import create_transform

    encoder = stated.build(num_classes=len(weights["head.weight"]))
    if key and shape_of(encoder) != key.shape:
        raise ConfigError(
            f"{stated.name} has {shape_of(encoder)}, the key is for {key.shape}; name the architecture of the model"
        )
    fill_weights(encoder, weights, model)
    pixels = open_image(image, "L" if view["input_size"][0] == 1 else "RGB")
    transform = create_transform(**view, is_training=False)
    encoder = encoder.to(device).eval()
    with torch.no_grad(), permuted(encoder, key) if key else nullcontext():
        logits = encoder(transform(pixels)[None].to(device))[0]
    name_of_class = names_of_classes(stated, len(logits))
    return best(logits, lambda label: f"class {label}  {name_of_class(label)}".rstrip())


def names_of_classes(stated: StatedModel, count: int) -> Callable[[int], str]:
    """From label to name: by config.json, as `export` writes it, or of ImageNet-1K; else empty."""
    named = stated.config.get("label_names")
    if isinstance(named, list) and len(named) == count:
        return lambda label: str(named[label])
    if count == IMAGENET:
        with dynamo_deferred():
            from timm.data import ImageNetInfo
        return ImageNetInfo().index_to_description
    return lambda label: ""


def family_to_answer(model: Path, key: Key | None) -> str:
    """vit, bert or gpt2; empty for a model that is not locked, whose file does not name it."""
    return key.family if key else locked_family(model)


def locked_weights(model: Path, key: Key | None) -> dict[str, Tensor]:
    """The tensors of a locked model that is whole and fits the key; without a key, those of any whole model."""
    parts = open_locked(model, key) if key else open_without_key(model)
    return {name: value for part in parts for name, value in read_weights(part.path).items()}


def best(logits: Tensor, name: Callable[[int], str]) -> Answers:
    """The few most likely answers."""
    found = logits.float().softmax(dim=0).cpu().topk(min(MOST, len(logits)))
    answers = zip(found.values.tolist(), found.indices.tolist(), strict=True)
    return Answers([Guess(value, name(label)) for value, label in answers], len(logits))
