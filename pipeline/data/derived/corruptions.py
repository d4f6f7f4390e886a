"""The 15 corruptions of ImageNet-C (Hendrycks and Dietterich 2019), after the scripts that made the published sets.

A function takes an image, uint8 (H, W, 3), its parameters at one severity and a generator of random numbers, and
returns values from 0 to 255. Written with numpy, scipy and Pillow instead of OpenCV, scikit-image and ImageMagick. The
scripts are for squares of one size; here any rectangle is corrupted with the parameters of its table, in pixels.
"""

import hashlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline.core.config import nearest
from pipeline.core.errors import DataError
from pipeline.data.derived import filters
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES, TABLES, Table

Array = np.ndarray
Rng = np.random.Generator
MIN_SIDE = 28
# The scripts load six photographs and draw from the first five.
FROST = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


def corrupt(image: Array, corruption: str, severity: int, table: Table, seed: int | Sequence[int]) -> Array:
    """uint8 (H, W, 3) -> the same, corrupted; the same seed gives the same pixels."""
    if corruption not in FUNCTIONS:
        raise DataError(f"unknown corruption {corruption!r}; {nearest(corruption, FUNCTIONS)}")
    if severity not in SEVERITIES:
        raise DataError(f"found severity {severity}, expected one of {', '.join(map(str, SEVERITIES))}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < MIN_SIDE:
        raise DataError(
            f"found an image of {image.dtype} {image.shape}, expected uint8 (H, W, 3) with sides of {MIN_SIDE} or more"
        )
    parameters = TABLES[table][corruption][severity - 1]
    found = FUNCTIONS[corruption](image, parameters, np.random.default_rng(seed))
    return as_pixels(found)


def as_pixels(values: Array) -> Array:
    """Whole numbers from 0 to 255: cut off, not rounded, as published."""
    # In 32 bits the blur of a white area is a little below 255.
    lost = 2e-4 if values.dtype == np.float32 else 0
    return np.clip(values + lost, 0, 255).astype(np.uint8)


def corrupt_picture(
    picture: Image.Image, corruption: str, severity: int, table: Table, seed: int | Sequence[int]
) -> Image.Image:
    """A grey picture is corrupted in colour, and made grey again."""
    found = corrupt(np.asarray(picture.convert("RGB")), corruption, severity, table, seed)
    return Image.fromarray(found).convert(picture.mode)


def seed_of(name: str, corruption: str, severity: int) -> int:
    """By the image's own name: pixels do not depend on processes, order, or other images."""
    key = f"{Path(name).with_suffix('').as_posix()} {corruption} {severity}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def gaussian_noise(image: Array, deviation: float, rng: Rng) -> Array:
    return image + rng.normal(scale=255 * deviation, size=image.shape)


def shot_noise(image: Array, photons: float, rng: Rng) -> Array:
    """`photons` of a white pixel."""
    return rng.poisson(image / 255.0 * photons) / photons * 255


def impulse_noise(image: Array, share: float, rng: Rng) -> Array:
    """Salt and pepper, in each channel on its own."""
    hit, is_white = rng.random(image.shape) <= share, rng.random(image.shape) <= 0.5
    return np.where(hit, np.where(is_white, 255, 0), image)


def defocus_blur(image: Array, parameters: tuple[float, float], rng: Rng) -> Array:
    """Radius of the disk, and sigma of the blur of its edge."""
    return filters.defocused(image, *parameters)


def glass_blur(image: Array, parameters: tuple[float, int, int], rng: Rng) -> Array:
    """Sigma of a blur before and after, reach and number of the scatterings between."""
    sigma, reach, times = parameters
    pixels = as_pixels(filters.gaussian(image, sigma))
    for _ in range(times):
        pixels = filters.scattered(pixels, reach, rng)
    return filters.gaussian(pixels, sigma)


def motion_blur(image: Array, parameters: tuple[int, float], rng: Rng) -> Array:
    """Radius and sigma."""
    return filters.moved(image, *parameters, angle=rng.uniform(-45, 45))


def zoom_blur(image: Array, parameters: tuple[float, float], rng: Rng) -> Array:
    """End and step of the factors; the image itself counts once more."""
    # `arange` with these very numbers: rounding puts the end of some into the range.
    return filters.zoomed_mean(image.astype(np.float32), (1.0, *np.arange(1, *parameters).tolist()))


def snow(image: Array, parameters: tuple[float, float, float, float, int, float, float], rng: Rng) -> Array:
    """Mean, deviation, zoom and threshold of the flakes, radius and sigma of their fall, share of the image kept."""
    mean, deviation, zoom, threshold, radius, sigma, kept = parameters
    flakes = filters.zoomed_mean(rng.normal(mean, deviation, (*image.shape[:2], 1)).astype(np.float32), (zoom,))
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1) * 255).astype(np.uint8)
    flakes = np.floor(filters.moved(flakes, radius, sigma, angle=rng.uniform(-135, -45)))  # 8 bits, cut off
    grey = (image @ np.array([0.299, 0.587, 0.114]))[..., None]
    whitened = kept * image + (1 - kept) * np.maximum(image, grey * 1.5 + 127.5)
    return whitened + flakes + np.rot90(flakes, 2)


