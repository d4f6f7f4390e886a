"""What APRIL recovers when the table of position embeddings is larger or smaller: the control of MJP Table 5.

The released MJP starts its table fifty times as large as the baseline's, and the condition of the attack's equations
depends on that more than on any method. Here the table alone is scaled to a standard deviation; `psnr_at_20` is the
PSNR at 0.020, `condition_at_20` the mean log10 of the condition. The model is not trained for its new table, which
changes nothing in the algebra. With `untrained` it has the random weights from which the run starts.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.engine.loop import build_method
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Outcome, Subject
from pipeline.evals.positions.position_embeddings import reason_without_table
from pipeline.evals.privacy.leakage import LeakageEvaluation, compared
from pipeline.methods.base import Method
from pipeline.privacy.april import Assumptions, attack, reason_against

Thousandths = Annotated[int, Field(ge=1)]


@EVALS.register("april_scale")
class AprilScale(LeakageEvaluation):
    class Config(EvalConfig):
        name: Literal["april_scale"] = "april_scale"
        stds: tuple[Thousandths, ...] = Field((1, 5, 20, 100, 300, 1000, 3000), min_length=1)
        """Standard deviations, in thousandths, to which the table of positions is scaled."""
        untrained: bool = Field(False, description="random weights instead of the trained ones")
        images: int = Field(100, ge=1, description="attacked, one of each class while there are classes")
        batch: int = Field(32, ge=1, description="images attacked at once")
        assumptions: Assumptions = Assumptions(gradients="float32")
        """What the attacker is given."""

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"{name}_at_{std}" for std in self.stds for name in ("psnr", "condition"))

    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        assert isinstance(cfg, cls.Config)
        reason = super().reason_against(cfg, subjects) or reason_without_table(subjects)
        return reason or reason_against(subjects["model"].model, cfg.assumptions)

    def compute(self, model: Subject) -> Outcome:
        method = build_method(model.run).to(self.world.device) if self.cfg.untrained else model.method
        values: dict[str, list[Tensor]] = defaultdict(list)
        for batch in self.client_batches(model.run.data, self.cfg.images, self.cfg.batch):
            for std in self.cfg.stds:
                scaled = with_table_of(method, std / 1000)
                found = attack(scaled, batch.images, batch.targets, assumptions=self.cfg.assumptions)
                values[f"psnr_at_{std}"].append(compared(found.images, batch.images, model.run.data)["psnr"])
                values[f"condition_at_{std}"].append(found.condition.log10())
        return self.outcome(values, model.run.data)


def with_table_of(method: Method, std: float) -> Method:
    """A copy whose position embeddings, CLS's too, have this standard deviation."""
    scaled = copy.deepcopy(method)
    with torch.no_grad():
        scaled.encoder.pos_embed *= std / scaled.encoder.pos_embed.std()
    return scaled
