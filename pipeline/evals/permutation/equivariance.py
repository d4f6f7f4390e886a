"""Does a model answer the same on permuted tokens, and only with the key? (ST Tables 2 and 4, Sec. 5.2.)

Of what classifies images or texts: accuracy of the model as it is, with permuted rows (Eq. 2), locked and used with its
key (Eq. 5), and locked and used without it, which is at chance. `rows_apart` and `columns_apart` are the largest
differences of the logits of an image, averaged over images: rounding. One wrong key may happen to favour a class, so
what is locked is the mean of several. Rows of a model that knows their order are not permuted.
All of it is computed in float32, on a GPU too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.permutation.locked import KeyedConfig, locked_models
from pipeline.methods.base import Batch, Measured, Method, percent
from pipeline.methods.permuted import permutable_reason, rows_reason
from pipeline.permutation.forward import permuted


@EVALS.register("equivariance")
class Equivariance(Evaluation):
    class Config(KeyedConfig):
        name: Literal["equivariance"] = "equivariance"
        keys: int = Field(5, ge=1, description="keys with which the model is locked, one after the other")

        metrics: ClassVar[tuple[str, ...]] = (
            "top1",
            "rows_top1",
            "columns_top1",
            "without_key_top1",
            "rows_apart",
            "columns_apart",
        )

    is_exact = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        locked = locked_models(model.method, self.cfg.kind, self.cfg.keys, self.cfg.seed)
        reason = rows_reason(model.run.model)

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            plain = _logits(method, batch)
            without_key = torch.stack([_is_right(_logits(other, batch), batch) for other, _ in locked])
            columns = []
            for other, key in locked:
                with permuted(other.encoder, key):
                    columns.append(_logits(other, batch))
            found: dict[str, Measured] = {
                "top1": percent(_is_right(plain, batch)),
                "columns_top1": percent(torch.stack([_is_right(each, batch) for each in columns]).mean(dim=0)),
                "without_key_top1": percent(without_key.mean(dim=0)),
                "columns_apart": (torch.stack(columns) - plain).abs().amax(dim=(0, 2)),
            }
            return found if reason else found | _rows(method, batch, plain)

        outcome = self.over_images(model.method, model.run.data, measure)
        return replace(outcome, reasons={name: reason for name in self.cfg.metrics if name not in outcome.metrics})

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run = next(iter(subjects.values()))
        reason = "" if run.task == "text_classify" else super().reason_against(cfg, subjects)
        return reason or permutable_reason(run.model)


def _rows(method: Method, batch: Batch, plain: Tensor) -> dict[str, Measured]:
    with permuted(method.encoder, rows=batch.generator):
        rows = _logits(method, batch)
    return {"rows_top1": percent(_is_right(rows, batch)), "rows_apart": (rows - plain).abs().amax(dim=1)}


def _logits(method: Method, batch: Batch) -> Tensor:
    return method.predict(batch.images).logits.float()


def _is_right(logits: Tensor, batch: Batch) -> Tensor:
    return (logits.argmax(dim=1) == batch.targets).float()
