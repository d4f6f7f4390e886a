"""Corrupted images, the kind `corrupted`: <corruption>/<severity>/<class>/<file>, as ImageNet-C is published.

Either the published files, or files that are made here from the validation images of another set, after its script:
resize and crop the clean image, corrupt it, save it. Each corruption is a part, which is prepared on its own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote

from pydantic import Field, model_validator

from pipeline.core.config import nearest
from pipeline.data.derived.severities import CORRUPTIONS, RECIPE, SEVERITIES, Table
from pipeline.data.images.classified import ClassifiedImages, DataConfig
from pipeline.data.images.images import FileImages
from pipeline.data.kind import KINDS, Sources
from pipeline.data.readers.folder import SUFFIXES
from pipeline.data.samples import Split, SplitName, shortened


@KINDS.register("corrupted")
class CorruptedImages(ClassifiedImages):
    maker = "data/derived/corrupting.py"

    class Config(DataConfig):
        """`num_val` is the number of images of one severity of one corruption."""

        made: ClassVar[tuple[str, ...]] = ("table", "quality", "per_class", "image_size", "source_crop", "channels")
        identity_fields: ClassVar[tuple[str, ...]] = ("num_classes", "num_val", "made_from", "corruption", *made)
        view_fields: ClassVar[tuple[str, ...]] = ("augment", "eval_crop", "mean", "std")

        kind: Literal["corrupted"] = "corrupted"
        source: Literal["folder"] = "folder"
        num_train: Literal[0] = 0
        """Always 0: the set is for evaluations."""
        eval_crop: float = Field(1.0, gt=0, le=1)
        """Evaluation resizes to `image_size` / `eval_crop` and crops the centre; 1.0: the files are seen whole."""
        made_from: str | None = Field(None, description="a set whose val images are corrupted; null: published files")
        table: Table = Field("imagenet", description="parameters for images of 224 (imagenet), 64 or 32 px")
        corruption: str | None = None
        """The corruption of a part of the set; null: the whole set."""
        quality: int | None = Field(85, ge=1, le=95)
        """Quality of the JPEG files that are made; null: PNG."""
        per_class: int | None = Field(None, ge=1, description="only the first so many images of each class")
        source_crop: float = Field(
            0.875, gt=0, le=1, description="clean images are resized to image_size / source_crop, then cropped"
        )

        @model_validator(mode="after")
        def _is_a_corruption(self) -> "CorruptedImages.Config":
            if self.corruption is not None and self.corruption not in CORRUPTIONS:
                raise ValueError(f"corruption: {nearest(self.corruption, CORRUPTIONS)}")
            if self.per_class and self.num_val > self.per_class * self.num_classes:
                raise ValueError(
                    f"num_val is {self.num_val}, more than per_class {self.per_class} of each of {self.num_classes} "
                    "classes; it counts the images of one severity"
                )
            return self

        @property
        def corruptions(self) -> tuple[str, ...]:
            return (self.corruption,) if self.corruption else CORRUPTIONS

        @property
        def folder_name(self) -> str:
            return self.name.removesuffix(f"-{self.corruption}")

        def count(self, split: SplitName) -> int:
            return self.num_val * len(SEVERITIES) * len(self.corruptions) if split == "val" else 0

    cfg: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.layout = "<corruption>/<severity>/<class>/<image>, with severities 1 to 5"

    def parts(self) -> Mapping[str, DataConfig]:
        if self.cfg.corruption:
            return {}
        return {
            part: self.cfg.model_copy(update={"name": f"{self.cfg.name}-{part}", "corruption": part})
            for part in CORRUPTIONS
        }

    def read(self, folder: Path, split: SplitName) -> Split:
        """In the order of corruption, severity, class and file. Other folders, such as those of ImageNet-C's extra
        corruptions, are left alone."""
        listed = [_listed(folder, corruption, self.cfg.num_val) for corruption in self.cfg.corruptions]
        names = [name for files, _ in listed for name in files]
        classes = sorted({class_of(name) for name in names})
        label_of_class = {name: label for label, name in enumerate(classes)}
        samples = FileImages(folder, names, [label_of_class[class_of(name)] for name in names])
        return self._set_mode(Split(samples, classes, [problem for _, found in listed for problem in found]))

    def is_there(self, folder: Path) -> bool:
        """Published files have no recipe next to them."""
        found = [folder / corruption / RECIPE for corruption in self.cfg.corruptions]
        if any(path.exists() for path in found) or not folder.is_dir():
            return False
        split = self.read(folder, "val")
        return not split.problems and not self.count_problems("val", split)

    def make(self, folder: Path, sources: Sources, workers: int, progress: bool) -> None:
        from pipeline.data.derived.corrupting import make_corrupted  # torch and scipy, which a launcher does not need

        make_corrupted(self.cfg, folder, sources, workers, progress)


def severity_of(name: str) -> int:
    """Return the severity of a file from its name in the set."""
    return int(name.split("/")[1])


def class_of(name: str) -> str:
    return unquote(name.split("/")[2])


def origin_of(name: str) -> str:
    """The clean image of a file: class and name, which all corruptions and severities share."""
    folder, file = name.split("/")[2:]
    return f"{folder}/{os.path.splitext(file)[0]}"  # a set has millions: Path takes three times as long


def _listed(folder: Path, corruption: str, expected: int) -> tuple[list[str], list[str]]:
    """The files of one corruption, and all that is wrong with them."""
    names, problems, first = [], [], None
    missing = [str(severity) for severity in SEVERITIES if not (folder / corruption / str(severity)).is_dir()]
    if missing:
        what = "folder" if len(missing) == len(SEVERITIES) else f"severity {', '.join(missing)}"
        return [], [f"{corruption}: {what} not found"]
    for severity in SEVERITIES:
        inside = f"{corruption}/{severity}"
        found = [f"{inside}/{file}" for file in _images_in(folder / inside)]
        origins = [origin_of(name) for name in found]
        if len(found) != expected:
            problems.append(f"{inside}: found {len(found)} images, expected {expected}")
        elif first is not None and origins != first:
            other = shortened(sorted({*origins} ^ {*first}), 3)
            problems.append(f"{inside}: found other images than in severity {SEVERITIES[0]}: {other}")
        first = origins if first is None else first
        names += found
    return names, problems


def _images_in(folder: Path) -> list[str]:
    """<class>/<file> of each image, in order; a name that begins with a dot is one that is being written."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    files = ((name, sorted(entry.name for entry in os.scandir(folder / name))) for name in classes)
    return [
        f"{name}/{file}"
        for name, inside in files
        for file in inside
        if file.lower().endswith(SUFFIXES) and not file.startswith(".")
    ]
