"""Classified texts: a class for each text, or for each pair of sentences (IMDB and SNLI of ST Sec. 5.1)."""

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.trees import to_device
from pipeline.methods.base import MethodConfig, Primary
from pipeline.models.encoder import ModelConfig
from pipeline.models.text import build_text_encoder
from pipeline.tasks.base import TASKS, Task

if TYPE_CHECKING:
    from pipeline.data.text.text import TextConfig


@TASKS.register("text_classify")
class TextClassify(Task):
    primary: ClassVar[Primary | None] = Primary("top1")

    @classmethod
    def num_outputs(cls, data: "TextConfig") -> int:
        return data.num_classes

    @classmethod
    def build_encoder(cls, method: MethodConfig, model: ModelConfig, data: "TextConfig") -> nn.Module:
        return build_text_encoder(model, data.vocab_size, data.length, data.num_classes)

    @classmethod
    def example(cls, data: "TextConfig", count: int) -> tuple[dict[str, Tensor], Tensor]:
        ids = torch.zeros(count, data.length, dtype=torch.long)
        inputs = {"ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool), "types": torch.zeros_like(ids)}
        return inputs, torch.zeros(count, data.num_classes)

    def train_batch(self, inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Class indices -> soft targets (B, classes), smoothed."""
        inputs, labels = self.eval_batch(inputs, targets)
        wanted = F.one_hot(labels, self.data.num_classes).float()
        return inputs, wanted * (1 - self.smoothing) + self.smoothing / self.data.num_classes

    def eval_batch(self, inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return to_device(inputs, self.device), targets.to(self.device, non_blocking=True)
