"""LPIPS (Zhang et al. 2018) with AlexNet: the distance of two images in the features of a network.

AlexNet's weights are a file that the site names; the linear layers (version 0.1) lie in the wheel of the package
`lpips`. That package is not imported: it would build a whole AlexNet from random numbers, and download one. Without
the file there is no number: random features would give another one.
"""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.errors import CheckpointError
from pipeline.core.sizes import Size, pair
from pipeline.models.formats import read_pickle
from pipeline.models.weights import open_checkpoint
from pipeline.site import Site, site_file

MIN_SIDE = 31  # pixels; of a smaller image AlexNet's second pooling leaves nothing
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of pixels in [-1, 1]
EPSILON = 1e-10
EXPECTED = "expected torchvision's AlexNet (alexnet-owt-7be5be79.pth), or its tensors features.* as safetensors"


class Convolution(NamedTuple):
    """A layer of AlexNet, by its number in torchvision; a ReLU follows it."""

    number: int
    shape: tuple[int, int, int, int]
    stride: int
    padding: int
    is_pooled: bool  # its input goes through max pooling first


LAYERS = (
    Convolution(0, (64, 3, 11, 11), 4, 2, False),
    Convolution(3, (192, 64, 5, 5), 1, 2, True),
    Convolution(6, (384, 192, 3, 3), 1, 1, True),
    Convolution(8, (256, 384, 3, 3), 1, 1, False),
    Convolution(10, (256, 256, 3, 3), 1, 1, False),
)


def lpips_reason(site: Site, image_size: Size) -> str:
    """Why LPIPS cannot be computed for such images; empty if it can."""
    if min(pair(image_size)) < MIN_SIDE:
        return f"images of {min(pair(image_size))} px are too small for AlexNet (at least {MIN_SIDE} px)"
    file = site_file(site, "lpips")
    if file is None:
        return "weights missing: `lpips` of the site file names no file of AlexNet's weights"
    return "" if file.is_file() else f"weights missing: {file} not found, which `lpips` of the site file names"


class LPIPS:
    """The distance, in float64: a GPU would round float32 to fewer digits."""

    def __init__(self, file: Path, device: torch.device | str = "cpu") -> None:
        self.features = {name: value.to(device, torch.float64) for name, value in _features(file).items()}
        self.linear = [weights.to(device, torch.float64) for weights in _linear_layers()]

    @torch.no_grad()
    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1], grey or in colour -> (B,) float64."""
        total = torch.zeros(len(one), dtype=torch.float64, device=one.device)
        for ours, theirs, weights in zip(self._maps(one), self._maps(other), self.linear, strict=True):
            apart = F.conv2d((_unit(ours) - _unit(theirs)).square(), weights)
            total += apart.mean(dim=(1, 2, 3))
        return total

    def _maps(self, images: Tensor) -> list[Tensor]:
        """The output of every layer."""
        shift, scale = (images.new_tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (SHIFT, SCALE))
        found = (2 * images.double().expand(-1, 3, -1, -1) - 1 - shift) / scale
        maps = []
        for layer in LAYERS:
            found = F.max_pool2d(found, 3, 2) if layer.is_pooled else found
            weight, bias = (self.features[name] for name in _names(layer))
            found = F.conv2d(found, weight, bias, layer.stride, layer.padding).relu()
            maps.append(found)
        return maps


def _unit(maps: Tensor) -> Tensor:
    """Each pixel's features with length 1."""
    return maps / (maps.square().sum(dim=1, keepdim=True).sqrt() + EPSILON)


def _names(layer: Convolution) -> tuple[str, str]:
    return f"features.{layer.number}.weight", f"features.{layer.number}.bias"


def _features(file: Path) -> dict[str, Tensor]:
    """AlexNet's convolutions; whatever else the file has is left aside."""
    _, found = open_checkpoint(file)
    wanted: dict[str, tuple[int, ...]] = {}
    for layer in LAYERS:
        wanted |= dict(zip(_names(layer), (layer.shape, layer.shape[:1]), strict=True))
    for name, shape in wanted.items():
        if name not in found:
            raise CheckpointError(f"{file} has no {name}; {EXPECTED}; name another file in `lpips` of the site")
        if tuple(found[name].shape) != shape:
            raise CheckpointError(
                f"{file} is of another network: {name} has shape {tuple(found[name].shape)}, AlexNet's has {shape}; "
                f"{EXPECTED}; name another file in `lpips` of the site"
            )
    return {name: found[name] for name in wanted}


def _linear_layers() -> list[Tensor]:
    """(1, channels, 1, 1) for each layer."""
    package = importlib.util.find_spec("lpips")
    if package is None or package.origin is None:
        raise CheckpointError("the linear layers of LPIPS come with the package lpips, which is not installed")
    found = read_pickle(Path(package.origin).parent / "weights" / "v0.1" / "alex.pth")
    return [found[f"lin{number}.model.1.weight"] for number in range(len(LAYERS))]
