"""Errors on corrupted images: 15 corruptions at 5 severities (ImageNet-C, Hendrycks and Dietterich 2019; MJP Table 2).

In per cent: `error` is the mean of all 75 top-1 errors. `ce_<corruption>` is the mean error over the severities of a
corruption divided by AlexNet's, and `mce` the mean of the 15: AlexNet itself has 100. AlexNet's errors are those on
ImageNet-C; for another set say `normalise_by: none`. Standard errors take the clean images as the sample: the 75
versions of one image are not independent.
"""

import hashlib
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch

from pipeline.core.errors import DataError
from pipeline.data.derived.corrupted import CorruptedImages, origin_of, severity_of
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES
from pipeline.data.store.opening import find_samples
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.methods.base import Batch, Measured, Method, percent
from pipeline.site import data_folder
from pipeline.tasks.metrics import standard_error

# Mean top-1 error of AlexNet over the severities of each corruption of ImageNet-C, as published.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
NORMALISED = ("mce", *(f"ce_{corruption}" for corruption in CORRUPTIONS))


@EVALS.register("corruptions")
class Corruptions(Evaluation):
    class Config(EvalConfig):
        name: Literal["corruptions"] = "corruptions"
        normalise_by: Literal["alexnet", "none"] = "alexnet"
        """alexnet: errors are divided by those of AlexNet on ImageNet-C. none: raw errors, for other sets."""

        metrics: ClassVar[tuple[str, ...]] = (
            "error",
            *NORMALISED,
            *(f"error_{corruption}" for corruption in CORRUPTIONS),
            *(f"top1_severity_{severity}" for severity in SEVERITIES),
            *(f"top1_{corruption}_{severity}" for corruption in CORRUPTIONS for severity in SEVERITIES),
        )

    data_roles = ("corrupted",)
    needs_labels = True
    needs_pixels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        parts = self.data_parts("corrupted")
        if set(parts) != set(CORRUPTIONS):
            raise DataError(
                f"found a data set in the parts {', '.join(parts) or 'none'}, expected the 15 corruptions; name a set "
                "of the kind `corrupted` under `data: {corrupted: ...}`"
            )
        self._check_images(parts)
        found = {part: self.parts.once(part, partial(self.errors_on, model, parts[part])) for part in CORRUPTIONS}
        errors = np.stack([found[part]["errors"] for part in CORRUPTIONS])
        values = values_per_image(errors)
        reasons = {}
        if self.cfg.normalise_by == "none":
            reasons = dict.fromkeys(NORMALISED, "AlexNet's errors are those on ImageNet-C; this is another set")
        kept = {name: value for name, value in values.items() if name not in reasons}
        prints = [self.manifest(parts[part]).splits["val"].fingerprint for part in CORRUPTIONS]
        return Outcome(
            metrics={name: float(value.mean()) for name, value in kept.items()},
            errors={name: standard_error(value) for name, value in kept.items()},
            count=errors.shape[2],
            per_image={"error": values["error"].astype(np.float32)},
            reasons=reasons,
            images=hashlib.sha256("".join(prints).encode()).hexdigest(),
        )

    def _check_images(self, parts: dict[str, CorruptedImages.Config]) -> None:
        """Every corruption and severity has the same images in the same order."""
        first: list[str] = []
        for data in parts.values():
            samples = find_samples(data, data_folder(self.site, data), "val", self.results.manifest(data.name).parent)
            origins: dict[int, list[str]] = {severity: [] for severity in SEVERITIES}
            for name in map(samples.name, range(len(samples))):
                origins[severity_of(name)].append(origin_of(name))
            for severity in SEVERITIES:
                first = first or origins[severity]
                if origins[severity] != first:
                    raise DataError(
                        f"{data.name}: severity {severity} has other images than {next(iter(parts))}; expected the "
                        "same clean images in all; delete the folder of one of them, so that it is made again"
                    )

    def errors_on(self, model: Subject, data: CorruptedImages.Config) -> dict[str, np.ndarray]:
        """(severities, images): 100 where the class is wrong, else 0. Images are seen as those of the model are."""
        trained = model.run.data
        seen = data.model_copy(update={key: getattr(trained, key) for key in ("image_size", "mean", "std", "augment")})
        labels = torch.tensor(self.labels_in(data, trained), device=self.world.device)

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            return {"error": percent(method.predict(batch.images).logits.argmax(dim=1) != labels[batch.targets])}

        wrong = self.over_images(model.method, seen, measure).per_image["error"]
        return {"errors": wrong.reshape(len(SEVERITIES), -1)}


def values_per_image(errors: np.ndarray) -> dict[str, np.ndarray]:
    """From (corruptions, severities, images), in per cent, to one value per clean image of each metric, its mean."""
    errors = errors.astype(np.float64)
    by_corruption = dict(zip(CORRUPTIONS, errors.mean(axis=1), strict=True))
    normalised = {name: value / ALEXNET[name] for name, value in by_corruption.items()}
    return {
        "error": errors.mean(axis=(0, 1)),
        "mce": np.mean([*normalised.values()], axis=0),
        **{f"ce_{name}": value for name, value in normalised.items()},
        **{f"error_{name}": value for name, value in by_corruption.items()},
        **{
            f"top1_severity_{severity}": 100 - errors[:, place].mean(axis=0)
            for place, severity in enumerate(SEVERITIES)
        },
        **{
            f"top1_{name}_{severity}": 100 - errors[row, place]
            for row, name in enumerate(CORRUPTIONS)
            for place, severity in enumerate(SEVERITIES)
        },
    }
