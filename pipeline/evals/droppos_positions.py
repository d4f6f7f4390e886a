"""How often DropPos names a dropped position, for 4 x 4 evaluation ratios (DropPos Tables 1-4, S3-S5).

Plain top-1 in per cent over the dropped positions of the validation set; chance is 100 / N. `g75_p95` has gamma 0.75
and gamma_pos 0.95; `mean` is the mean of the 16, which the tables print.
"""

import itertools
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from pipeline.evals.base import EVALS, EvalConfig, Evaluation
from pipeline.methods.base import Batch
from pipeline.methods.droppos import DropPos

Percent = Annotated[int, Field(ge=0, lt=100)]


@EVALS.register("droppos_positions")
class DropPosPositions(Evaluation):
    class Config(EvalConfig):
        name: Literal["droppos_positions"] = "droppos_positions"
        gammas: tuple[Percent, ...] = Field((0, 25, 50, 75), min_length=1, description="gamma in per cent")
        position_gammas: tuple[Percent, ...] = Field(
            (25, 50, 75, 95), min_length=1, description="gamma_pos in per cent"
        )

        @property
        def cells(self) -> dict[str, tuple[int, int]]:
            pairs = itertools.product(self.gammas, self.position_gammas)
            return {f"g{gamma}_p{dropped}": (gamma, dropped) for gamma, dropped in pairs}

        @property
        def metrics(self) -> tuple[str, ...]:
            return ("mean", *self.cells)

    methods = ("droppos",)
    cfg: Config

    def compute(self, method: DropPos) -> dict[str, float]:
        def measure(method: DropPos, batch: Batch) -> dict[str, Tensor]:
            found = {}
            for name, (gamma, dropped) in self.cfg.cells.items():
                visible = int(method.grid.size * (1 - gamma / 100))
                anchors = int(visible * (1 - dropped / 100))
                found[name] = method.measure_at(batch, visible, anchors)["position_top1"]
            return found

        cells = self.over_validation_set(method, self.run.data.eval_crop, measure)
        return {"mean": sum(cells.values()) / len(cells), **cells}
