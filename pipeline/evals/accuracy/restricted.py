"""A classifier on another set than its own: logits restricted to that set's classes, then confidence and correctness.

Columns are left out before argmax and softmax, as Hendrycks et al. (Natural Adversarial Examples, CVPR 2021) do. Which
columns those are follows from the names of the classes; for ImageNet-A and -O they are checked against the published
lists. Images are normalised and sized as the model's own set is, and resized and cropped as the other set says; of
sounds, the coefficients are the model's own.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.core.errors import DataError
from pipeline.data.readers.classes import class_names
from pipeline.data.readers.published import check_classes
from pipeline.evals.base import Evaluation, Subject
from pipeline.methods.base import Batch, Measured, Method, percent
from pipeline.tasks.metrics import MetricValues

TOP1, CONFIDENCE = "top1", "confidence"
ScoreFidelity = Literal["released", "corrected"]  # of scores that the code of Natural Adversarial Examples defines
SHAPED = ("image_size", "channels", "features", "mean", "std")


def seen_by(model: Subject, data: Any) -> Any:
    """The set as this model takes its images, or its sounds."""
    own: Any = model.run.data
    shared = [key for key in SHAPED if key in type(own).model_fields]
    lacking = [key for key in shared if key not in type(data).model_fields]
    if lacking:
        raise DataError(
            f"{data.name} is of kind {data.kind} and has no {', '.join(lacking)}; the model was trained on {own.name}, "
            f"which is of kind {own.kind}: name a set of that kind in `data` of the evaluation"
        )
    return data.model_copy(update={key: getattr(own, key) for key in shared})


def view_like(own: Any, data: Any) -> Any:
    """The model's own set, its images resized and cropped as those of the other set are."""
    augment = own.augment.model_copy(update={"interpolation": data.augment.interpolation})
    return own.model_copy(update={"augment": augment, "eval_crop": data.eval_crop})


def own_columns(evaluation: Evaluation, model: Subject, data: Any) -> list[int] | None:
    """The model's column for each label of a set; None where it has none of the classes. Some of them: an error."""
    own = model.run.data
    names = class_names(evaluation.results.manifest(own.name))
    if not set(names) & set(class_names(evaluation.results.manifest(data.name))):
        return None
    columns = evaluation.labels_in(data, own)
    check_classes(data.source, columns, names)
    return columns


def confidences(evaluation: Evaluation, model: Subject, data: Any, columns: list[int] | None) -> MetricValues:
    """Per image: whether the answer is right, and its confidence, both in per cent.

    `columns` are those of the labels of `data`; None: all of them, in the order of the model's own labels.
    """

    # On the device before the first batch: a list would be sent there with every batch, and waited for.
    chosen = None if columns is None else torch.tensor(columns, device=evaluation.world.device)

    def measure(method: Method, batch: Batch) -> dict[str, Measured]:
        logits = method.predict(batch.images).logits.float()
        answers = _answers(logits if chosen is None else logits[:, chosen])
        return {TOP1: percent(answers[1] == batch.targets), CONFIDENCE: percent(answers[0])}

    return evaluation.over_images(model.method, data, measure)


def _answers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probability and index of the most likely class."""
    found = logits.softmax(dim=1).max(dim=1)
    return found.values, found.indices


def resampled_error(statistic: Any, *groups: tuple[np.ndarray, ...], seed: int, times: int = 200) -> float:
    """Standard error of a statistic of whole sets, by the bootstrap: each group of aligned arrays is drawn again."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(times):
        drawn = []
        for arrays in groups:
            picked = rng.integers(0, len(arrays[0]), len(arrays[0]))
            drawn += [array[picked] for array in arrays]
        found.append(statistic(*drawn))
    return float(np.std(found, ddof=1))
