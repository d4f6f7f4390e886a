"""Classified images: a class for each image; training sees soft targets, mixed and smoothed."""

from typing import ClassVar

import torch
from torch import Tensor

from pipeline.data.classified import DataConfig
from pipeline.data.transforms import BatchTransform
from pipeline.methods.base import Primary
from pipeline.sizes import pair
from pipeline.tasks.base import TASKS, Task


@TASKS.register("classify")
class Classify(Task):
    primary: ClassVar[Primary | None] = Primary("top1")

    def __init__(self, data: DataConfig, device: torch.device, smoothing: float = 0.0) -> None:
        super().__init__(data, device, smoothing)
        self.transform = BatchTransform(data, smoothing, device)

    @classmethod
    def num_outputs(cls, data: DataConfig) -> int:
        return data.num_classes

    @classmethod
    def example(cls, data: DataConfig, count: int) -> tuple[Tensor, Tensor]:
        images = torch.zeros(count, data.channels, *pair(data.input_size))
        return images, torch.zeros(count, data.num_classes)

    def train_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and class indices -> float images and soft targets (B, classes)."""
        return self.transform(inputs, targets)

    def eval_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and class indices -> float images, and the indices."""
        return self.transform.normalise(inputs), targets.to(self.device, non_blocking=True)
