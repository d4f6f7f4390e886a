"""Pictures with objects, the kind `detection`: COCO in its published layout, or your own set in COCO's format.

A view returns (inputs, targets). Inputs: uint8 (C, S, S), the picture in the top left corner and zeros around it.
Targets are a dict of tensors. In training:
    boxes   float32 (n, 4)      x1 y1 x2 y2 in pixels of the input: the bounds of what is seen of the object
    labels  int64 (n,)          1 to num_classes
    edges   float64 (n, E, 4)   x1 y1 x2 y2 of the edges of its polygons, zeros after the last; with `polygons` alone
    masks   uint8 (m, S, S)     1 inside the object; with `polygons` of those objects that are published as runs alone
    with_mask  int64 (m,)       which objects those are; with `polygons` alone
    size    int64 (2,)          height and width of the part that is picture
In evaluation `size`, and what the truth is, in pixels of the published picture:
    index, image_id  int64 ()   place in the split; the set's own number
    original         int64 (2,) height and width as published
    gt_boxes         float64 (n, 4)  x, y, width, height; gt_labels int64, gt_crowd uint8, gt_area float64, gt_ids int64
    gt_rle           uint8      compressed run lengths of all objects, one after the other; gt_rle_sizes int64 (n,)
n may be 0. Crowds are never trained on; in evaluation they are there, marked.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from pipeline.data.dense.coco_samples import CocoSamples
from pipeline.data.dense.dense import DenseKind
from pipeline.data.dense.objects import read_table, written
from pipeline.data.dense.pictures import DenseConfig, InnerPath, ScaleRange
from pipeline.data.kind import KINDS, View, common_summary
from pipeline.data.readers.coco import ANNOTATIONS, IMAGES, read_coco
from pipeline.data.samples import Split, SplitName
from pipeline.data.store.inspection import ImageInspection, image_problems, inspect_images
from pipeline.data.store.manifest import SplitSummary


class DetectionConfig(DenseConfig):
    """A set of pictures with objects."""

    identity_fields: ClassVar[tuple[str, ...]] = (
        *("source", "num_classes", "num_train", "num_val", "drop_empty", "made_from"),
        *("train_images", "val_images", "train_annotations", "val_annotations"),
    )
    tasks: ClassVar[tuple[str, ...]] = ("detect",)

    view_fields: ClassVar[tuple[str, ...]] = (*DenseConfig.view_fields, "outlines")

    kind: str = "detection"
    source: Literal["coco"] = "coco"
    """Layout in which the set is read: JSON lists in COCO's format."""
    scale: ScaleRange = Field((0.1, 2.0), description="large-scale jitter: the picture fits into so many image_size")
    outlines: Literal["polygons", "bitmaps"] = Field(
        "polygons", description="what is trained on: polygons, as detectron2, or bitmaps drawn at the size of the view"
    )
    drop_empty: bool = Field(True, description="train pictures without an object other than a crowd are left out")
    train_images: InnerPath = Field(IMAGES["train"], description="folder of the train images, in the set's folder")
    val_images: InnerPath = IMAGES["val"]
    """Folder of the val images, in the set's folder."""
    train_annotations: InnerPath = Field(ANNOTATIONS["train"], description="list of the train images and objects")
    val_annotations: InnerPath = ANNOTATIONS["val"]
    """List of the val images and objects."""


@KINDS.register("detection")
class Detection(DenseKind):
    Config: ClassVar[type[DetectionConfig]] = DetectionConfig
    cfg: DetectionConfig

    def __init__(self, cfg: DetectionConfig) -> None:
        super().__init__(cfg)
        self.layout = f"{cfg.train_images}/*, {cfg.val_images}/*, {cfg.train_annotations}, {cfg.val_annotations}"

    def read(self, folder: Path, split: SplitName) -> Split:
        drop_empty = self.cfg.drop_empty and split == "train"
        return self._set_mode(read_coco(folder, split, *self._names(split), drop_empty))

    def find(self, folder: Path, split: SplitName, index: Path) -> Split:
        """From the arrays that `prepare` wrote."""
        return self._set_mode(Split(CocoSamples(folder, *self._names(split), read_table(index / _index_of(split)))))

    def _names(self, split: SplitName) -> tuple[str, str]:
        cfg = self.cfg
        if split == "train":
            return cfg.train_images, cfg.train_annotations
        return cfg.val_images, cfg.val_annotations

    def train_view(self) -> View:
        from pipeline.data.dense.detection_views import JitteredView

        return JitteredView(self.cfg.image_size, self.cfg.scale, self.cfg.hflip, self.cfg.outlines)

    def eval_view(self) -> View:
        from pipeline.data.dense.detection_views import WholeView

        return WholeView(self.cfg.image_size)

    def expected(self) -> str:
        return f"{super().expected()} with objects of {self.cfg.num_classes} classes"

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        problems, expected = super().count_problems(split, found), self.cfg.num_classes
        number = len(found.samples.category_ids)
        if number != expected and (number or not found.problems):
            problems.append(f"{split}: found {number} categories, expected {expected}")
        return problems

    def split_problems(self, splits: Mapping[SplitName, Split]) -> list[str]:
        """Labels count the categories, so that both lists must have the same."""
        known = {name: (found.samples.category_ids, found.classes) for name, found in splits.items() if found.classes}
        if len(known) == 2 and known["train"] != known["val"]:
            return ["train and val have other categories: expected the same ids and names in both lists"]
        return []

    def inspect(self, splits: Mapping[SplitName, Split], workers: int, progress: bool) -> dict[SplitName, list[Any]]:
        return {**inspect_images(self.cfg.name, splits, workers, progress)}

    def sample_problems(self, samples: CocoSamples, looks: Sequence[ImageInspection]) -> list[str]:
        problems = image_problems(samples, looks)
        for index, look in enumerate(looks):
            height, width = samples.table.sizes[index]
            if not look.problem and look.size != (width, height):
                found = f"found {look.size[0]}x{look.size[1]} pixels"
                problems.append(f"{samples.name(index)}: {found}, {samples.annotations} says {width}x{height}")
        return problems

    def summary(self, samples: CocoSamples, looks: Sequence[ImageInspection]) -> SplitSummary:
        table = samples.table
        per_class = np.bincount(table.labels, minlength=self.cfg.num_classes + 1)[1:]
        return SplitSummary(
            **common_summary(samples, looks),
            objects=len(table.ids),
            crowds=int(table.crowds.sum()),
            images_without_objects=int((np.diff(table.starts) == 0).sum()),
            boxes_without_extent=int((table.boxes[:, 2:].min(axis=1, initial=np.inf) == 0).sum()),
            per_class_min=int(per_class.min()),
            per_class_max=int(per_class.max()),
        )

    def lists(self, splits: Mapping[SplitName, Split]) -> Mapping[str, str | bytes]:
        return {_index_of(name): written(split.samples.table) for name, split in splits.items()}


def _index_of(split: SplitName) -> str:
    return f"{split}.safetensors"
