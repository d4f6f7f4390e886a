"""COCO's average precision and recall, of boxes and of masks, on the validation set (DropPos Tables 1 to 6).

A size of objects that the set does not have gives no number, and says so. AP is no mean over images, so that there are
no values for each image; standard errors are by the bootstrap over images.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pipeline.dense.average_precision import METRICS, reasons
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, only_for_task
from pipeline.tasks.detect import AveragePrecision

RESAMPLES = 100  # of images: an error is known to 7 %; at COCO's size they take a tenth of the evaluation's time


@EVALS.register("detection")
class Detection(Evaluation):
    class Config(EvalConfig):
        name: Literal["detection"] = "detection"

        metrics: ClassVar[tuple[str, ...]] = METRICS

    reason_against = only_for_task("detect", "detect objects")
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        metric = AveragePrecision(RESAMPLES, self.cfg.seed)
        outcome = self.over_images(model.method, model.run.data, type(model.method).measure, metric=metric)
        return replace(outcome, reasons=reasons(outcome.metrics))
