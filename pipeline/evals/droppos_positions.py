"""How often DropPos names a dropped position, for 4 x 4 evaluation ratios (DropPos Tables 1-4, S3-S5).

Plain top-1 in per cent over the dropped positions of the validation set; chance is 100 / N. `g75_p95` has gamma 0.75
and gamma_pos 0.95; `mean` is the mean of the 16, which the tables print.
"""

from typing import Literal

from torch import Tensor

from pipeline.evals.base import EVALS, EvalConfig, Evaluation
from pipeline.methods.base import Batch
from pipeline.methods.droppos import DropPos

GAMMAS, POSITION_GAMMAS = (0, 25, 50, 75), (25, 50, 75, 95)  # per cent
CELLS = {f"g{gamma}_p{dropped}": (gamma, dropped) for gamma in GAMMAS for dropped in POSITION_GAMMAS}


@EVALS.register("droppos_positions")
class DropPosPositions(Evaluation):
    class Config(EvalConfig):
        name: Literal["droppos_positions"] = "droppos_positions"

    methods = ("droppos",)
    metrics = ("mean", *CELLS)

    def compute(self, method: DropPos) -> dict[str, float]:
        def measure(method: DropPos, batch: Batch) -> dict[str, Tensor]:
            found = {}
            for name, (gamma, dropped) in CELLS.items():
                visible = int(method.grid.size * (1 - gamma / 100))
                anchors = int(visible * (1 - dropped / 100))
                found[name] = method.measure_at(batch, visible, anchors)["position_top1"]
            return found

        cells = self.over_validation_set(method, self.run.data.eval_crop, measure)
        return {"mean": sum(cells.values()) / len(cells), **cells}
