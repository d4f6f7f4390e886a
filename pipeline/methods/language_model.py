"""Causal language modelling: GPT-2 names the next word (GPT2(G) of ST Table 4, Fig. 6).

The head is the table of word embeddings itself, as in GPT-2: an encoder that is exported has all there is. With a key,
the blocks are locked and this table is not (ST; see permuted.py).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.sizes import Size
from pipeline.methods.base import METHODS, Batch, Measured, Output, PerToken
from pipeline.methods.permuted import Permutable, PermutableConfig
from pipeline.models.encoder import ModelConfig
from pipeline.models.text import Texts

MOST_LOGITS = 2**28  # numbers at a time, 1 GiB: validation takes 256 windows at once


@METHODS.register("language_model")
class LanguageModel(Permutable):
    class Config(PermutableConfig):
        task: ClassVar[str] = "language"

        name: Literal["language_model"] = "language_model"

        def check(self, model: ModelConfig, image_size: Size) -> None:
            if model.family != "gpt2":
                raise ValueError(f"method {self.name} predicts next words with a gpt2, found model.arch {model.arch}")
            super().check(model, image_size)

    def loss(self, inputs: Texts, targets: Mapping[str, Tensor], draw: Mapping[str, Tensor]) -> Output:
        losses, scored = self.next_word_losses(inputs), targets["scored"][:, 1:]
        return Output((losses * scored).sum() / scored.sum(), {})

    def next_word_losses(self, inputs: Texts) -> Tensor:
        """(B, N - 1): negative log-likelihoods of the tokens after the first, each given those before it."""
        tokens = self.encoder.forward_features(inputs)
        return word_losses(tokens[:, :-1], self.encoder.words, inputs["ids"][:, 1:])

    def measure(self, batch: Batch) -> dict[str, Measured]:
        scored = batch.targets["scored"][:, 1:]
        return {"loss": PerToken(per_text(self.next_word_losses(batch.inputs), scored), scored.sum(dim=1))}


def word_losses(tokens: Tensor, words: Tensor, ids: Tensor, bias: Tensor | None = None) -> Tensor:
    """Tokens (B, n, D), words (V, D) and ids (B, n) -> (B, n) cross-entropies, computed in float32 at least."""
    precision = torch.promote_types(words.dtype, torch.float32)
    count = max(1, MOST_LOGITS // len(words))
    parts = zip(tokens.flatten(0, 1).split(count), ids.flatten().split(count), strict=True)
    losses = [
        F.cross_entropy(F.linear(part, words, bias).to(precision), wanted, reduction="none") for part, wanted in parts
    ]
    return torch.cat(losses).view(ids.shape)


def per_text(values: Tensor, counted: Tensor) -> Tensor:
    """(B, n) -> (B,) sums over what counts."""
    return (values.double() * counted).sum(dim=1)
