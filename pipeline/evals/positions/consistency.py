"""Does shuffling patches change features and predictions? (MJP Eq. 6 and 7.)

The tables' magnitudes fit the plain L2 norm of the difference, which is what the released code computes; Eq. 6 prints
it squared. Both are reported: `diff_norm` and `diff_norm_squared`. Images are resized to a square without a crop, as
released. All of it is computed in float32, on a GPU too: without positions, every answer must stay the same.
"""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.methods.base import Batch, Measured, Method, percent


@EVALS.register("consistency")
class Consistency(Evaluation):
    class Config(EvalConfig):
        name: Literal["consistency"] = "consistency"
        shuffle_ratio: float = Field(0.15, ge=0, le=1)
        """Share of the patches that are shuffled."""

        metrics: ClassVar[tuple[str, ...]] = ("consistency", "diff_norm", "diff_norm_squared", "shuffled_ratio")

    is_exact = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        shuffler = Shuffler(model.method, self.cfg.shuffle_ratio, self.cfg.seed)

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            moved, shuffled = shuffler(batch.images)
            clean, other = method.predict(batch.images), method.predict(moved, shuffled)
            norm = (clean.features.float() - other.features.float()).norm(dim=1)
            same = clean.logits.argmax(dim=1) == other.logits.argmax(dim=1)
            return {
                "consistency": percent(same),
                "diff_norm": norm,
                "diff_norm_squared": norm.square(),
                "shuffled_ratio": shuffled.float().mean(dim=1),
            }

        return self.over_images(model.method, model.run.data, measure, crop=1.0)
