"""How often MP3 names a patch's position, at several evaluation ratios eta (MP3 Fig. 3).

Top-1 in per cent over all patches of the validation set; chance is 100 / N. `at_55` is eta 0.55.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, only_for
from pipeline.methods.base import Batch, Measured
from pipeline.methods.mp3 import MP3


@EVALS.register("mp3_positions")
class MP3Positions(Evaluation):
    class Config(EvalConfig):
        name: Literal["mp3_positions"] = "mp3_positions"
        etas: tuple[Percent, ...] = Field((0, 25, 50, 55, 75, 90), min_length=1, description="eta in per cent")

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"at_{eta}" for eta in self.etas)

    reason_against = only_for("mp3")
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        def measure(method: MP3, batch: Batch) -> dict[str, Measured]:
            counts = {eta: num_context(method, eta) for eta in self.cfg.etas}
            return {f"at_{eta}": method.measure_at(batch, count)["position_top1"] for eta, count in counts.items()}

        return self.over_images(model.method, model.run.data, measure)


def num_context(method: MP3, eta: int) -> int:
    """Context patches at an eta in per cent."""
    return int(method.grid.size * (100 - eta) / 100)


@torch.no_grad()
def named_positions(method: MP3, images: Tensor, order: Tensor, eta: int) -> Tensor:
    """(B, N) on the CPU: the position that is named for each patch of `order` (B, N)."""
    logits = method.position_logits(images, order.to(images.device), num_context(method, eta))
    return logits.float().argmax(dim=2).cpu()
