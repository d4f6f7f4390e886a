"""What the training view does to an image, as config; `transforms.py` does it."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.core.config import Strict

Share = Annotated[float, Field(gt=0, le=1)]


class Augment(Strict):
    """The training view. Mixing needs an even micro-batch."""

    crop: Literal["resized", "padded", "none"] = "resized"
    """resized: a random crop, resized to `image_size`. padded: a crop of the same size after padding. none: the whole
    image.
    """
    scale: tuple[Share, Share] = Field((0.08, 1.0), description="area range of a resized crop")
    padding: int = Field(4, ge=0, description="pixels around the image before a padded crop")
    hflip: float = Field(0.5, ge=0, le=1)
    """Probability of mirroring an image."""
    rand_augment: str | None = Field(
        None,
        pattern=r"^rand(-(m|mstd|mmax|n|p|inc|w|t)[\d.]+)+$",
        description="timm's name, such as rand-m9-mstd0.5-inc1",
    )
    color_jitter: float | None = Field(None, ge=0)
    """Largest relative change of brightness, contrast and saturation; null: none."""
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    """Filter with which images are resized in training."""
    erasing: float = Field(0.0, ge=0, le=1)
    """Probability of erasing a random box of an image."""
    mixup: float = Field(0.0, ge=0, description="alpha of the beta distribution; 0 switches it off")
    cutmix: float = Field(0.0, ge=0)
    """Alpha of the beta distribution of CutMix; 0 switches it off."""
    mix_prob: float = Field(1.0, ge=0, le=1)
    """Probability that a micro-batch is mixed at all."""
    mix_switch_prob: float = Field(0.5, ge=0, le=1)
    """Probability of CutMix rather than mixup where both are on."""
    repeats: int = Field(1, ge=1, description="repeated augmentation: views of one image in an epoch")
