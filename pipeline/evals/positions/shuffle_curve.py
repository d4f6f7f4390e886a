"""Accuracy and consistency on validation images that are shuffled more and more (MJP Fig. 3).

`top1_at_05` is the accuracy at ratio 0.05, `consistency_at_05` the share of images whose prediction stays the same.
"""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.methods.base import Batch, Measured, Method, accuracy, percent

Percent = Annotated[int, Field(ge=0, le=100)]


@EVALS.register("shuffle_curve")
class ShuffleCurve(Evaluation):
    class Config(EvalConfig):
        name: Literal["shuffle_curve"] = "shuffle_curve"
        ratios: tuple[Percent, ...] = Field((5, 10, 15, 20, 25, 27), min_length=1)
        """Shares of the patches that are shuffled, in per cent."""

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"{what}_at_{ratio:02d}" for ratio in self.ratios for what in ("top1", "consistency"))

    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        shufflers = {ratio: Shuffler(model.method, ratio / 100, self.cfg.seed) for ratio in self.cfg.ratios}

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            clean, found = method.predict(batch.images).logits.argmax(dim=1), {}
            for ratio, shuffler in shufflers.items():
                prediction = method.predict(*shuffler(batch.images))
                found[f"top1_at_{ratio:02d}"] = accuracy(prediction, batch.targets)["top1"]
                found[f"consistency_at_{ratio:02d}"] = percent(prediction.logits.argmax(dim=1) == clean)
            return found

        return self.over_images(model.method, model.run.data, measure)
