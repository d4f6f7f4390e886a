"""The perplexity of a language model, locked and used with its key, and without it (ST Table 4, Sec. 5.2).

Perplexity is over the whole validation stream, by the stride of the data set. `columns_apart` is the largest difference
of the negative log-likelihoods of a window's words with the key, averaged over windows: rounding. Of several keys the
losses are averaged, so that a perplexity is their geometric mean. Keys are drawn from the seed, so that a result can be
obtained again; they protect nothing. `uniform_perplexity` is that of a guess which takes all words for equally likely:
the size of the vocabulary. All of it is computed in float32, on a GPU too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.permutation.locked import KeyedConfig, locked_models
from pipeline.methods.base import Batch, Measured, PerToken
from pipeline.methods.language_model import LanguageModel, per_text
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import Key

UNIFORM = "uniform_perplexity"


@EVALS.register("perplexity")
class Perplexity(Evaluation):
    class Config(KeyedConfig):
        name: Literal["perplexity"] = "perplexity"
        keys: int = Field(3, ge=1, description="keys with which the model is locked, one after the other")

        @property
        def metrics(self) -> tuple[str, ...]:
            cases = ("", "columns_", "without_key_")
            return (*[f"{case}{what}" for what in ("perplexity", "loss") for case in cases], "columns_apart", UNIFORM)

    is_exact = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        locked = locked_models(model.method, self.cfg.kind, self.cfg.keys, self.cfg.seed)

        def measure(method: LanguageModel, batch: Batch) -> dict[str, Measured]:
            scored = batch.targets["scored"][:, 1:]
            plain = method.next_word_losses(batch.inputs)
            without_key = torch.stack([other.next_word_losses(batch.inputs) for other, _ in locked])
            columns = torch.stack([_with_key(other, key, batch) for other, key in locked])
            losses = {"loss": plain, "columns_loss": columns.mean(dim=0), "without_key_loss": without_key.mean(dim=0)}
            found: dict[str, Measured] = {
                name: PerToken(per_text(values, scored), scored.sum(dim=1)) for name, values in losses.items()
            }
            return found | {"columns_apart": ((columns - plain).abs() * scored).amax(dim=(0, 2))}

        data: Any = model.run.data
        found = self.over_images(model.method, data, measure)
        guess = {UNIFORM: float(data.vocab_size)}
        return replace(found, metrics=found.metrics | guess, errors=found.errors | {UNIFORM: 0.0})

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        others = {run.method.name for run in subjects.values()} - {"language_model"}
        return f"method {', '.join(sorted(others))} does not name the next word" if others else ""


def _with_key(locked: LanguageModel, key: Key, batch: Batch) -> Tensor:
    with permuted(locked.encoder, key):
        return locked.next_word_losses(batch.inputs)
