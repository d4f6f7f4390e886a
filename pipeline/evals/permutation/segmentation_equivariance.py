"""Does a segmentation model answer the same on permuted tokens, and only with the key? (ST Table 2, columns of ADE20K.)

mIoU, mAcc and aAcc of the model as it is, with permuted rows (Eq. 2), locked and used with its key (Eq. 5), and locked
and used without it. Maps leave the encoder after several blocks; after each of them, rows and columns are put back.
`rows_apart` and `columns_apart` are the largest differences of the logits of an image, averaged over images: rounding.
Pixels are counted with all keys together. All of it is computed in float32, on a GPU too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.permutation.locked import KeyedConfig, locked_models
from pipeline.methods.base import Batch, Measured
from pipeline.methods.permuted import permutable_reason, rows_reason
from pipeline.methods.upernet import UperNet
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import Key

CASES = ("", "rows_", "columns_", "without_key_")
Locked = list[tuple[UperNet, Key]]


@EVALS.register("segmentation_equivariance")
class SegmentationEquivariance(Evaluation):
    class Config(KeyedConfig):
        name: Literal["segmentation_equivariance"] = "segmentation_equivariance"
        keys: int = Field(2, ge=1, description="keys with which the model is locked, one after the other")

        @property
        def metrics(self) -> tuple[str, ...]:
            shares = [f"{case}{share}" for case in CASES for share in ("miou", "macc", "aacc")]
            return (*shares, "rows_apart", "columns_apart")

    is_exact = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        locked = locked_models(model.method, self.cfg.kind, self.cfg.keys, self.cfg.seed)
        reason = rows_reason(model.run.model)

        def measure(method: UperNet, batch: Batch) -> dict[str, Measured]:
            pairs = zip(batch.inputs, batch.targets, strict=True)
            rows = None if reason else batch.generator
            each = [dict(_of_image(method, locked, image, target["labels"], rows)) for image, target in pairs]
            return {name: torch.stack([found[name] for found in each]) for name in each[0]}

        outcome = self.over_images(model.method, model.run.data, measure)
        return replace(outcome, reasons={name: reason for name in self.cfg.metrics if name not in outcome.metrics})

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run = next(iter(subjects.values()))
        if run.task != "segment":
            return f"method {run.method.name} does not segment"
        return permutable_reason(run.model)


def _of_image(
    method: UperNet, locked: Locked, image: Tensor, labels: Tensor, rows: torch.Generator | None
) -> Iterator[tuple[str, Tensor]]:
    """What is measured of one image, by name."""
    plain = method.segment(image)
    yield "confusion", method.count(plain, labels)
    if rows is not None:
        with permuted(method.encoder, rows=rows, taps=method.taps or ()):
            moved = method.segment(image)
        yield "rows_confusion", method.count(moved, labels)
        yield "rows_apart", (moved - plain).abs().amax()
    with_key = [_with_key(other, key, image) for other, key in locked]
    yield "columns_confusion", torch.stack([method.count(each, labels) for each in with_key]).sum(dim=0)
    yield "columns_apart", torch.stack([(each - plain).abs().amax() for each in with_key]).amax()
    without = [method.count(other.segment(image), labels) for other, _ in locked]
    yield "without_key_confusion", torch.stack(without).sum(dim=0)


def _with_key(locked: UperNet, key: Key, image: Tensor) -> Tensor:
    with permuted(locked.encoder, key, taps=locked.taps or ()):
        return locked.segment(image)
