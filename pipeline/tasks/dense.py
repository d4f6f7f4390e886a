"""What detection and segmentation have in common: pictures are normalised on the device, and the heads that name what
is in them are the method's own."""

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from pipeline.core.errors import ConfigError
from pipeline.data.images.transforms import Normaliser
from pipeline.methods.base import MethodConfig
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder
from pipeline.tasks.base import Task

if TYPE_CHECKING:
    from pipeline.data.dense.pictures import DenseConfig


class DenseTask(Task):
    """A task on sets of one kind of its own."""

    at_once: ClassVar[int] = 4
    name: ClassVar[str]  # in the registry
    kind: ClassVar[str]  # of the data that it is for
    marked: ClassVar[str]  # in words, what such data have

    def __init__(self, data: "DenseConfig", device: torch.device, smoothing: float = 0.0) -> None:
        super().__init__(data, device, smoothing)
        self.normalise = Normaliser(data, device).normalise

    @classmethod
    def num_outputs(cls, data: "DenseConfig") -> int:
        if cls.name not in data.tasks:
            raise ConfigError(
                f"data set {data.name!r} is of kind {data.kind}, which has no {cls.marked}; choose a set of kind "
                f"{cls.kind}, or another method"
            )
        return 0

    @classmethod
    def build_encoder(cls, method: MethodConfig, model: ModelConfig, data: "DenseConfig") -> nn.Module:
        encoder: Encoder = super().build_encoder(method, model, data)
        encoder.num_labels = data.num_classes  # for the method's heads
        return encoder
