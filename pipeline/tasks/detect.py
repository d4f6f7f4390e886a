"""Detection: the objects of an image, each with a class, a box and a mask; judged by COCO's average precision.

A batch is images of one size, each in the top left corner of its square, and for each image a dict of what is known of
it (see pipeline/data/dense/detection.py).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pipeline.core.errors import DataError
from pipeline.core.sizes import pair
from pipeline.dense.average_precision import ImageRecord, average_precision, record_of
from pipeline.methods.base import Primary
from pipeline.tasks.base import TASKS
from pipeline.tasks.dense import DenseTask
from pipeline.tasks.metrics import Metric, MetricValues

if TYPE_CHECKING:
    from pipeline.data.dense.detection import DetectionConfig

Targets = list[dict[str, Tensor]]
EXAMPLE_OBJECTS = 7  # COCO has 7.3 in an image
EXAMPLE_EDGES = 200  # of the object with most of them
ON_DEVICE = (
    "boxes",
    "labels",
    "edges",
    "masks",
    "with_mask",
    "size",
)  # what a method needs; the truth of an evaluation is for the host


@TASKS.register("detect")
class Detect(DenseTask):
    primary: ClassVar[Primary | None] = Primary("ap_b")
    name, kind, marked = "detect", "detection", "objects"

    @classmethod
    def example(cls, data: "DetectionConfig", count: int) -> tuple[Tensor, Targets]:
        height, width = pair(data.input_size)
        target = {
            "labels": torch.ones(EXAMPLE_OBJECTS, dtype=torch.long),
            "size": torch.tensor([height, width]),
            "boxes": torch.tensor([[0.0, 0.0, width, height]]).repeat(EXAMPLE_OBJECTS, 1),
        }
        if data.outlines == "polygons":
            target["edges"] = torch.zeros(EXAMPLE_OBJECTS, EXAMPLE_EDGES, 4, dtype=torch.float64)
            target["masks"] = torch.zeros(0, height, width, dtype=torch.uint8)
            target["with_mask"] = torch.zeros(0, dtype=torch.long)
        else:
            target["masks"] = torch.ones(EXAMPLE_OBJECTS, height, width, dtype=torch.uint8)
        return torch.zeros(count, data.channels, height, width), [dict(target) for _ in range(count)]

    def collate(self, samples: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, Targets]:
        """Images in one tensor; they have different numbers of objects."""
        inputs, targets = zip(*samples, strict=True)
        return torch.stack(inputs), list(targets)

    def train_batch(self, inputs: Tensor, targets: Targets) -> tuple[Tensor, Targets]:
        """uint8 images -> float ones, zero outside of the picture."""
        return self.eval_batch(inputs, targets)

    def eval_batch(self, inputs: Tensor, targets: Targets) -> tuple[Tensor, Targets]:
        """The truth stays on the host, where it is compared."""
        known = [{name: self._move_to_device(name, value) for name, value in each.items()} for each in targets]
        images = self.normalise(inputs)
        return images * is_picture(images, torch.stack([each["size"] for each in known])), known

    def _move_to_device(self, name: str, value: Tensor) -> Tensor:
        return value.to(self.device, non_blocking=True) if name in ON_DEVICE else value

    def metric(self) -> Metric:
        return AveragePrecision()


def is_picture(images: Tensor, sizes: Tensor) -> Tensor:
    """(B, 1, H, W) bool: not padding; sizes (B, 2) are heights and widths."""
    rows, cols = (torch.arange(count, device=images.device) for count in images.shape[2:])
    inside = (rows[:, None] < sizes[:, :1, None]) & (cols < sizes[:, 1:, None])
    return inside[:, None]


class AveragePrecision(Metric):
    """COCO's twelve statistics of boxes and of masks, over a whole set; standard errors with `resamples` of images."""

    def __init__(self, resamples: int = 0, seed: int = 0) -> None:
        self.resamples, self.seed = resamples, seed
        self.batches: dict[int, list[ImageRecord]] = {}

    def update(self, values: Sequence[Any], number: int) -> None:
        """Detections and targets of each image. Waits for the device: masks in full size would not fit there."""
        self.batches[number] = [record_of(detections, target) for detections, target in values]

    def state(self) -> dict[int, list[ImageRecord]]:
        return self.batches

    def merge(self, states: Sequence[dict[int, list[ImageRecord]]]) -> None:
        self.batches = {number: batch for state in states for number, batch in state.items()}

    def compute(self) -> MetricValues:
        records = [record for number in sorted(self.batches) for record in self.batches[number]]
        found = average_precision(records, self.resamples, self.seed)
        if "ap_b" not in found.metrics:
            raise DataError(f"none of {len(records)} images has an object that counts; average precision needs one")
        return MetricValues(found.metrics, found.errors, len(records))
