"""How often MP3 names a patch's position, at several evaluation ratios eta (MP3 Fig. 3).

Top-1 in per cent over all patches of the validation set; chance is 100 / N. `at_55` is eta 0.55.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from pipeline.evals.base import EVALS, EvalConfig, Evaluation
from pipeline.methods.base import Batch
from pipeline.methods.mp3 import MP3

Percent = Annotated[int, Field(ge=0, lt=100)]


@EVALS.register("mp3_positions")
class MP3Positions(Evaluation):
    class Config(EvalConfig):
        name: Literal["mp3_positions"] = "mp3_positions"
        etas: tuple[Percent, ...] = Field((0, 25, 50, 55, 75, 90), min_length=1, description="eta in per cent")

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"at_{eta}" for eta in self.etas)

    methods = ("mp3",)
    cfg: Config

    def compute(self, method: MP3) -> dict[str, float]:
        def measure(method: MP3, batch: Batch) -> dict[str, Tensor]:
            size = method.grid.size
            contexts = {eta: int(size * (100 - eta) / 100) for eta in self.cfg.etas}
            return {f"at_{eta}": method.measure_at(batch, count)["position_top1"] for eta, count in contexts.items()}

        return self.over_validation_set(method, self.run.data.eval_crop, measure)
