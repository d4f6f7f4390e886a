"""Supervised classification, the baseline of every study: cross-entropy with (mixed, smoothed) soft targets.

With `permutation`, on permuted tokens or with a key (ST; see permuted.py).
"""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from pipeline.methods.base import METHODS, Output
from pipeline.methods.permuted import Permutable, PermutableConfig


@METHODS.register("supervised")
class Supervised(Permutable):
    class Config(PermutableConfig):
        name: Literal["supervised"] = "supervised"

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        loss = F.cross_entropy(self.predict(images).logits, targets)
        return Output(loss, {})
