"""UperNet (ECCV 2018) as mmsegmentation builds it: a pyramid of maps, pooled context on top, one answer for each place.

Around a plain ViT the pyramid is made from maps of one stride (BEiT, MAE): four times and twice as fine, as it is, and
half as fine. A Swin has a pyramid; each of its maps gets a norm. Convolutions have no bias, since BatchNorm follows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POOLED_SIDES = (1, 2, 3, 6)
FINEST = 4  # pixels between two places of the finest map


def enlarged(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps (B, C, h, w) at another size, bilinearly; corners are pixels like all others."""
    return F.interpolate(maps, list(size), mode="bilinear", align_corners=False)


class ConvBlock(nn.Sequential):
    """Convolution, BatchNorm, ReLU; starts as mmcv's."""

    def __init__(self, in_width: int, width: int, side: int = 1) -> None:
        conv = nn.Conv2d(in_width, width, side, padding=side // 2, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        super().__init__(conv, nn.BatchNorm2d(width), nn.ReLU())


class Classifier(nn.Sequential):
    """Whole channels are dropped out, then each place is classified."""

    def __init__(self, width: int, num_classes: int, dropout: float) -> None:
        conv = nn.Conv2d(width, num_classes, 1)
        nn.init.normal_(conv.weight, std=0.01)
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)
        super().__init__(nn.Dropout2d(dropout), conv)


class UperNetHead(nn.Module):
    """Maps from fine to coarse -> logits (B, classes, h, w) at the size of the finest."""

    def __init__(self, widths: Sequence[int], width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        *finer, coarsest = widths
        self.pooled = nn.ModuleList(ConvBlock(coarsest, width) for _ in POOLED_SIDES)
        self.context = ConvBlock(coarsest + len(POOLED_SIDES) * width, width, 3)
        self.laterals = nn.ModuleList(ConvBlock(each, width) for each in finer)
        self.smoothed = nn.ModuleList(ConvBlock(width, width, 3) for _ in finer)
        self.merged = ConvBlock(len(widths) * width, width, 3)
        self.classifier = Classifier(width, num_classes, dropout)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        top = self._with_context(maps[-1])
        levels = [top]
        for lateral, each in zip(reversed(self.laterals), reversed(maps[:-1]), strict=True):
            levels.insert(0, lateral(each) + enlarged(levels[0], each.shape[2:]))
        levels = [*(smooth(level) for smooth, level in zip(self.smoothed, levels, strict=False)), top]
        finest = levels[0].shape[2:]
        levels = [levels[0], *(enlarged(level, finest) for level in levels[1:])]
        return self.classifier(self.merged(torch.cat(levels, dim=1)))

    def _with_context(self, coarsest: Tensor) -> Tensor:
        """The coarsest map beside what it is on average in 1, 4, 9 and 36 regions."""
        size = coarsest.shape[2:]
        regions = zip(POOLED_SIDES, self.pooled, strict=True)
        means = [enlarged(block(F.adaptive_avg_pool2d(coarsest, side)), size) for side, block in regions]
        return self.context(torch.cat([coarsest, *means], dim=1))


class FCNHead(nn.Sequential):
    """The auxiliary head: one convolution, then a classifier."""

    def __init__(self, in_width: int, width: int, num_classes: int, dropout: float) -> None:
        super().__init__(ConvBlock(in_width, width, 3), Classifier(width, num_classes, dropout))


class PlainPyramid(nn.ModuleList):
    """Four maps of a plain ViT -> one four times as fine, one twice, one as it is, one half as fine.

    Strides are 4, 8, 16 and 32 with patches of 16 pixels. With smaller patches no map is finer than a stride of 4,
    which would cost much and show little: 4, 4, 8, 16 with patches of 8, and 4, 4, 4, 8 with those of 4.
    """

    def __init__(self, width: int, patch: int) -> None:
        doublings = max(1, patch // FINEST).bit_length() - 1
        finer = [_finer(width, min(doublings, most)) for most in (2, 1)]
        super().__init__([*finer, nn.Identity(), nn.MaxPool2d(2)])

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return [level(each) for level, each in zip(self, maps, strict=True)]


class StageNorms(nn.ModuleList):
    """A LayerNorm over the channels of each map of a Swin."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__(nn.LayerNorm(width) for width in widths)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(self, maps, strict=True)
        return [norm(each.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) for norm, each in pairs]


def _finer(width: int, doublings: int) -> nn.Sequential:
    """Twice as fine so many times, with a norm between two."""
    steps: list[nn.Module] = []
    for number in range(doublings):
        steps += [nn.BatchNorm2d(width), nn.GELU()] if number else []
        steps += [nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)]
    return nn.Sequential(*steps)
