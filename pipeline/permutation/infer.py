"""Classify an image with a locked ViT and its key: the weights stay locked, the tokens are permuted (ST Eq. 5)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from pipeline.dynamo import dynamo_deferred
from pipeline.errors import CheckpointError, ConfigError, DataError
from pipeline.models.architectures import unknown_architecture
from pipeline.models.weights import fill_weights, read_weights
from pipeline.permutation.authorise import architecture_of, open_locked
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import Key

IMAGENET = 1000  # classes, whose names timm has


@dataclass(frozen=True)
class Guess:
    """A class, how likely it is to the model, and its name where it is known."""

    label: int
    probability: float
    name: str


def infer(model: Path, key: Key, image: Path, arch: str | None, device: torch.device, most: int = 5) -> list[Guess]:
    """The most likely classes of an image; `arch` is the architecture of timm unless a config.json names it."""
    arch = arch or architecture_of(model)
    if key.family != "vit":
        raise ConfigError(f"the key is for the family {key.family}, which sees no images; expected the key of a ViT")
    if arch is None:
        raise ConfigError(f"no config.json beside {model} names its architecture; name the one of timm with --model")
    if problem := unknown_architecture(arch):
        raise ConfigError(f"--model {arch}: {problem}")
    pixels = _opened(image)
    open_locked(model, key)
    weights = read_weights(model)
    with dynamo_deferred():
        import timm
        from timm.data import create_transform, resolve_data_config

    if "head.weight" not in weights:
        raise CheckpointError(f"{model} has no head.weight; expected the weights of a classifier")
    encoder = timm.create_model(arch, num_classes=len(weights["head.weight"]))
    fill_weights(encoder, weights, model)
    view = create_transform(**resolve_data_config(model=encoder), is_training=False)
    encoder = encoder.to(device).eval()
    with torch.no_grad(), permuted(encoder, key):
        found = encoder(view(pixels)[None].to(device)).softmax(dim=1)[0].cpu()
    top = found.topk(min(most, len(found)))
    return [Guess(label, value, _name(label, len(found))) for value, label in zip(*map(_listed, top), strict=True)]


def _listed(values: torch.Tensor) -> list:
    return values.tolist()


def _name(label: int, num_classes: int) -> str:
    from timm.data import ImageNetInfo

    return ImageNetInfo().index_to_description(label) if num_classes == IMAGENET else ""


def _opened(file: Path) -> Image.Image:
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"--image {file} not found; expected the file of an image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"--image {file} could not be read ({error}); expected an image, such as PNG or JPEG") from None
