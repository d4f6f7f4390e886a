"""Outlines of objects as COCO has them: polygons, or run lengths (RLE) down the columns, compressed or not.

Polygons become bitmaps, and bitmaps compressed run lengths, by the functions with which COCO itself is evaluated.
"""

from collections.abc import Sequence

import numpy as np

Polygons = list[np.ndarray]  # float64 (2k,) each: x, y, x, y ...
Outline = Polygons | np.ndarray  # or int64 (k,): lengths of runs of 0, 1, 0 ...
LEAST_NUMBERS = 6  # of a polygon: three points


def fill(pixels: np.ndarray, polygons: Polygons) -> None:
    """Put 1 into uint8 (height, width) inside any of the polygons; what sticks out is cut off.

    Only the columns that they cover are written: most objects are small, and whole bitmaps take several times as long.
    """
    from faster_coco_eval.core import mask  # as slow to import as all else that a launcher needs

    height, width = pixels.shape
    found = mask.merge(mask.frPyObjects([polygon.tolist() for polygon in polygons], height, width))
    counts = np.array(decompressed(found["counts"]))
    end = pixels.size - (counts[-1] if len(counts) % 2 else 0)
    first, last = counts[0] // height, -(-end // height)
    if first < last:
        counts[0] -= first * height
        counts[-1] -= (width - last) * height if len(counts) % 2 else 0
        pixels[:, first:last] |= expanded(counts, height, int(last - first))


def expanded(counts: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 (height, width) of run lengths, which go down the columns and begin with zeros."""
    values = np.arange(len(counts), dtype=np.uint8) % 2
    return np.repeat(values, counts).reshape(width, height).T


def bitmap(outline: Outline, height: int, width: int) -> np.ndarray:
    """uint8 (height, width) of an outline."""
    if not isinstance(outline, list):
        return expanded(outline, height, width)
    pixels = np.zeros((height, width), dtype=np.uint8)
    fill(pixels, outline)
    return pixels


def compressed(outline: Outline, height: int, width: int) -> bytes:
    """The run lengths as COCO compresses them."""
    from faster_coco_eval.core import mask

    if isinstance(outline, list):
        return mask.merge(mask.frPyObjects([polygon.tolist() for polygon in outline], height, width))["counts"]
    return mask.frPyObjects({"size": [height, width], "counts": outline.tolist()}, height, width)["counts"]


def run_lengths(pixels: np.ndarray) -> list[int]:
    """The runs of a bitmap (height, width), which go down the columns and begin with zeros."""
    flat = np.concatenate([[0], (pixels.T.reshape(-1) != 0).astype(np.int8)])
    changes = np.flatnonzero(np.diff(flat))
    return np.diff([0, *changes.tolist(), pixels.size]).tolist()


def decompressed(text: bytes) -> list[int]:
    """Run lengths of COCO's text: groups of 5 bits, lowest first, in characters from 48 on; a sixth says: more follow.

    From the fourth on, a number is the difference to the one before the last. ValueError if the text breaks off.
    """
    counts: list[int] = []
    value = shift = 0
    for byte in text:
        group = byte - 48
        if not 0 <= group < 64:
            raise ValueError("a character that compressed run lengths do not have")
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:  # the sign
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("compressed run lengths that break off")
    return counts


def bounds(masks: np.ndarray) -> np.ndarray:
    """float32 (n, 4): x1 y1 x2 y2 of what each of (n, height, width) covers; zeros where that is nothing."""
    boxes = np.zeros((len(masks), 4), dtype=np.float32)
    for box, pixels in zip(boxes, masks, strict=True):
        rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
        if len(rows):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes


def moved(polygons: Polygons, factors: Sequence[float], offset: Sequence[float]) -> Polygons:
    """Polygons with x and y multiplied, then shifted."""
    return [polygon * np.resize(factors, polygon.shape) + np.resize(offset, polygon.shape) for polygon in polygons]
