"""Semantic segmentation: a class for each pixel. Training sees crops of one size, evaluation whole images of any size.

mIoU, mAcc and aAcc are ratios of pixels summed over the set, in per cent; see pipeline/dense/iou.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.core.sizes import pair
from pipeline.core.trees import to_device
from pipeline.dense.iou import Areas, areas
from pipeline.methods.base import Primary
from pipeline.tasks.base import TASKS
from pipeline.tasks.dense import DenseTask
from pipeline.tasks.metrics import MeanPerImage, Metric, MetricValues, standard_error

if TYPE_CHECKING:
    from pipeline.data.dense.segmentation import SegmentationConfig

Targets = list[dict[str, Tensor]]
CONFUSION = "confusion"


@TASKS.register("segment")
class Segment(DenseTask):
    primary: ClassVar[Primary | None] = Primary("miou")
    name, kind, marked = "segment", "segmentation", "class for each pixel"

    @classmethod
    def example(cls, data: "SegmentationConfig", count: int) -> tuple[Tensor, Tensor]:
        size = pair(data.input_size)
        return torch.zeros(count, data.channels, *size), torch.zeros(count, *size, dtype=torch.uint8)

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        """Crops, whose targets are labels, are stacked; whole images, whose targets are dicts, stay apart."""
        if isinstance(samples[0][1], dict):
            return [image for image, _ in samples], [target for _, target in samples]
        return super().collate(samples)

    def train_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and labels -> float images, and the labels (B, H, W)."""
        return self.normalise(inputs), targets.to(self.device, non_blocking=True)

    def eval_batch(self, inputs: list[Tensor], targets: Targets) -> tuple[list[Tensor], Targets]:
        """uint8 images -> float images, each of its size, and for each its `labels` (h, w) as published."""
        return [self.normalise(image) for image in inputs], to_device(targets, self.device)

    def metric(self) -> Metric:
        return Overlaps()


class Overlaps(MeanPerImage):
    """miou, macc and aacc of `confusion`, and of `x_confusion` under names with x_; means over images of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, dict[str, Tensor]] = {}
        self.counted: dict[int, dict[str, np.ndarray]] = {}

    def update(self, values: Mapping[str, Any], number: int) -> None:
        super().update({name: value for name, value in values.items() if not name.endswith(CONFUSION)}, number)
        # Three rows instead of a matrix: 2,000 of those, with 150 classes, would fill the memory of a small GPU.
        self.seen[number] = {name: areas(value) for name, value in values.items() if name.endswith(CONFUSION)}

    def state(self) -> Any:
        counts = {
            number: {name: value.cpu().numpy() for name, value in batch.items()} for number, batch in self.seen.items()
        }
        return super().state(), counts

    def merge(self, states: Sequence[Any]) -> None:
        super().merge([means for means, _ in states])
        self.counted = {number: batch for _, counts in states for number, batch in counts.items()}

    def areas_of(self, name: str = CONFUSION) -> Areas:
        """After `merge`: the counts of all images, in the order of the set."""
        return Areas(np.concatenate([self.counted[number][name] for number in sorted(self.counted)]))

    def compute(self) -> MetricValues:
        found, count = super().compute(), 0
        for name in next(iter(self.counted.values()), {}):
            counted = self.areas_of(name)
            shares, count = counted.shares()._asdict(), len(counted.of_images)
            for metric, values in counted.per_image().items():
                key = name.removesuffix(CONFUSION) + metric
                found.metrics[key], found.errors[key] = shares[metric], standard_error(values)
                found.per_image[key] = values.astype(np.float32)
        return MetricValues(found.metrics, found.errors, found.count or count, found.per_image)
