"""Supervised classification, the baseline of every study: cross-entropy with (mixed, smoothed) soft targets."""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from pipeline.methods.base import METHODS, Method, MethodConfig, Output


@METHODS.register("supervised")
class Supervised(Method):
    class Config(MethodConfig):
        name: Literal["supervised"] = "supervised"

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        loss = F.cross_entropy(self.predict(images).logits, targets)
        return Output(loss, {})
