"""Images without labels, the kind `unlabelled`: the images of any folder, for pretraining.

Every image has label 0, which no method that pretrains looks at, so that lists, stamps, caches and loaders are those of
classified images. A run that is pretrained on them is finetuned on a labelled set, where evaluations then take place.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from pipeline.data.images.classified import ClassifiedImages, DataConfig
from pipeline.data.kind import KINDS, DataKind


class UnlabelledConfig(DataConfig):
    """A set of images without labels."""

    identity_fields: ClassVar[tuple[str, ...]] = ("source", "num_train", "num_val", "val_share", "left_out", "upright")
    has_labels: ClassVar[bool] = False

    kind: str = "unlabelled"
    source: str = "any_depth"
    num_classes: Literal[1] = Field(1, description="the label 0, which every image has and no method looks at")
    left_out: tuple[str, ...] = Field(
        (), description="files that are not read, as paths in the folder: damaged or too small when it was described"
    )

    @model_validator(mode="after")
    def _chooses_no_classes(self) -> "UnlabelledConfig":
        wrong = [key for key in ("only_classes", "without_classes") if getattr(self, key) is not None]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: for images with classes, these have none; remove it")
        return self


@KINDS.register("unlabelled")
class UnlabelledImages(ClassifiedImages):
    Config: ClassVar[type[DataConfig]] = UnlabelledConfig

    def expected(self) -> str:
        return f"{DataKind.expected(self)} without labels"
