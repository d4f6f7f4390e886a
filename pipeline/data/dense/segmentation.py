"""Pictures with the class of each pixel, the kind `segmentation`: ADE20K as published, or your own in its layout.

A view returns (inputs, targets). In training: uint8 (C, S, S) and uint8 (S, S), the class of each pixel from 0 on, 255
where it is unknown or outside the picture. In evaluation pictures keep their aspect ratio: inputs are uint8 (C, H, W)
with the shorter side S, unless the longer one would exceed 4 S; targets are {"labels": uint8 (h, w)} in the size of the
published picture.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from tqdm import tqdm

from pipeline.data.dense.dense import DenseKind
from pipeline.data.dense.pictures import DenseConfig, ScaleRange
from pipeline.data.kind import KINDS, View, common_summary
from pipeline.data.readers.ade20k import IGNORED, PairInspection, SceneSamples, inspect_pair, read_ade20k
from pipeline.data.samples import Split, SplitName
from pipeline.data.store.inspection import mapper
from pipeline.data.store.lists import read_list, written_list
from pipeline.data.store.manifest import SplitSummary

LIST_HEADER = ["image", "classes"]


class SegmentationConfig(DenseConfig):
    """A set of pictures with the class of each pixel."""

    identity_fields: ClassVar[tuple[str, ...]] = (
        "source",
        "num_classes",
        "num_train",
        "num_val",
        "ignored",
        "made_from",
    )
    view_fields: ClassVar[tuple[str, ...]] = (*DenseConfig.view_fields, "max_class_share", "photometric")
    tasks: ClassVar[tuple[str, ...]] = ("segment",)

    kind: str = "segmentation"
    source: Literal["ade20k"] = "ade20k"
    """Layout in which the set is read: that of ADE20K."""
    scale: ScaleRange = Field(
        (0.5, 2.0), description="the picture is resized by a factor of these before it is cropped"
    )
    max_class_share: float = Field(
        0.75, gt=0, le=1, description="crops in which one class covers more are drawn again, up to 10 times; 1: never"
    )
    photometric: bool = Field(True, description="brightness, contrast, saturation and hue are distorted at random")
    ignored: Literal[0, 255] = Field(
        0, description="the number that stands for no class; 0: classes are 1 to num_classes, 255: 0 to num_classes - 1"
    )

    @model_validator(mode="after")
    def _fits_into_a_byte(self) -> "SegmentationConfig":
        if self.num_classes > IGNORED:
            raise ValueError(f"num_classes is {self.num_classes}; a pixel has 8 bits, so there are at most {IGNORED}")
        return self

    @property
    def first_class(self) -> int:
        """The number of the first class in the files."""
        return 1 if self.ignored == 0 else 0

    @property
    def allowed(self) -> frozenset[int]:
        """The numbers that files may have."""
        return frozenset({*range(self.first_class, self.first_class + self.num_classes), self.ignored})


@KINDS.register("segmentation")
class Segmentation(DenseKind):
    Config: ClassVar[type[SegmentationConfig]] = SegmentationConfig
    layout = (
        "images/{training,validation}/*.jpg, annotations/{training,validation}/*.png and objectInfo150.txt, in the "
        "folder or in ADEChallengeData2016/ of it"
    )
    cfg: SegmentationConfig

    def read(self, folder: Path, split: SplitName) -> Split:
        return self._set_mode(read_ade20k(folder, split))

    def find(self, folder: Path, split: SplitName, index: Path) -> Split:
        """From the list that `prepare` wrote."""
        rows = read_list(index / f"{split}.csv", LIST_HEADER, str)
        return self._set_mode(Split(SceneSamples(folder, [image for image, _ in rows], [mask for _, mask in rows])))

    def train_view(self) -> View:
        from pipeline.data.dense.segmentation_views import CroppedView

        return CroppedView(self.cfg)

    def eval_view(self) -> View:
        from pipeline.data.dense.segmentation_views import WholeView

        return WholeView(self.cfg)

    def expected(self) -> str:
        return f"{super().expected()} with pixels of {self.cfg.num_classes} classes"

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        problems, named = super().count_problems(split, found), len(found.classes)
        if named and named != self.cfg.num_classes:
            problems.append(f"{split}: found names of {named} classes, expected {self.cfg.num_classes}")
        return problems

    def class_names(self, splits: Mapping[SplitName, Split]) -> list[str]:
        numbers = range(self.cfg.first_class, self.cfg.first_class + self.cfg.num_classes)
        return super().class_names(splits) or [f"class {number}" for number in numbers]

    def inspect(self, splits: Mapping[SplitName, Split], workers: int, progress: bool) -> dict[SplitName, list[Any]]:
        return {**inspect_pairs(self.cfg.name, splits, self.cfg.allowed, workers, progress)}

    def summary(self, samples: SceneSamples, looks: Sequence[PairInspection]) -> SplitSummary:
        widths, heights = zip(*(look.image.size for look in looks), strict=True)
        present = np.bincount(np.frombuffer(b"".join(look.values for look in looks), np.uint8), minlength=256)
        first = self.cfg.first_class
        return SplitSummary(
            **common_summary(samples, looks),
            classes=int((present[first : first + self.cfg.num_classes] > 0).sum()),
            images_with_ignored_pixels=int(present[self.cfg.ignored]),
            min_size=(min(widths), min(heights)),
            max_size=(max(widths), max(heights)),
        )

    def lists(self, splits: Mapping[SplitName, Split]) -> Mapping[str, str | bytes]:
        return {f"{name}.csv": _list_of_pairs(split.samples) for name, split in splits.items()}


def inspect_pairs(
    name: str,
    splits: Mapping[SplitName, Split],
    allowed: frozenset[int],
    workers: int,
    progress: bool,
    measured_in: str = "",
) -> dict[SplitName, list[PairInspection]]:
    """Decode the pictures and classes of all splits."""
    found = {}
    with mapper(workers) as run:
        for split, content in splits.items():
            pairs = [tuple(map(str, content.samples.paths(index))) for index in range(len(content.samples))]
            looks = run(partial(inspect_pair, allowed=allowed, measured_in=measured_in), pairs)
            found[split] = list(tqdm(looks, f"{name} {split}", len(pairs), unit="img", disable=not progress))
    return found


def _list_of_pairs(samples: SceneSamples) -> str:
    return written_list(LIST_HEADER, ((samples.name(i), samples.masks.name(i)) for i in range(len(samples))))
