"""Modelling language: windows of a stream of tokens, and the perplexity of its words (WikiText-2 of ST Sec. 5.1).

Perplexity is exp of the mean negative log-likelihood over all scored tokens of the set. Which tokens of a window are
scored is decided by the data: each token of the stream once, with what the window has before it.
"""

import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from pipeline.methods.base import MethodConfig, Primary
from pipeline.models.encoder import ModelConfig
from pipeline.models.text import build_text_encoder
from pipeline.tasks.base import TASKS, Task
from pipeline.tasks.metrics import MeanPerToken, Metric, MetricValues

if TYPE_CHECKING:
    from pipeline.data.text.language import LanguageConfig

LOSS, PERPLEXITY = "loss", "perplexity"
LARGEST = 80.0  # exp of much more is no float32 any more


@TASKS.register("language")
class Language(Task):
    primary: ClassVar[Primary | None] = Primary(PERPLEXITY, is_lower_better=True)

    @classmethod
    def num_outputs(cls, data: "LanguageConfig") -> int:
        return 0  # words are named by a method's head

    @classmethod
    def build_encoder(cls, method: MethodConfig, model: ModelConfig, data: "LanguageConfig") -> nn.Module:
        encoder = build_text_encoder(model, data.vocab_size, data.length, cls.num_outputs(data))
        encoder.mask_token = data.mask_token
        return encoder

    @classmethod
    def example(cls, data: "LanguageConfig", count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        ids = torch.zeros(count, data.length, dtype=torch.long)
        everywhere = torch.ones_like(ids, dtype=torch.bool)
        return {"ids": ids, "mask": everywhere}, {"scored": everywhere.clone()}

    def metric(self) -> Metric:
        return Perplexities()


class Perplexities(MeanPerToken):
    """Means over tokens, and for each `loss` the perplexity under the same name: `x_loss` gives `x_perplexity`."""

    def compute(self) -> MetricValues:
        found = super().compute()
        for name in [name for name in found.metrics if name.split("_")[-1] == LOSS]:
            other, loss = name.removesuffix(LOSS) + PERPLEXITY, found.metrics[name]
            found.metrics[other] = value = math.exp(min(loss, LARGEST))
            # exp is linearised, too: the mean of the values is the perplexity.
            found.errors[other] = value * found.errors[name]
            found.per_image[other] = (value * (1 + found.per_image[name].astype(float) - loss)).astype("float32")
        return found
