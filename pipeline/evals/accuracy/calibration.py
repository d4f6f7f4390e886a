"""Does confidence tell the share of right answers? Calibration errors and the reliability diagram of a classifier.

ECE (Guo et al., ICML 2017) compares confidence and accuracy in bins of equal width; the RMS calibration error
(Hendrycks et al., CVPR 2021) in bins of equally many images, in the order of confidence. The diagram has ten bins, each
a metric: `reliability_85` is the accuracy of answers with a confidence above 80 and up to 90 per cent. The released
code of the RMS calibration error leaves out the last bin, of the surest answers, by mistake (`fidelity: released`).
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from pipeline.evals.accuracy.restricted import CONFIDENCE, TOP1, ScoreFidelity, confidences, resampled_error
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.tasks.metrics import standard_error

DIAGRAM = 10  # bins of the reliability diagram
CENTRES = tuple(range(100 // DIAGRAM // 2, 100, 100 // DIAGRAM))  # per cent


@EVALS.register("calibration")
class Calibration(Evaluation):
    class Config(EvalConfig):
        name: Literal["calibration"] = "calibration"
        bins: int = Field(15, ge=1)
        """Bins of equal width, for the expected calibration error (ECE)."""
        per_bin: int = Field(100, ge=1, description="images in a bin of the RMS calibration error")
        fidelity: ScoreFidelity = "corrected"
        """How the RMS calibration error is computed: over all bins, or as released."""

        metrics: ClassVar[tuple[str, ...]] = (
            TOP1,
            CONFIDENCE,
            "ece",
            "rms_calibration",
            *(f"reliability_{centre}" for centre in CENTRES),
        )

    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        data, cfg = model.run.data, self.cfg
        found = confidences(self, model, data, None)
        confidence, right = found.per_image[CONFIDENCE].astype(np.float64) / 100, found.per_image[TOP1] / 100
        metrics, errors, reasons = {**found.metrics}, {**found.errors}, {}
        rms = partial(rms_calibration, per_bin=cfg.per_bin, fidelity=cfg.fidelity)
        for name, error_of in (("ece", partial(ece, bins=cfg.bins)), ("rms_calibration", rms)):
            metrics[name] = 100 * error_of(confidence, right)
            errors[name] = 100 * resampled_error(error_of, (confidence, right), seed=cfg.seed)
        for centre, hits in zip(CENTRES, binned(confidence, right, DIAGRAM), strict=True):
            name = f"reliability_{centre}"
            if len(hits):
                metrics[name], errors[name] = 100 * float(hits.mean()), 100 * standard_error(hits)
            else:
                reasons[name] = f"no answer has a confidence of {centre - 5} to {centre + 5} %"
        images = self.manifest(data).splits["val"].fingerprint
        return Outcome(metrics, errors, found.count, found.per_image, reasons=reasons, images=images)


def ece(confidence: np.ndarray, right: np.ndarray, bins: int) -> float:
    """Mean over images of |accuracy - confidence| of their bin."""
    pairs = zip(binned(confidence, right, bins), binned(confidence, confidence, bins), strict=True)
    return float(sum(abs(hits.sum() - sure.sum()) for hits, sure in pairs) / len(right))


def rms_calibration(
    confidence: np.ndarray, right: np.ndarray, per_bin: int, fidelity: ScoreFidelity = "corrected"
) -> float:
    """Root of the mean over images of the squared difference in their bin; the last bin takes the rest.

    As released, the last bin is counted among the images and not in the sum.
    """
    order = np.argsort(confidence, kind="stable")
    starts = np.arange(max(1, len(order) // per_bin)) * per_bin
    counts = np.diff(np.append(starts, len(order)))
    gaps = (np.add.reduceat(right[order], starts) - np.add.reduceat(confidence[order], starts)) / counts
    summed = slice(-1) if fidelity == "released" else slice(None)
    return float(np.sqrt(np.sum((counts * gaps**2)[summed]) / len(order)))


def binned(confidence: np.ndarray, values: np.ndarray, bins: int) -> Iterator[np.ndarray]:
    """The values of each bin of confidence, from the lowest; a bin has its upper edge."""
    place = np.digitize(confidence, np.arange(1, bins) / bins, right=True)
    return (values[place == number] for number in range(bins))
