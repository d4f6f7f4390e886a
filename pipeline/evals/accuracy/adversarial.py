"""Accuracy on adversarially filtered images, such as ImageNet-A, and how well confidence tells right from wrong there.

AURRA (Hendrycks et al., CVPR 2021) is the area under the response rate accuracy curve: the accuracy among the n most
confident answers, averaged over n. Logits are restricted to the classes of the set.
"""

from typing import ClassVar, Literal

import numpy as np

from pipeline.core.errors import DataError
from pipeline.evals.accuracy.restricted import CONFIDENCE, TOP1, confidences, own_columns, resampled_error, seen_by
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject


@EVALS.register("adversarial")
class Adversarial(Evaluation):
    class Config(EvalConfig):
        name: Literal["adversarial"] = "adversarial"

        metrics: ClassVar[tuple[str, ...]] = (TOP1, "aurra", CONFIDENCE)

    data_roles = ("adversarial",)
    needs_labels = True
    needs_pixels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        data = self.data["adversarial"]
        columns = own_columns(self, model, data)
        if columns is None:
            raise DataError(
                f"{data.name} has no class of {model.run.data.name}, which the model was trained on; "
                "expected images of classes that it was trained on: name another set in `data` of the evaluation"
            )
        found = confidences(self, model, seen_by(model, data), columns)
        right, confidence = found.per_image[TOP1] / 100, found.per_image[CONFIDENCE] / 100
        error = resampled_error(aurra, (confidence, right), seed=self.cfg.seed)
        return Outcome(
            metrics={**found.metrics, "aurra": 100 * aurra(confidence, right)},
            errors={**found.errors, "aurra": 100 * error},
            count=found.count,
            per_image=found.per_image,
            images=self.manifest(data).splits["val"].fingerprint,
        )


def aurra(confidence: np.ndarray, right: np.ndarray) -> float:
    """Mean over n of the share of right answers among the n most confident; ties in the order of the set."""
    ranked = np.asarray(right, dtype=np.float64)[np.argsort(-confidence, kind="stable")]
    return float(np.mean(np.cumsum(ranked) / np.arange(1, len(ranked) + 1)))
