"""How often DropPos names a dropped position, for 4 x 4 evaluation ratios (DropPos Tables 1-4, S3-S5).

Plain top-1 in per cent over the dropped positions of the validation set; chance is 100 / N. `g75_p95` has gamma 0.75
and gamma_pos 0.95; `mean` is the mean of the 16, which the tables print.
"""

import itertools
from typing import Literal

from pydantic import Field

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, only_for
from pipeline.methods.base import Batch, Measured
from pipeline.methods.droppos import DropPos


@EVALS.register("droppos_positions")
class DropPosPositions(Evaluation):
    class Config(EvalConfig):
        name: Literal["droppos_positions"] = "droppos_positions"
        gammas: tuple[Percent, ...] = Field((0, 25, 50, 75), min_length=1)
        """Mask ratios (gamma) that are measured, in per cent."""
        position_gammas: tuple[Percent, ...] = Field((25, 50, 75, 95), min_length=1)
        """Shares of visible patches whose positions are dropped (gamma_pos), in per cent."""

        @property
        def cells(self) -> dict[str, tuple[int, int]]:
            pairs = itertools.product(self.gammas, self.position_gammas)
            return {f"g{gamma}_p{dropped}": (gamma, dropped) for gamma, dropped in pairs}

        @property
        def metrics(self) -> tuple[str, ...]:
            return ("mean", *self.cells)

    reason_against = only_for("droppos")
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        def measure(method: DropPos, batch: Batch) -> dict[str, Measured]:
            found = {}
            for name, (gamma, dropped) in self.cfg.cells.items():
                found[name] = method.measure_at(batch, *num_visible_anchors(method, gamma, dropped))["position_top1"]
            return found

        return self.over_images(model.method, model.run.data, measure).with_mean("mean")


def num_visible_anchors(method: DropPos, gamma: int, position_gamma: int) -> tuple[int, int]:
    """Visible patches, and those of them that keep their positions, at ratios in per cent."""
    visible = int(method.grid.size * (1 - gamma / 100))
    return visible, int(visible * (1 - position_gamma / 100))
