"""mIoU, mAcc and aAcc on the validation set (DropPos Tables 1 to 6, MJP Table 9), and IoU and Acc of each class."""

import csv
import io
from typing import ClassVar, Literal

import numpy as np

from pipeline.dense.iou import Areas
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, only_for_task
from pipeline.tasks.segment import Overlaps

FILE = "classes.csv"


@EVALS.register("segmentation")
class Segmentation(Evaluation):
    class Config(EvalConfig):
        name: Literal["segmentation"] = "segmentation"

        metrics: ClassVar[tuple[str, ...]] = ("miou", "macc", "aacc")

        files: ClassVar[tuple[str, ...]] = (FILE,)

    reason_against = only_for_task("segment", "segment")
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        metric, data = Overlaps(), model.run.data
        outcome = self.over_images(model.method, data, type(model.method).measure, metric=metric)
        outcome.files[FILE] = per_class(metric.areas_of(), self.manifest(data).classes or [])
        return outcome


def per_class(areas: Areas, names: list[str]) -> bytes:
    """A table of IoU, Acc and share of the labelled pixels of each class, in per cent; empty where a class has none."""
    found, pixels = areas.shares(), areas.of_images.sum(axis=0)[1]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["class", "name", "iou", "acc", "pixels"])
    for number, name in enumerate(names):
        shares = found.iou[number], found.acc[number], 100 * pixels[number] / max(1, pixels.sum())
        writer.writerow([number, name, *("" if np.isnan(share) else f"{share:.4f}" for share in shares)])
    return buffer.getvalue().encode()