def frost(image: Array, parameters: tuple[float, float, float], rng: Rng) -> Array:
    """Weights of the image and of a photograph of frost, and scale of the photograph."""
    own, icy, scale = parameters
    height, width = image.shape[:2]
    ice = _frost(int(rng.integers(len(FROST))), scale, height + 1, width + 1)
    top, left = rng.integers(ice.shape[0] - height), rng.integers(ice.shape[1] - width)
    return own * image + icy * ice[top : top + height, left : left + width]


@lru_cache(maxsize=2 * len(FROST))
def _frost(number: int, scale: float, height: int, width: int) -> Array:
    """A photograph of frost, enlarged for images that it could not cover."""
    package = importlib.util.find_spec("imagecorruptions")  # importing it would load OpenCV and numba
    if package is None or package.origin is None:
        raise DataError("the photographs of frost come with imagecorruptions-imaug, which is not installed; install it")
    with Image.open(Path(package.origin).parent / "frost" / FROST[number]) as file:
        ice = np.asarray(file.convert("RGB"))
    scale = max(scale, height / ice.shape[0], width / ice.shape[1])
    return ice if scale == 1 else filters.resized(ice, scale)


def fog(image: Array, parameters: tuple[float, float], rng: Rng) -> Array:
    """Strength of the clouds, and how fast they become finer."""
    strength, decay = parameters
    height, width = image.shape[:2]
    clouds = filters.plasma(1 << (max(height, width) - 1).bit_length(), decay, rng)[:height, :width, None]
    brightest = image.max() / 255
    return (image + 255 * strength * clouds) * (brightest / (brightest + strength))


def brightness(image: Array, more: float, rng: Rng) -> Array:
    """A higher value in HSV: with hue and saturation kept, all channels grow by the same factor."""
    value = image.max(axis=2, keepdims=True).astype(np.float64)
    higher = np.minimum(value + 255 * more, 255)
    return np.where(value > 0, image * (higher / np.maximum(value, 1)), higher)


def contrast(image: Array, kept: float, rng: Rng) -> Array:
    means = image.mean(axis=(0, 1), keepdims=True)
    return (image - means) * kept + means


def elastic_transform(image: Array, parameters: tuple[float, float, float], rng: Rng) -> Array:
    """Strength and smoothness of the local shifts, and reach of the affine change before them."""
    strength, sigma, reach = parameters
    height, width = image.shape[:2]
    rows, cols = np.indices((height, width))
    # Three corners of a square in the middle move; the centre is (row, column) where OpenCV has (x, y), as published.
    centre, side = np.array([height // 2, width // 2]), min(height, width) // 3
    corners = np.array([centre + side, [centre[0] + side, centre[1] - side], centre - side], dtype=np.float64)
    goals = corners + rng.uniform(-reach, reach, corners.shape)
    back = np.linalg.solve(np.column_stack([goals, np.ones(3)]), corners)  # from a goal (x, y, 1) to its corner
    x, y = (cols * back[0, axis] + rows * back[1, axis] + back[2, axis] for axis in (0, 1))
    image = filters.sampled(image.astype(np.float32), y.astype(np.float32), x.astype(np.float32), "mirror")
    across, down = (
        strength * filters.gaussian(rng.uniform(-1, 1, (height, width)), sigma, mode="reflect", truncate=3)
        for _ in range(2)
    )
    return filters.sampled(image, rows.astype(np.float32) + down, cols.astype(np.float32) + across, "reflect")


def pixelate(image: Array, scale: float, rng: Rng) -> Array:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Array, quality: int, rng: Rng) -> Array:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


FUNCTIONS: dict[str, Callable[[Array, Any, Rng], Array]] = {name: globals()[name] for name in CORRUPTIONS}
