"""Does a ViT answer the same on permuted tokens, and only with the key? (ST Table 2, Sec. 5.2, claims of identity.)

Accuracy of the model as it is, with permuted rows (Eq. 2), locked and used with its key (Eq. 5), and locked and used
without it, which is at chance. `rows_apart` and `columns_apart` are the largest differences of the logits of an image,
averaged over images: rounding. The key is drawn from the seed, so that a result can be obtained again; it protects
nothing.
"""

import copy
from collections.abc import Mapping
from random import Random
from typing import Literal

from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.methods.base import Batch, Measured, Method, percent
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import Key, Kind, Shape, new_key
from pipeline.permutation.rules import permute_state


@EVALS.register("equivariance")
class Equivariance(Evaluation):
    class Config(EvalConfig):
        name: Literal["equivariance"] = "equivariance"
        kind: Kind = "independent"

        @property
        def metrics(self) -> tuple[str, ...]:
            return ("top1", "rows_top1", "columns_top1", "without_key_top1", "rows_apart", "columns_apart")

    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        key = self._key(model.method)
        locked = copy.deepcopy(model.method)
        locked.encoder.load_state_dict(permute_state(locked.encoder.state_dict(), key))

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            plain, without_key = (each.predict(batch.images).logits.float() for each in (method, locked))
            with permuted(method.encoder, rows=batch.generator):
                rows = method.predict(batch.images).logits.float()
            with permuted(locked.encoder, key):
                columns = locked.predict(batch.images).logits.float()
            return {
                "top1": _right(plain, batch),
                "rows_top1": _right(rows, batch),
                "columns_top1": _right(columns, batch),
                "without_key_top1": _right(without_key, batch),
                "rows_apart": (rows - plain).abs().amax(dim=1),
                "columns_apart": (columns - plain).abs().amax(dim=1),
            }

        return self.over_images(model.method, model.run.data, measure)

    def _key(self, method: Method) -> Key:
        blocks = method.encoder.blocks
        attention = blocks[0].attn
        shape = Shape("vit", method.encoder.embed_dim, len(blocks), attention.num_heads, attention.proj.in_features)
        return new_key(shape, self.cfg.kind, Random(self.cfg.seed))

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run = next(iter(subjects.values()))
        if run.model.family != "vit":
            return f"{run.model.arch} is not a ViT"
        if run.model.positions == "relative":
            return "relative positions in the blocks know the order of the tokens"
        return super().reason_against(cfg, subjects)


def _right(logits: Tensor, batch: Batch) -> Measured:
    return percent(logits.argmax(dim=1) == batch.targets)
