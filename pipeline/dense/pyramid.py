"""Feature pyramids for detection: maps of one width at five strides, each twice the one before.

| encoder            | pyramid                                                                                      |
|--------------------|----------------------------------------------------------------------------------------------|
| ViT, also windowed | simple (ViTDet Sec. 3): strides of 4, 8, 16 and 32 pixels, all from the last block's map      |
| Swin               | FPN over the four stages, each normalised first, as detectors with a Swin do                 |

The fifth map is every second place of the fourth; it gives proposals alone.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import ConfigError
from pipeline.core.sizes import pair
from pipeline.models.dense import feature_maps, is_swin, strides, widths
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder, Grid, grid_of

NUM_STAGES = 4  # maps that regions are cut from
PATCHES = (2, 4, 8, 16)  # of a ViT, in pixels


class Pyramid(nn.Module):
    """Five maps; `strides` are their pixels between two places."""

    strides: list[int]

    def forward(self, encoder: Encoder, images: Tensor) -> list[Tensor]:
        """(B, C, H, W) -> five maps (B, width, H / stride, W / stride)."""
        raise NotImplementedError

    def grids(self, encoder: Encoder) -> list[Grid]:
        """Rows and columns of each map, of images of the encoder's own size."""
        patch = min(strides(encoder))
        height, width = (patch * count for count in grid_of(encoder))
        return [Grid(-(-height // stride), -(-width // stride)) for stride in self.strides]


def coarsest_stride(model: ModelConfig) -> int:
    """Pixels between two places of the fourth map: a multiple of it can be halved down to there."""
    return 32 if model.family == "vit" else 8 * pair(model.patch_size or 4)[0]


class SimplePyramid(Pyramid):
    """Four maps from the last map of a ViT: doubled by transposed convolutions, as it is, or pooled.

    Patches of 16 pixels are doubled twice and once, kept and halved, as in ViTDet; smaller patches are pooled more.
    """

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        (channels,), (patch,) = widths(encoder), strides(encoder)
        if patch not in PATCHES or channels % 4:
            raise ConfigError(
                f"the feature pyramid of a ViT needs a width that 4 divides and patches of {PATCHES[0]} to "
                f"{PATCHES[-1]} pixels, a power of two; found patches of {patch} pixels and embed_dim {channels}"
            )
        self.strides = [4, 8, 16, 32, 64]
        scaled = [_scaled(channels, patch, stride) for stride in self.strides[:NUM_STAGES]]
        self.scales = nn.ModuleList(scale for scale, _ in scaled)
        self.outputs = nn.ModuleList(_output(count, width) for _, count in scaled)

    def forward(self, encoder: Encoder, images: Tensor) -> list[Tensor]:
        (last,) = feature_maps(encoder, images)
        return with_sixth([output(scale(last)) for scale, output in zip(self.scales, self.outputs, strict=True)])


class StagePyramid(Pyramid):
    """FPN over the stages of a Swin."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        with dynamo_deferred():
            from timm.layers import LayerNorm2d
            from torchvision.ops import FeaturePyramidNetwork
        if len(widths(encoder)) != NUM_STAGES:
            raise ConfigError(f"the FPN of a Swin needs {NUM_STAGES} stages, found {len(widths(encoder))}")
        found = strides(encoder)
        self.strides = [*found, 2 * found[-1]]
        self.norms = nn.ModuleList(LayerNorm2d(channels, eps=1e-5) for channels in widths(encoder))
        self.fpn = FeaturePyramidNetwork(widths(encoder), width)

    def forward(self, encoder: Encoder, images: Tensor) -> list[Tensor]:
        stages = zip(self.norms, feature_maps(encoder, images), strict=True)
        named = OrderedDict((str(number), norm(stage)) for number, (norm, stage) in enumerate(stages))
        return with_sixth(list(self.fpn(named).values()))


def build_pyramid(encoder: Encoder, width: int) -> Pyramid:
    return StagePyramid(encoder, width) if is_swin(encoder) else SimplePyramid(encoder, width)


def with_sixth(maps: list[Tensor]) -> list[Tensor]:
    """P2 to P5, and P6: every second place of P5."""
    return [*maps, F.max_pool2d(maps[-1], kernel_size=1, stride=2)]


def level_of(boxes: Tensor, first_stride: int) -> Tensor:
    """(..., 4) -> (...): the map that a region is cut from, 0 to 3 (FPN Eq. 1: 224 px from the map of stride 16)."""
    sides = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1).clamp(min=0).sqrt()
    return torch.log2(sides / (14 * first_stride) + 1e-8).floor().clamp(0, NUM_STAGES - 1).long()


def _scaled(channels: int, patch: int, stride: int) -> tuple[nn.Module, int]:
    """From the map of the patches to one of another stride, and its channels."""
    if stride > patch:
        return nn.MaxPool2d(stride // patch), channels
    if stride == patch:
        return nn.Identity(), channels
    with dynamo_deferred():
        from timm.layers import LayerNorm2d
    half = channels // 2
    if 2 * stride == patch:
        return _upsample(channels, half), half
    return nn.Sequential(_upsample(channels, half), LayerNorm2d(half), nn.GELU(), _upsample(half, half // 2)), half // 2


def _upsample(before: int, after: int) -> nn.Module:
    return nn.ConvTranspose2d(before, after, kernel_size=2, stride=2)


def _output(channels: int, width: int) -> nn.Module:
    with dynamo_deferred():
        from timm.layers import LayerNorm2d
        from torchvision.ops import Conv2dNormActivation
    layers = [(channels, 1), (width, 3)]
    return nn.Sequential(
        *(Conv2dNormActivation(c, width, size, norm_layer=LayerNorm2d, activation_layer=None) for c, size in layers)
    )
