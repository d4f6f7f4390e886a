"""Two finetuned models asked together: the mean of their probabilities (MP3 Sec. 4.2.3).

The paper says that outputs are averaged, not whether before or after the softmax; both are reported, `top1` is after.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pipeline.engine.run import RunConfig
from pipeline.engine.validate import evaluating
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.methods.base import Batch, Measured, Method, Prediction, accuracy


@EVALS.register("ensemble")
class Ensemble(Evaluation):
    class Config(EvalConfig):
        name: Literal["ensemble"] = "ensemble"

        metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "logits_top1")

    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        one, other = (subjects[role].data for role in ("first", "second"))
        differing = [key for key, value in one if key != "augment" and value != getattr(other, key)]
        if differing:
            return f"its two runs see other images: {', '.join(differing)} differ"
        return super().reason_against(cfg, subjects)

    def compute(self, first: Subject, second: Subject) -> Outcome:
        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            ours, theirs = (model.predict(batch.images) for model in (method, second.method))
            mean = (ours.logits.float().softmax(dim=1) + theirs.logits.float().softmax(dim=1)) / 2
            found = accuracy(Prediction(ours.features, mean.log()), batch.targets)
            summed = accuracy(Prediction(ours.features, ours.logits.float() + theirs.logits.float()), batch.targets)
            return {"top1": found["top1"], "top5": found["top5"], "logits_top1": summed["top1"]}

        with evaluating(second.method):
            return self.over_images(first.method, first.run.data, measure)
