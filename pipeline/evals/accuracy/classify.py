"""Top-1 and top-5 accuracy on the clean and on the jigsaw-shuffled validation set (MJP Fig. 3, Tables 1, 3, 4)."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.methods.base import Batch, Measured, Method, accuracy


@EVALS.register("classify")
class Classify(Evaluation):
    class Config(EvalConfig):
        name: Literal["classify"] = "classify"
        shuffle_ratio: float = Field(0.15, ge=0, le=1)
        """Share of the patches that are shuffled in the second pass."""

        metrics: ClassVar[tuple[str, ...]] = (
            "top1",
            "top5",
            "loss",
            "shuffled_top1",
            "shuffled_top5",
            "shuffled_loss",
            "shuffled_ratio",
        )

    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        shuffler = Shuffler(model.method, self.cfg.shuffle_ratio, self.cfg.seed)

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            moved, shuffled = shuffler(batch.images)
            on_shuffled = accuracy(method.predict(moved, shuffled), batch.targets)
            ratio = shuffled.float().mean(dim=1)
            named = {f"shuffled_{name}": value for name, value in on_shuffled.items()}
            return {**accuracy(method.predict(batch.images), batch.targets), **named, "shuffled_ratio": ratio}

        return self.over_images(model.method, model.run.data, measure)
