"""Top-1 and top-5 accuracy on the clean and on the jigsaw-shuffled validation set (MJP Fig. 3, Tables 1, 3, 4)."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from pipeline.engine.validate import accuracy
from pipeline.evals.base import EVALS, EvalConfig, Evaluation
from pipeline.evals.shuffling import Shuffler
from pipeline.methods.base import Method


@EVALS.register("classify")
class Classify(Evaluation):
    class Config(EvalConfig):
        name: Literal["classify"] = "classify"
        shuffle_ratio: float = Field(0.15, ge=0, le=1)

    metrics = ("top1", "top5", "loss", "shuffled_top1", "shuffled_top5", "shuffled_loss", "shuffled_ratio")
    cfg: Config

    def compute(self, method: Method) -> dict[str, float]:
        shuffler = Shuffler(self.cfg.shuffle_ratio, self.cfg.seed)

        def measure(method: Method, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            moved, shuffled = shuffler(method, images)
            on_shuffled = accuracy(method, moved, labels, shuffled)
            ratio = shuffled.float().mean(dim=1).sum()
            named = {f"shuffled_{name}": value for name, value in on_shuffled.items()}
            return {**accuracy(method, images, labels), **named, "shuffled_ratio": ratio}

        return self.over_validation_set(method, self.run.data.eval_crop, measure)
