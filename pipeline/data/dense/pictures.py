"""What sets of pictures have in common, whatever is known of the pictures: size, channels, statistics."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.core.sizes import Size, pair, shown_size
from pipeline.data.kind import BaseDataConfig
from pipeline.models.architectures import TEXT

if TYPE_CHECKING:
    from pipeline.models.encoder import ModelConfig

MODES = {1: "L", 3: "RGB"}


def check_statistics(channels: int, mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError unless each channel has one mean and one standard deviation, of values from 0 to 1."""
    for key, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise ValueError(f"{key} has {len(values)} values, channels is {channels}; give one per channel")
    if min(std) <= 0:
        raise ValueError(f"std is {list(std)}; pixels are divided by it, so each must be above 0")
    if min(mean) < 0 or max((*mean, *std)) > 1:
        raise ValueError(
            f"mean is {list(mean)} and std {list(std)}; expected those of pixels from 0 to 1: divide by 255 what was "
            "measured from 0 to 255"
        )


def check_pictures(name: str, size: Size, model: "ModelConfig") -> None:
    """Raise ValueError where a model cannot see pictures of this size."""
    if model.family in TEXT:
        raise ValueError(f"model.arch {model.arch} reads texts, data set {name} has images; change one of them")
    patch = model.patch_size
    if patch is not None and any(side % part for side, part in zip(pair(size), pair(patch), strict=True)):
        raise ValueError(f"model.patch_size {shown_size(patch)} does not divide data.image_size {shown_size(size)}")


def _ordered(scale: tuple[float, float]) -> tuple[float, float]:
    if not 0 < scale[0] <= scale[1]:
        raise ValueError("expected two numbers above 0, the smaller one first")
    return scale


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not name:
        raise ValueError("expected a path inside the set's folder, without ..")
    return name


ScaleRange = Annotated[tuple[float, float], AfterValidator(_ordered)]
InnerPath = Annotated[str, AfterValidator(_inside)]


class DenseConfig(BaseDataConfig):
    """A set of pictures in which places are known: objects, or the class of each pixel. Squares of `image_size`."""

    view_fields: ClassVar[tuple[str, ...]] = ("image_size", "mean", "std", "scale", "hflip")
    cost_fields: ClassVar[tuple[str, ...]] = ("image_size", "channels", "num_classes")
    peak: ClassVar[float] = 255.0  # of what the views return; mean and std are those of values from 0 to 1

    image_size: int = Field(gt=0, description="side of the square that a model is trained on, in pixels")
    channels: Literal[1, 3]
    """1: grey, 3: colour. Images are converted."""
    num_classes: int = Field(gt=0)
    """Number of classes of objects or of pixels."""
    mean: tuple[float, ...]
    """Mean of each channel, of pixels from 0 to 1; subtracted."""
    std: tuple[float, ...]
    """Standard deviation of each channel, of pixels from 0 to 1; divided by."""
    part_of: str | None = Field(None, description="the set whose folder holds these images; null: its own")
    made_from: str | None = Field(
        None, description="a set of grey garments that scenes are composed of; null: published or your own files"
    )
    hflip: float = Field(0.5, ge=0, le=1)
    """Probability of mirroring an image, in training."""

    @model_validator(mode="after")
    def _one_statistic_per_channel(self) -> "DenseConfig":
        check_statistics(self.channels, self.mean, self.std)
        return self

    @property
    def input_size(self) -> Size:
        return self.image_size

    def check(self, model: "ModelConfig", micro_batch: int) -> None:
        check_pictures(self.name, self.image_size, model)
