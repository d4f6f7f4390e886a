"""Views of an image: timm's transforms for training and validation, and what becomes of whole batches.

Every random choice is a function of (seed, epoch, position in the epoch) or (seed, step, micro-batch): the view of a
picture does not depend on the number of processes, of loader workers, or on where a run was interrupted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipeline.core.cuda_graph import Replayed
from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.sizes import pair
from pipeline.core.trees import pinned, send
from pipeline.data.images.augment import Augment
from pipeline.data.images.mixing import EMPTY, Erasing, Mixing, erase, mix, soft_targets
from pipeline.data.readers.sources import SOURCES

if TYPE_CHECKING:
    from pipeline.data.images.classified import DataConfig

View = Callable[..., Tensor | np.ndarray]  # PIL image -> uint8 (C, H, W)


def train_view(data: "DataConfig", augment: Augment) -> View:
    """The training view."""
    with dynamo_deferred():
        from timm.data import create_transform
        from torchvision import transforms as T

    _mend_posterize()
    size = data.image_size
    if augment.crop == "resized":
        return create_transform(
            size,
            is_training=True,
            use_prefetcher=True,
            scale=augment.scale,
            hflip=augment.hflip,
            color_jitter=augment.color_jitter,
            auto_augment=augment.rand_augment,
            interpolation=augment.interpolation,
            mean=data.mean,
            std=data.std,
        )
    # timm has no padded crop; DeiT's small-image recipe swaps it in for the resized one.
    colours = _colour_steps(data, augment)
    # What changes nothing is left out: of a small image, it takes a third of the time.
    has_size = pair(size) == (SOURCES[data.source].side,) * 2
    steps = [] if has_size else [T.Resize(pair(size), _interpolation(augment.interpolation))]
    if augment.crop == "padded":
        steps.append(T.RandomCrop(pair(size), padding=augment.padding))
    if augment.hflip or colours:  # colours are drawn after the flip
        steps.append(T.RandomHorizontalFlip(augment.hflip))
    return T.Compose([*steps, *colours, _to_array()])


def eval_view(data: "DataConfig", crop: float) -> View:
    """Resize to size / crop and crop the centre; crop 1.0 resizes both sides."""
    with dynamo_deferred():
        from timm.data import create_transform

    return create_transform(
        data.image_size,
        use_prefetcher=True,
        crop_pct=crop,
        crop_mode="squash" if crop == 1.0 else "center",
        interpolation=data.augment.interpolation,
        mean=data.mean,
        std=data.std,
    )


class ImageView:
    """From an image and its label to pixels and label."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __call__(self, sample: tuple[Image.Image, int]) -> tuple[Tensor, int]:
        image, label = sample
        return torch.as_tensor(self.view(image)), label


def _mend_posterize() -> None:
    """timm keeps 0 bits at magnitude 10, which Pillow 13 refuses; before, as in every published run, that was black."""
    from timm.data import auto_augment

    auto_augment.NAME_TO_OP["PosterizeIncreasing"] = _posterize


def _posterize(image: Image.Image, num_bits: int, **options: object) -> Image.Image:
    from timm.data.auto_augment import posterize

    return posterize(image, num_bits) if num_bits else image.point(lambda value: 0)


def _interpolation(name: str) -> object:
    from timm.data.transforms import str_to_interp_mode

    return str_to_interp_mode(name)


def _to_array() -> View:
    from timm.data.transforms import ToNumpy

    return ToNumpy()


def _colour_steps(data: "DataConfig", augment: Augment) -> list[View]:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.transforms import str_to_pil_interp
    from torchvision import transforms as T

    if augment.rand_augment:
        # Left out, the interpolation of every operation would be drawn; DeiT's is that of its crop.
        options = {
            "img_mean": tuple(round(255 * value) for value in data.mean),
            "interpolation": str_to_pil_interp(augment.interpolation),
        }
        return [rand_augment_transform(augment.rand_augment, options)]
    return [T.ColorJitter(*[augment.color_jitter] * 3)] if augment.color_jitter else []


class Normaliser:
    """uint8 images -> float images on a device, with the mean and deviation of a data set."""

    def __init__(self, data: Any, device: torch.device) -> None:
        self.device, self.data = device, data
        statistics = (torch.tensor(values, device=device) for values in (data.mean, data.std))
        self.mean, self.std = (values.mul(data.peak).view(-1, 1, 1) for values in statistics)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (..., C, H, W) -> float on the device."""
        return images.to(self.device, non_blocking=True).float().sub_(self.mean).div_(self.std)


class ImageBatches(Normaliser):
    """Normalise, erase, mix and smooth a micro-batch on its device; seeded by the caller."""

    def __init__(self, data: "DataConfig", smoothing: float, device: torch.device) -> None:
        super().__init__(data, device)
        augment = data.augment
        self.num_classes = data.num_classes
        self.smoothing = smoothing
        self.erasing = Erasing(augment.erasing) if augment.erasing else None
        self.mixing = Mixing(augment) if augment.mixup or augment.cutmix else None
        self.replayed, self.change = Replayed("mixing and erasing", device), self._changed

    def prepare(self, records: bool, compiles: bool) -> None:
        """Record or compile what is done on a GPU, where a site asks for it."""
        self.replayed.is_on = records
        if compiles:
            self.change = torch.compile(self._changed)

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and class indices -> float images and soft targets (B, classes)."""
        boxes, mixing = self._boxes(images), self.mixing.draw(*images.shape[-2:]) if self.mixing else EMPTY
        drawn = (pinned(part, self.device) for part in (boxes, mixing))
        return self.replayed.run(self._transformed, tuple(images.shape), images, labels, *drawn)

    def _transformed(self, images: Tensor, labels: Tensor, boxes: Tensor, mixing: Tensor) -> tuple[Tensor, Tensor]:
        # Drawn here: a compiled function would draw other numbers.
        noise = torch.randn(images.shape, device=self.device) if len(boxes) else EMPTY
        return self.change(images, labels, boxes, noise, mixing)

    def _changed(
        self, images: Tensor, labels: Tensor, boxes: Tensor, noise: Tensor, mixing: Tensor
    ) -> tuple[Tensor, Tensor]:
        images = self.normalise(images)
        images = erase(images, boxes, noise) if len(boxes) else images
        drawn = mixing if len(mixing) else None
        targets = soft_targets(labels, self.num_classes, self.smoothing, drawn)
        return (images if drawn is None else mix(images, drawn)), targets

    def erase(self, images: Tensor) -> Tensor:
        """Normalised images with a box of noise in some of them, where the view says so."""
        boxes = self._boxes(images)
        return erase(images, send(boxes, self.device), torch.randn_like(images)) if len(boxes) else images

    def _boxes(self, images: Tensor) -> Tensor:
        return self.erasing.draw(len(images), *images.shape[-2:]) if self.erasing else EMPTY
