"""Several attributes of an image at once: a binary cross-entropy for each (the victim of ST Sec. 5.3, unsplit).

An attribute is predicted where its logit is above 0. The released code compares with 0.5, as if logits were
probabilities; `accuracy_released` is that.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from pipeline.methods.base import METHODS, Batch, Measured, Method, MethodConfig, Output, percent

RELEASED_THRESHOLD = 0.5


@METHODS.register("multilabel")
class MultiLabel(Method):
    class Config(MethodConfig):
        task: ClassVar[str] = "attributes"

        name: Literal["multilabel"] = "multilabel"

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        return Output(F.binary_cross_entropy_with_logits(self.predict(images).logits, targets), {})

    def measure(self, batch: Batch) -> dict[str, Measured]:
        return attribute_accuracy(self.predict(batch.images).logits.float(), batch.targets)


def attribute_accuracy(logits: Tensor, targets: Tensor) -> dict[str, Measured]:
    """Return, for each image, the share of right attributes in per cent, and the cross-entropy."""
    found = {
        name: percent(((logits > threshold) == (targets > 0.5)).float().mean(dim=1))
        for name, threshold in (("accuracy", 0.0), ("accuracy_released", RELEASED_THRESHOLD))
    }
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
    return {**found, "loss": each}
