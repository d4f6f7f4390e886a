"""A class for each image, or for each clip of sound; training sees soft targets, mixed and smoothed.

The kind of the data says what a batch of its views becomes on the device: `batch_transform`.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.core.sizes import pair
from pipeline.data.kind import kind_of
from pipeline.methods.base import Primary
from pipeline.tasks.base import TASKS, Task


@TASKS.register("classify")
class Classify(Task):
    primary: ClassVar[Primary | None] = Primary("top1")
    takes_deferred: ClassVar[bool] = True

    def __init__(self, data: Any, device: torch.device, smoothing: float = 0.0) -> None:
        super().__init__(data, device, smoothing)
        self.transform = kind_of(data).batch_transform(smoothing, device)

    @classmethod
    def num_outputs(cls, data: Any) -> int:
        return data.num_classes

    @classmethod
    def example(cls, data: Any, count: int) -> tuple[Tensor, Tensor]:
        images = torch.zeros(count, data.channels, *pair(data.input_size))
        return images, torch.zeros(count, data.num_classes)

    def train_batch(self, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Views and class indices -> what the model sees, and soft targets (B, classes)."""
        return self.transform(inputs, targets)

    def eval_batch(self, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Views and class indices -> what the model sees, and the indices."""
        return self.transform.normalise(inputs), targets.to(self.device, non_blocking=True)
