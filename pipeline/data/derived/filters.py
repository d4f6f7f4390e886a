"""Blurs, zooms and warps of images in numpy and scipy, as OpenCV, scikit-image and ImageMagick compute them.

What is linear along each axis is a small matrix, made once for each size: that is many times faster than filtering
with wide kernels, and gives the same numbers.
"""

from functools import lru_cache

import numpy as np
from scipy import ndimage, sparse

Array = np.ndarray


def gaussian(image: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """A Gaussian blur of (H, W) or (H, W, C); the kernel ends after `truncate` sigmas."""
    rows, cols = (_gaussian_matrix(side, sigma, mode, truncate) for side in image.shape[:2])
    return along_axes(rows, cols, image.astype(np.float32))


@lru_cache(maxsize=32)
def _gaussian_matrix(side: int, sigma: float, mode: str, truncate: float) -> Array:
    """(side, side): what the blur makes of each pixel of a line."""
    if sigma == 0:
        return np.eye(side, dtype=np.float32)
    return ndimage.gaussian_filter1d(np.eye(side), sigma, axis=0, mode=mode, truncate=truncate).astype(np.float32)


def along_axes(rows: Array, cols: Array, image: Array) -> Array:
    """One matrix for the rows of an image (H, W, ...), another for its columns."""
    high = (rows @ image.reshape(image.shape[0], -1)).reshape(rows.shape[0], *image.shape[1:])
    wide = np.swapaxes(high, 0, 1)
    both = (cols @ wide.reshape(wide.shape[0], -1)).reshape(cols.shape[0], *wide.shape[1:])
    return np.swapaxes(both, 0, 1)


def defocused(image: Array, radius: float, alias_blur: float) -> Array:
    """A blur with a disk; edges are mirrored."""
    from scipy import signal  # takes a second, and no other corruption needs it

    kernel = _disk(radius, alias_blur)
    reach = len(kernel) // 2
    padded = np.pad(image.astype(np.float32), ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1))


@lru_cache(maxsize=16)
@np.errstate(under="ignore")  # a narrow Gaussian has weights at its end that are too small for a number
def _disk(radius: float, alias_blur: float) -> Array:
    """A disk whose edge is smoothed by a Gaussian of 3 pixels, of 5 for a large one; without the zeros around it."""
    reach, smooth = (8, 1) if radius <= 8 else (int(radius), 2)
    across = np.arange(-reach, reach + 1) ** 2
    disk = (across[:, None] + across[None] <= radius**2).astype(np.float64)
    disk /= disk.sum()  # the edge of a large disk is at that of its square, and the blur adds to it
    weights = np.exp(-(np.arange(-smooth, smooth + 1) ** 2) / (2 * alias_blur**2))
    for axis in (0, 1):
        disk = ndimage.correlate1d(disk, weights / weights.sum(), axis=axis, mode="mirror")
    used = np.flatnonzero(disk.sum(axis=0))
    return disk[used[0] : used[-1] + 1, used[0] : used[-1] + 1].astype(np.float32)


