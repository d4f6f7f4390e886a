"""Images with attributes: for each attribute of an image, whether it is there (ST Sec. 5.3, CelebA)."""

from typing import ClassVar

import torch
from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.core.sizes import pair
from pipeline.data.images.attributes import AttributeConfig
from pipeline.data.images.transforms import ImageBatches
from pipeline.methods.base import Primary
from pipeline.tasks.base import TASKS, Task


@TASKS.register("attributes")
class Attributes(Task):
    primary: ClassVar[Primary | None] = Primary("accuracy")
    takes_deferred: ClassVar[bool] = True

    def __init__(self, data: AttributeConfig, device: torch.device, smoothing: float = 0.0) -> None:
        super().__init__(data, device, smoothing)
        self.transform = ImageBatches(data, 0.0, device)

    @classmethod
    def num_outputs(cls, data: AttributeConfig) -> int:
        if not data.has_attributes:
            raise ConfigError(
                f"data set {data.name!r} is of kind {data.kind}, with one class per image; this method needs "
                "images with attributes: choose a set of kind attributes, or another method"
            )
        return data.num_classes

    @classmethod
    def example(cls, data: AttributeConfig, count: int) -> tuple[Tensor, Tensor]:
        images = torch.zeros(count, data.channels, *pair(data.input_size))
        return images, torch.zeros(count, data.num_classes)

    def train_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and labels -> float images and targets (B, attributes), smoothed towards a half."""
        images, wanted = self.eval_batch(inputs, targets)
        return self.transform.erase(images), wanted * (1 - self.smoothing) + self.smoothing / 2

    def eval_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and labels -> float images and targets (B, attributes) of 0 and 1."""
        labels = targets.to(self.device, non_blocking=True)
        return self.transform.normalise(inputs), decoded(labels, self.data.num_classes)


def decoded(labels: Tensor, num_attributes: int) -> Tensor:
    """Labels (B,) -> (B, attributes) float: 1 where an image has the attribute, bit i of its label."""
    return (labels[:, None] >> torch.arange(num_attributes, device=labels.device) & 1).float()
