"""Masked language modelling, BERT's pretraining without its second task: name words that were hidden.

As in BERT's own code, a fixed share of the tokens of each text is chosen: of those, 80 % become MASK, 10 % any word,
10 % stay. The head is BERT's: a layer, its activation, a norm, and the table of word embeddings with biases. Each batch
draws its own masks, where BERT drew them once for ten copies of its corpus.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pipeline.core.sizes import Size
from pipeline.methods.base import METHODS, Batch, Measured, Method, MethodConfig, Output, PerToken
from pipeline.methods.language_model import per_text, word_losses
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder, send, take
from pipeline.models.text import HEAD_STD, Texts

EPS = 1e-12  # of BERT's norms


@METHODS.register("masked_language")
class MaskedLanguage(Method):
    class Config(MethodConfig):
        task: ClassVar[str] = "language"

        name: Literal["masked_language"] = "masked_language"
        mask_ratio: float = Field(0.15, gt=0, lt=1)
        """Share of the tokens that are to be named."""
        mask_prob: float = Field(0.8, ge=0, le=1)
        """Share of these tokens that become MASK."""
        random_prob: float = Field(0.1, ge=0, le=1)
        """Share of these tokens that become any other word."""

        @model_validator(mode="after")
        def _leaves_a_share(self) -> "MaskedLanguage.Config":
            if self.mask_prob + self.random_prob > 1:
                raise ValueError(f"mask_prob {self.mask_prob} and random_prob {self.random_prob} are above 1 together")
            return self

        def check(self, model: ModelConfig, image_size: Size) -> None:
            if model.family != "bert":
                raise ValueError(f"method {self.name} predicts hidden words with a bert, found model.arch {model.arch}")

    cfg: Config

    def __init__(self, cfg: Config, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        width = encoder.embed_dim
        layer = nn.Linear(width, width)
        nn.init.normal_(layer.weight, std=HEAD_STD)
        nn.init.zeros_(layer.bias)
        self.head = nn.Sequential(layer, encoder.act_layer(), nn.LayerNorm(width, eps=EPS))
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """chosen (B, n): places of the words to name, padding only where a text is too short; ids (B, N) to show."""
        ids, mask, cfg = batch.inputs["ids"], batch.inputs["mask"], self.cfg
        noise = send(torch.rand(mask.shape, generator=batch.generator), mask.device)
        count = max(1, round(cfg.mask_ratio * mask.shape[1]))
        chosen = (noise + ~mask).argsort(dim=1)[:, :count]
        action = send(torch.rand(chosen.shape, generator=batch.generator), mask.device)
        others = send(torch.randint(self.encoder.vocab_size, chosen.shape, generator=batch.generator), mask.device)
        shown = torch.where(action < cfg.mask_prob + cfg.random_prob, others, take(ids, chosen))
        shown = torch.where(action < cfg.mask_prob, self.encoder.mask_token, shown)
        return {"chosen": chosen, "ids": ids.scatter(1, chosen, shown)}

    def loss(self, inputs: Texts, targets: Mapping[str, Tensor], draw: Mapping[str, Tensor]) -> Output:
        losses, counted = self.hidden_word_losses(inputs, draw), take(inputs["mask"], draw["chosen"])
        return Output((losses * counted).sum() / counted.sum(), {})

    def hidden_word_losses(self, inputs: Texts, draw: Mapping[str, Tensor]) -> Tensor:
        """(B, n): negative log-likelihoods of the chosen words."""
        tokens = self.encoder.forward_features({**inputs, "ids": draw["ids"]})
        named = self.head(take(tokens, draw["chosen"]))
        return word_losses(named, self.encoder.words, take(inputs["ids"], draw["chosen"]), self.bias)

    def measure(self, batch: Batch) -> dict[str, Measured]:
        """Perplexity here is that of hidden words, given the others."""
        draw = self.draw(batch, 1.0)
        counted = take(batch.inputs["mask"], draw["chosen"])
        losses = self.hidden_word_losses(batch.inputs, draw)
        return {"loss": PerToken(per_text(losses, counted), counted.sum(dim=1))}