@np.errstate(under="ignore")  # as in `_disk`
def moved(image: Array, radius: int, sigma: float, angle: float) -> Array:
    """ImageMagick's motion blur: one half of a Gaussian, along a line at an angle in degrees; edges are repeated."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2)).astype(np.float32)
    slope = np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))
    rows, cols = (np.ceil(steps * part - 0.5).astype(int) for part in slope)
    before, after = (tuple(max(0, sign * edge(axis)) for axis in (rows, cols)) for sign, edge in ((-1, min), (1, max)))
    around = [*zip(before, after, strict=True), *[(0, 0)] * (image.ndim - 2)]
    padded = np.pad(image.astype(np.float32), around, mode="edge")
    total, (height, width) = np.zeros(image.shape, np.float32), image.shape[:2]
    for weight, row, col in zip(weights / weights.sum(), rows + before[0], cols + before[1], strict=True):
        total += weight * padded[row : row + height, col : col + width]
    return total


def zoomed_mean(image: Array, factors: tuple[float, ...]) -> Array:
    """The mean of an image (H, W, C) zoomed into its centre by several factors, bilinear."""
    height, width, channels = image.shape
    rows = sparse.vstack([_zoom_matrix(height, factor) for factor in factors], "csr")
    cols = sparse.hstack([_zoom_matrix(width, factor) for factor in factors], "csr")
    high = (rows @ image.reshape(height, -1)).reshape(len(factors), height, width, channels)
    # The product with all factors side by side is also their sum.
    wide = cols @ high.transpose(0, 2, 1, 3).reshape(len(factors) * width, -1)
    return wide.reshape(width, height, channels).swapaxes(0, 1) / np.float32(len(factors))


@lru_cache(maxsize=256)
def _zoom_matrix(side: int, factor: float) -> sparse.csr_array:
    """(side, side): the centre of a line, enlarged to at least the whole of it with its ends in place, then cut."""
    inner = int(np.ceil(side / factor))
    outer = max(round(inner * factor), 2)
    places = np.arange(outer) * (inner - 1) / (outer - 1)
    trim = (outer - side) // 2
    places = (places + (side - inner) // 2)[trim : trim + side]
    below = np.minimum(places.astype(int), side - 2)
    share = places - below
    entries = np.stack([1 - share, share], axis=1).ravel(), np.stack([below, below + 1], axis=1).ravel()
    return sparse.csr_array((*entries, np.arange(side + 1) * 2), shape=(side, side)).astype(np.float32)


def sampled(image: Array, rows: Array, cols: Array, mode: str) -> Array:
    """An image (H, W, C) at other places, bilinear. Beyond its edges it is mirrored: `mirror` has the edge once."""
    height, width, channels = image.shape
    top, left = np.floor(rows), np.floor(cols)
    down, right = (rows - top)[..., None], (cols - left)[..., None]
    above, below = (_folded(top.astype(np.intp) + step, height, mode) * width for step in (0, 1))
    before, after = (_folded(left.astype(np.intp) + step, width, mode) for step in (0, 1))
    pixels = image.reshape(-1, channels)
    upper, lower = (
        pixels.take(line + before, axis=0) * (1 - right) + pixels.take(line + after, axis=0) * right
        for line in (above, below)
    )
    return upper * (1 - down) + lower * down


def _folded(index: Array, side: int, mode: str) -> Array:
    """Indices beyond an edge as those of the pixels that are mirrored there."""
    once = mode == "mirror"
    period = 2 * side - 2 * once
    index = index % period
    return np.minimum(index, period - 1 + once - index)


def resized(image: Array, scale: float) -> Array:
    """uint8 (H, W, C) scaled as OpenCV does: bilinear between neighbours, without smoothing first."""
    rows, cols = (
        np.clip((np.arange(round(side * scale)) + 0.5) / scale - 0.5, 0, side - 1) for side in image.shape[:2]
    )
    places = np.meshgrid(rows, cols, indexing="ij")
    return np.round(sampled(image.astype(np.float32), *places, "mirror")).astype(np.uint8)


def scattered(image: Array, reach: int, rng: np.random.Generator) -> Array:
    """Every pixel takes the value of a neighbour, one after another from the last to the first.

    A neighbour that was visited before has its new value. The published loop means to swap the two, but assigns a view
    of one to the other, which copies.
    """
    height, width = image.shape[:2]
    rows, cols = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    steps = rng.integers(-reach, reach, size=(len(rows), len(cols), 2))
    here = rows[:, None] * width + cols
    there = here + steps[..., 1] * width + steps[..., 0]
    size = height * width
    visited = np.zeros(size, dtype=bool)
    visited[here] = True
    # Links from the new value of each pixel to a new or an old one; old ones (from `size` on) link to themselves.
    links = np.concatenate([np.arange(size) + size, np.arange(size) + size])
    links[here] = np.where(visited[there] & (there > here), there, there + size)
    while not np.array_equal(followed := links.take(links), links):
        links = followed
    return image.reshape(size, -1)[links[:size] - size].reshape(image.shape)


def plasma(side: int, decay: float, rng: np.random.Generator) -> Array:
    """Clouds from 0 to 1, (side, side), by the diamond-square algorithm; `side` is a power of 2."""
    clouds, step, rough = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        corners = clouds[::step, ::step]
        edges = corners + np.roll(corners, -1, axis=0)
        centres = _rough_mean(edges + np.roll(edges, -1, axis=1), rough, rng)
        clouds[half::step, half::step] = centres
        beside = centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        clouds[::step, half::step] = _rough_mean(beside, rough, rng)
        below = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        clouds[half::step, ::step] = _rough_mean(below, rough, rng)
        step, rough = half, rough / decay
    clouds -= clouds.min()
    return clouds / clouds.max()


def _rough_mean(total: Array, rough: float, rng: np.random.Generator) -> Array:
    return total / 4 + rough * rng.uniform(-rough, rough, total.shape)
