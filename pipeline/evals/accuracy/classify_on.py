"""Accuracy on another set with classes of the same names, such as a test set beside the validation set (MP3 Table 5).

Samples are seen as those of the model's own set. All classes of the model compete, also those that the set lacks.
"""

from typing import ClassVar, Literal

import torch

from pipeline.evals.accuracy.restricted import seen_by
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.methods.base import Batch, Measured, Method, accuracy


@EVALS.register("classify_on")
class ClassifyOn(Evaluation):
    class Config(EvalConfig):
        name: Literal["classify_on"] = "classify_on"

        metrics: ClassVar[tuple[str, ...]] = ("top1", "top5", "loss")

    data_roles = ("test",)
    needs_labels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        data = seen_by(model, self.data["test"])
        labels = torch.tensor(self.labels_in(data, model.run.data), device=self.world.device)

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            return accuracy(method.predict(batch.images), labels[batch.targets])

        return self.over_images(model.method, data, measure)
