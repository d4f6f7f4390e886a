"""Views of pictures with the class of each pixel, after mmsegmentation's recipe for ADE20K.

Training: resize by a drawn factor, crop S x S, flip, distort colours, pad. Evaluation: resize alone. Pictures are
resized with Pillow's bilinear filter, which averages when it shrinks (OpenCV's does not); classes are never mixed.
What is padded has the mean colour, so it is near 0 once it is normalised, and the class 255.
"""

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipeline.data.readers.ade20k import IGNORED, Scene

if TYPE_CHECKING:
    from pipeline.data.dense.segmentation import SegmentationConfig

LONG = 4  # the longer side is at most so many times the shorter one that is asked for: 2048 and 512
TRIES = 10
BRIGHTNESS, CONTRAST, HUE = 32, (0.5, 1.5), 18  # HUE of 180, as OpenCV counts; contrast is saturation's range too


class CroppedView:
    """The training view."""

    def __init__(self, cfg: "SegmentationConfig") -> None:
        self.cfg = cfg
        self.numbers = target_numbers(cfg)
        self.fill = np.array([round(255 * value) for value in cfg.mean], dtype=np.uint8)

    def __call__(self, scene: Scene) -> tuple[Tensor, Tensor]:
        cfg = self.cfg
        size = resized(scene.image.size, cfg.image_size * random.uniform(*cfg.scale))
        image = scene.image.resize(size, Image.Resampling.BILINEAR)
        labels = self.numbers[np.asarray(Image.fromarray(scene.labels).resize(size, Image.Resampling.NEAREST))]
        left, top = self._corner(labels)
        part = np.s_[top : top + cfg.image_size, left : left + cfg.image_size]
        pixels, labels = np.atleast_3d(np.asarray(image))[part], labels[part]
        if random.random() < cfg.hflip:
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        if cfg.photometric:
            pixels = distorted(pixels)
        return torch.from_numpy(self._padded(pixels)), torch.from_numpy(_padded_labels(labels, cfg.image_size))

    def _corner(self, labels: np.ndarray) -> tuple[int, int]:
        """Left and top of a crop in which no class covers too much, if ten tries find one."""
        side, most = self.cfg.image_size, self.cfg.max_class_share
        left = top = 0
        for _ in range(TRIES + 1):
            left, top = (random.randint(0, max(length - side, 0)) for length in labels.shape[::-1])
            if most == 1 or is_mixed(labels[top : top + side, left : left + side], most):
                break
        return left, top

    def _padded(self, pixels: np.ndarray) -> np.ndarray:
        """uint8 (C, S, S)."""
        side = self.cfg.image_size
        found = np.empty((side, side, len(self.fill)), dtype=np.uint8)
        found[:] = self.fill
        found[: pixels.shape[0], : pixels.shape[1]] = pixels
        return np.ascontiguousarray(found.transpose(2, 0, 1))


class WholeView:
    """The evaluation view: pictures keep their aspect ratio, classes their published size."""

    def __init__(self, cfg: "SegmentationConfig") -> None:
        self.side, self.numbers = cfg.image_size, target_numbers(cfg)

    def __call__(self, scene: Scene) -> tuple[Tensor, dict[str, Tensor]]:
        size = resized(scene.image.size, self.side)
        pixels = np.atleast_3d(np.asarray(scene.image.resize(size, Image.Resampling.BILINEAR)))
        inputs = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        return inputs, {"labels": torch.from_numpy(self.numbers[scene.labels])}


def target_numbers(cfg: "SegmentationConfig") -> np.ndarray:
    """uint8 (256,): from the numbers in files to classes from 0 on, and 255 for all others."""
    found = np.full(256, IGNORED, dtype=np.uint8)
    found[cfg.first_class : cfg.first_class + cfg.num_classes] = np.arange(cfg.num_classes)
    return found


def resized(size: tuple[int, int], side: float) -> tuple[int, int]:
    """Width and height with the shorter one `side` long, or the longer one 4 times that where it would exceed it."""
    factor = min(side / min(size), LONG * side / max(size))
    width, height = (max(1, int(length * factor + 0.5)) for length in size)
    return width, height


def is_mixed(labels: np.ndarray, most: float) -> bool:
    """Whether there are several classes, and none covers `most` of what is known or more."""
    counts = np.bincount(labels.reshape(-1), minlength=256)[:IGNORED]
    return (counts > 0).sum() > 1 and counts.max() < most * counts.sum()


def distorted(pixels: np.ndarray) -> np.ndarray:
    """Brightness, contrast, saturation and hue of uint8 (H, W, C), each changed or not; grey pictures have no colours.

    Contrast comes second or last.
    """
    contrast_is_last = random.random() < 0.5
    if _happens():
        pixels = _linear(pixels, 1.0, random.uniform(-BRIGHTNESS, BRIGHTNESS))
    if not contrast_is_last and _happens():
        pixels = _linear(pixels, random.uniform(*CONTRAST))
    if pixels.shape[2] == 3:
        saturation = random.uniform(*CONTRAST) if _happens() else 1.0
        hue = random.randint(-HUE, HUE - 1) if _happens() else 0
        pixels = _coloured(pixels, saturation, hue)
    if contrast_is_last and _happens():
        pixels = _linear(pixels, random.uniform(*CONTRAST))
    return pixels


def _happens() -> bool:
    return random.random() < 0.5


def _linear(pixels: np.ndarray, factor: float, shift: float = 0.0) -> np.ndarray:
    return np.clip(pixels * np.float32(factor) + np.float32(shift), 0, 255).astype(np.uint8)


def _coloured(pixels: np.ndarray, saturation: float, hue: int) -> np.ndarray:
    """Through hue, saturation and value; Pillow's hue has 256 steps."""
    if saturation == 1.0 and hue == 0:
        return pixels
    channels = np.array(Image.fromarray(pixels).convert("HSV"))
    channels[..., 1] = _linear(channels[..., 1], saturation)
    channels[..., 0] += np.uint8(round(hue * 256 / 180) % 256)
    return np.asarray(Image.fromarray(channels, "HSV").convert("RGB"))


def _padded_labels(labels: np.ndarray, side: int) -> np.ndarray:
    found = np.full((side, side), IGNORED, dtype=np.uint8)
    found[: labels.shape[0], : labels.shape[1]] = labels
    return found
