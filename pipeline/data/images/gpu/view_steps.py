"""The steps of timm's and torchvision's views, each deciding about an image of which it sees the size alone.

Every draw is that of the step's own function, from the same generator, in the same order as on a whole image. Where
that function takes long for anything but its draws, a shorter one is here, equal to the bit.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.sizes import pair
from pipeline.data.images.gpu.operation_draws import NotedAugment, Operation, OperationRecorder, jittered, noted
from pipeline.data.images.gpu.resizing import MAX_SHRINK, Axis, needed

HeightWidth = tuple[int, int]
Range = tuple[float, float]

_drawn = torch.empty(1)  # torch.rand(1), again and again in one place


@dataclass(slots=True)
class Plan:
    """What the steps of a view have decided so far."""

    box: tuple[int, int, int, int]  # top and left of the region that is used, and its size
    resized: HeightWidth
    window: HeightWidth  # size of the part of it that is seen
    first: tuple[int, int] = (0, 0)  # its top and left; outside of the resized image there is black
    is_mirrored: bool = False
    operations: list[Operation] = field(default_factory=list)  # on what is seen

    @classmethod
    def of(cls, height: int, width: int) -> "Plan":
        return cls((0, 0, height, width), (height, width), (height, width))

    def resize(self, height: int, width: int) -> None:
        self.resized = self.window = height, width

    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns, of which only those pixels are kept that what is seen is made of."""
        rows, columns = self._axis(0), self._axis(1)
        if self.is_mirrored:
            length, resized, first, _, skipped, dropped = columns
            columns = Axis(length, resized, first + self.window[1] - 1, -1, skipped, dropped)
        return rows, columns

    def _axis(self, axis: int) -> Axis:
        length, resized, first = self.box[2 + axis], self.resized[axis], self.first[axis]
        if first == 0 and self.window[axis] == resized:
            return Axis(length, resized)  # all is seen, so all is needed
        begin, end = needed(length, resized, first, self.window[axis])
        return Axis(length, resized, first, 1, begin, length - end)

    def is_large(self, axes: tuple[Axis, Axis]) -> bool:
        """Whether its region has too many pixels for a device, beside what becomes of them and what is seen of it."""
        (rows, columns), (height, width) = axes, self.window
        return _is_long(rows, height) or _is_long(columns, width)


def _is_long(axis: Axis, seen: int) -> bool:
    return axis.length > MAX_SHRINK * axis.resized or axis.kept > MAX_SHRINK * seen


Decision = Callable[[Plan], None]


def decisions(steps: Iterable[Any], interpolation: str) -> list[Decision] | None:
    """What the steps of a view decide, in their order; none if there is one that needs the pixels."""
    with dynamo_deferred():
        from timm.data import transforms as timm
        from timm.data.auto_augment import RandAugment
        from torchvision import transforms as T

    deciding: dict[type, Callable[[Any, Plan], None]] = {
        timm.RandomResizedCropAndInterpolation: _resized_crop,
        T.Resize: _resize,
        T.RandomCrop: _padded_crop,
        T.CenterCrop: _centre_crop,
        T.RandomHorizontalFlip: _flip,
        T.ColorJitter: _jitter,
        RandAugment: _operate,
        NotedAugment: _operate,
    }
    found: list[Decision] = []
    for step in steps:
        if isinstance(step, timm.ToNumpy | timm.MaybePILToTensor):
            continue
        step = noted(step) if isinstance(step, RandAugment) else step
        decide = deciding.get(type(step))
        if decide is None or getattr(step, "interpolation", T.InterpolationMode(interpolation)).value != interpolation:
            return None
        found.append(partial(decide, step))
    return found


def _resized_crop(step: Any, plan: Plan) -> None:
    plan.box = resized_crop(*plan.resized, step.scale, step.ratio)
    plan.resize(*step.size)


def resized_crop(height: int, width: int, scale: Range, ratio: Range) -> tuple[int, int, int, int]:
    """Top, left, height and width, as timm's `get_params` draws them, which asks torchvision for the image's size."""
    area, flattest, tallest = height * width, *map(math.log, ratio)
    for _ in range(10):
        drawn = random.uniform(*scale) * area
        aspect = math.exp(random.uniform(flattest, tallest))
        wide, tall = round(math.sqrt(drawn * aspect)), round(math.sqrt(drawn / aspect))
        if wide <= width and tall <= height:
            return random.randint(0, height - tall), random.randint(0, width - wide), tall, wide
    wide, tall = min(width, round(height * max(ratio))), min(height, round(width / min(ratio)))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _resize(step: Any, plan: Plan) -> None:
    if not isinstance(step.size, int):
        plan.resize(*step.size)
        return
    height, width = plan.resized
    longer = int(step.size * max(height, width) / min(height, width))
    plan.resize(*((longer, step.size) if height > width else (step.size, longer)))


def _padded_crop(step: Any, plan: Plan) -> None:
    around = step.padding or 0
    height, width = (side + 2 * around for side in plan.resized)
    top, left, *_ = step.get_params(_blank(height, width), pair(step.size))
    plan.first, plan.window = (top - around, left - around), pair(step.size)


def _centre_crop(step: Any, plan: Plan) -> None:
    plan.window = pair(step.size)
    top, left = (round((side - seen) / 2) for side, seen in zip(plan.resized, plan.window, strict=True))
    plan.first = top, left


def _flip(step: Any, plan: Plan) -> None:
    plan.is_mirrored = _drawn.uniform_().item() < _single(step.p)


def _jitter(step: Any, plan: Plan) -> None:
    plan.operations += jittered(step)


def _operate(step: Any, plan: Plan) -> None:
    height, width = plan.window
    plan.operations += step(OperationRecorder(width, height)).operations


@lru_cache(maxsize=8)
def _single(probability: float) -> float:
    """Rounded to float32, in which torch compares it with what it drew."""
    return torch.tensor(probability, dtype=torch.float32).item()


@lru_cache(maxsize=64)
def _blank(height: int, width: int) -> Tensor:
    """An image of which there is only the size."""
    return torch.empty(()).expand(height, width)
