"""How often MP3 names a patch's position, at several evaluation ratios eta (MP3 Fig. 3).

Top-1 in per cent over all patches of the validation set; chance is 100 / N. `at_55` is eta 0.55. Where a share of the
positions is told (`known_ratio`, on speech), over the others. With `top5` also how often the position is among the five
most likely (Sec. 4.3).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.config import added
from pipeline.engine.validate import evaluating
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, only_for
from pipeline.methods.base import Batch, Measured
from pipeline.methods.mp3 import MP3


@EVALS.register("mp3_positions")
class MP3Positions(Evaluation):
    class Config(EvalConfig):
        name: Literal["mp3_positions"] = "mp3_positions"
        etas: tuple[Percent, ...] = Field((0, 25, 50, 55, 75, 90), min_length=1)
        """Mask ratios (eta) that are measured, in per cent."""
        top5: bool = added(False, before=False, description="measure top-5 beside top-1, as top5_at_55")

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"{kind}at_{eta}" for eta in self.etas for kind in self.kinds)

        @property
        def kinds(self) -> dict[str, str]:
            """How a metric's name begins -> what the method calls it."""
            return {"": "position_top1"} | ({"top5_": "position_top5"} if self.top5 else {})

    reason_against = only_for("mp3")
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        def measure(method: MP3, batch: Batch) -> dict[str, Measured]:
            found = {eta: method.measure_at(batch, num_context(method, eta)) for eta in self.cfg.etas}
            return {f"{kind}at_{eta}": found[eta][name] for eta in found for kind, name in self.cfg.kinds.items()}

        return self.over_images(model.method, model.run.data, measure)


def num_context(method: MP3, eta: int) -> int:
    """Context patches at an eta in per cent."""
    return int(method.grid.size * (100 - eta) / 100)


@torch.no_grad()
def named_positions(method: MP3, images: Tensor, order: Tensor, eta: int, known: Tensor | None = None) -> Tensor:
    """(B, N) on the CPU: the position that is named for each patch of `order` (B, N); those `known` (B, N) are told."""
    known = None if known is None else known.to(images.device)
    with evaluating(method):
        logits = method.position_logits(images, order.to(images.device), num_context(method, eta), known)
    return logits.float().argmax(dim=2).cpu()
