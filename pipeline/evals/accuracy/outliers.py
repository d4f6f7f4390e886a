"""Can a classifier tell images of unknown classes by its low confidence? (ImageNet-O; Hendrycks et al., CVPR 2021)

An image's score is minus its largest class probability; outliers are the positives. The negatives are validation images
of the model's own set. ImageNet-O lies in the folders of 200 known classes: logits and negatives are then of those
classes alone. Classes that were held out of training have no column: then all columns and all images are used.
All images are resized and cropped as the outliers' set says, so that nothing but their content tells them apart.
FPR95 is the share of negatives above the highest threshold that finds 95 % of the outliers; `fidelity: released` takes
the threshold whose recall is nearest to 95 %, which may be below it.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.data.kind import BaseDataConfig
from pipeline.data.samples import SplitName
from pipeline.evals.accuracy.restricted import (
    CONFIDENCE,
    ScoreFidelity,
    confidences,
    own_columns,
    resampled_error,
    seen_by,
    view_like,
)
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject

RECALL = 0.95


@EVALS.register("outliers")
class Outliers(Evaluation):
    class Config(EvalConfig):
        name: Literal["outliers"] = "outliers"
        fidelity: ScoreFidelity = "corrected"
        """How FPR95 is computed: at 95 % recall or more, or as released."""

        metrics: ClassVar[tuple[str, ...]] = ("aupr", "auroc", "fpr95", "prevalence")

    data_roles = ("outliers",)
    needs_labels = True
    needs_pixels = True
    cfg: Config
    only: Mapping[str, Collection[int]] = MappingProxyType({})  # by set: labels of the images that are looked at

    def compute(self, model: Subject) -> Outcome:
        data, own = self.data["outliers"], model.run.data
        columns = own_columns(self, model, data)
        if columns is not None and data.only_classes and data.folder_name == own.folder_name:
            reason = f"the model was trained on the classes of {data.name}; expected one that never saw them"
            return Outcome(reasons=dict.fromkeys(self.cfg.metrics, reason))
        if columns is not None and data.name != own.name:
            self.only = {own.name: set(columns)}
        outliers = self._scores("outliers", model, seen_by(model, data), columns)
        inliers = self._scores("inliers", model, view_like(own, data), columns)
        scores: dict[str, Callable[..., float]] = {
            "aupr": aupr,
            "auroc": auroc,
            "fpr95": partial(fpr95, fidelity=self.cfg.fidelity),
        }
        groups, seed = ((outliers,), (inliers,)), self.cfg.seed
        return Outcome(
            metrics={name: 100 * score(outliers, inliers) for name, score in scores.items()}
            | {"prevalence": 100 * len(outliers) / (len(outliers) + len(inliers))},
            errors={name: 100 * resampled_error(score, *groups, seed=seed) for name, score in scores.items()}
            | {"prevalence": 0.0},
            count=len(outliers) + len(inliers),
        )

    def open(self, data: BaseDataConfig, split: SplitName = "val") -> Any:
        """Of the model's own set only the images of the outliers' classes, where it has them: a fifth of ImageNet."""
        samples = super().open(data, split)
        if data.name not in self.only:
            return samples
        indices = [index for index, label in enumerate(samples.labels) if label in self.only[data.name]]
        return samples.subset(indices, [samples.labels[index] for index in indices])

    def _scores(self, part: str, model: Subject, data: Any, columns: list[int] | None) -> np.ndarray:
        """Minus the confidence of each image; finished parts survive a kill."""

        def compute() -> dict[str, np.ndarray]:
            return {CONFIDENCE: confidences(self, model, data, columns).per_image[CONFIDENCE]}

        return -self.parts.once(part, compute)[CONFIDENCE]


def aupr(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Average precision: precision at each threshold, weighted by the recall that it adds."""
    true, false = _found(positives, negatives)
    recall, precision = true / len(positives), true / (true + false)
    return float(np.sum(np.diff(recall, prepend=0) * precision))


def auroc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Area under the ROC curve, by trapezoids: a tie counts one half."""
    true, false = _found(positives, negatives)
    return float(np.trapezoid(np.r_[0, true / len(positives)], np.r_[0, false / len(negatives)]))


def fpr95(positives: np.ndarray, negatives: np.ndarray, fidelity: ScoreFidelity = "corrected") -> float:
    """Share of negatives that are found with the highest threshold that finds 95 % of the positives.

    As released: with the threshold whose recall is nearest to that; of several, the lowest.
    """
    true, false = _found(positives, negatives)
    if fidelity == "released":
        needed = 1 + int(np.argmax(true == len(positives)))  # thresholds below find no more
        distance = abs(true[:needed] / len(positives) - RECALL)
        place = needed - 1 - int(np.argmin(distance[::-1]))
    else:
        place = int(np.argmax(true >= RECALL * len(positives)))
    return float(false[place] / len(negatives))


def _found(positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many positives and negatives score at least as high as each distinct score, from the highest down."""
    scores = np.concatenate([positives, negatives])
    is_positive = np.arange(len(scores)) < len(positives)
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    true = np.cumsum(is_positive[order])[ends]
    return true, ends + 1 - true
