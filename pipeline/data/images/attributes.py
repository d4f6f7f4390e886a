"""Images with attributes, the kind `attributes`: each of them is there or not, and an image may have any number.

The label of an image is a number whose bit i says whether it has attribute i, so that lists, stamps and fingerprints
are those of classified images; the task `attributes` makes targets of it.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import model_validator

from pipeline.data.images.classified import ClassifiedImages, DataConfig
from pipeline.data.images.images import ImageSet
from pipeline.data.kind import KINDS, DataKind
from pipeline.data.samples import Split, SplitName
from pipeline.data.store.inspection import ImageInspection
from pipeline.data.store.manifest import ImageSummary


class AttributeConfig(DataConfig):
    """A set of images with attributes, which `num_classes` counts."""

    tasks: ClassVar[tuple[str, ...]] = ("attributes",)
    has_attributes: ClassVar[bool] = True

    kind: str = "attributes"

    @model_validator(mode="after")
    def _uses_no_classes(self) -> "AttributeConfig":
        augment = self.augment
        given = {
            "only_classes": self.only_classes,
            "without_classes": self.without_classes,
            "augment.mixup": augment.mixup,
            "augment.cutmix": augment.cutmix,
        }
        wrong = [key for key, value in given.items() if value]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: for images with one class each, these have attributes; remove it")
        return self


@KINDS.register("attributes")
class AttributeImages(ClassifiedImages):
    Config: ClassVar[type[DataConfig]] = AttributeConfig

    def expected(self) -> str:
        return f"{DataKind.expected(self)} with {self.cfg.num_classes} attributes"

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        problems, expected = DataKind.count_problems(self, split, found), self.cfg.num_classes
        if found.classes and len(found.classes) != expected:
            problems.append(f"{split}: found {len(found.classes)} attributes, expected {expected}")
        return problems

    def summary(self, samples: ImageSet, looks: Sequence[ImageInspection]) -> ImageSummary:
        """`per_class_min` and `per_class_max` are how often the rarest and the commonest attribute occur."""
        labels = np.asarray(samples.labels)
        counts = [int((labels >> bit & 1).sum()) for bit in range(self.cfg.num_classes)]
        occurrences = {"per_class_min": min(counts), "per_class_max": max(counts)}
        return super().summary(samples, looks).model_copy(update={"classes": len(counts), **occurrences})
