"""What a task is: what a batch is, how it is collated, what is measured, and which metric counts.

One file, `@TASKS.register("name")`; the config class of a method names its task. The loop, the loader and the
validation know no task, and nothing of images or labels.
"""

from typing import Any, ClassVar

import torch
from torch import nn

from pipeline.core.registry import TASKS as TASKS
from pipeline.core.trees import Tree, to_device
from pipeline.methods.base import MethodConfig, Primary
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.tasks.metrics import MeanPerImage, Metric


class Task:
    """One task on one data set and one device."""

    # The metric whose best value over a training is kept; a method may name another.
    primary: ClassVar[Primary | None] = None
    # Whether its methods look at the labels of images.
    needs_labels: ClassVar[bool] = True
    # Samples in a batch of validation.
    at_once: ClassVar[int] = 256
    # Its inputs are images and its targets labels, so that a GPU may complete views; they need no `collate` of its own.
    takes_deferred: ClassVar[bool] = False
    transform: Any  # of a kind's batches; some tasks have one

    def __init__(self, data: Any, device: torch.device, smoothing: float = 0.0) -> None:
        self.data, self.device, self.smoothing = data, device, smoothing

    @classmethod
    def num_outputs(cls, data: Any) -> int:
        """Outputs of the encoder's own head; 0: it has none."""
        raise NotImplementedError

    @classmethod
    def build_encoder(cls, method: MethodConfig, model: ModelConfig, data: Any) -> nn.Module:
        """What the method is built around, with fresh weights from torch's global generator."""
        size = method.encoder_size(data.input_size)
        return build_encoder(model, size, data.channels, cls.num_outputs(data))

    @classmethod
    def example(cls, data: Any, count: int) -> tuple[Tree, Tree]:
        """Inputs and targets of the shapes that `train_batch` returns, to count operations with."""
        raise NotImplementedError

    def collate(self, samples: list[Any]) -> tuple[Tree, Tree]:
        """Samples as views return them, (inputs, targets) each -> the inputs and targets of a batch."""
        inputs, targets = torch.utils.data.default_collate(samples)
        return inputs, targets

    def train_batch(self, inputs: Tree, targets: Tree) -> tuple[Tree, Tree]:
        """On the device, as the method's loss takes them; random choices are seeded by the caller."""
        return to_device(inputs, self.device), to_device(targets, self.device)

    def eval_batch(self, inputs: Tree, targets: Tree) -> tuple[Tree, Tree]:
        """On the device, as the method's `measure` takes them; nothing is random."""
        return to_device(inputs, self.device), to_device(targets, self.device)

    def metric(self) -> Metric:
        """Puts together what a method measures in the batches of a data set."""
        return MeanPerImage()
