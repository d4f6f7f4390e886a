"""What the training view does to an image, as config; `transforms.py` does it."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Strict

Share = Annotated[float, Field(gt=0, le=1)]


class Augment(Strict):
    """The training view. Mixing needs an even micro-batch."""

    crop: Literal["resized", "padded", "none"] = "resized"
    scale: tuple[Share, Share] = Field((0.08, 1.0), description="area range of a resized crop")
    padding: int = Field(4, ge=0, description="pixels around the image before a padded crop")
    hflip: float = Field(0.5, ge=0, le=1)
    rand_augment: str | None = Field(
        None,
        pattern=r"^rand(-(m|mstd|mmax|n|p|inc|w|t)[\d.]+)+$",
        description="timm's name, such as rand-m9-mstd0.5-inc1",
    )
    color_jitter: float | None = Field(None, ge=0)
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    erasing: float = Field(0.0, ge=0, le=1)
    mixup: float = Field(0.0, ge=0, description="alpha of the beta distribution; 0 switches it off")
    cutmix: float = Field(0.0, ge=0)
    mix_prob: float = Field(1.0, ge=0, le=1)
    mix_switch_prob: float = Field(0.5, ge=0, le=1)
    repeats: int = Field(1, ge=1, description="repeated augmentation: views of one image in an epoch")
