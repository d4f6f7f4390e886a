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


def cut(polygon: np.ndarray, width: float, height: float) -> np.ndarray:
    """The part of a polygon (2k,) that lies between 0 and width, 0 and height, cut a side at a time; (0,) if none does.

    Parts that are apart stay one polygon, joined along the border by edges that lie on each other and enclose nothing.
    """
    points = polygon.reshape(-1, 2)
    limits = (width, height)
    if (points >= 0).all() and (points <= limits).all():
        return polygon
    for axis in (0, 1):
        for sign, limit in ((1, 0.0), (-1, limits[axis])):
            points = _cut_at(points, axis, sign, limit)
    return points.flatten()


def _cut_at(points: np.ndarray, axis: int, sign: int, limit: float) -> np.ndarray:
    """Points (k, 2) on one side of a line, and where edges cross it."""
    after = np.roll(points, -1, axis=0)
    here, there = (sign * (each[:, axis] - limit) for each in (points, after))
    crosses = (here >= 0) != (there >= 0)
    share = here / np.where(crosses, here - there, 1.0)
    crossings = points + share[:, None] * (after - points)
    crossings[:, axis] = limit
    return np.stack([points, crossings], axis=1)[np.stack([here >= 0, crosses], axis=1)]


def extent(polygons: Polygons, width: float, height: float) -> np.ndarray:
    """float64 (4,): x1 y1 x2 y2 of what polygons have between 0 and width, 0 and height; zeros if nothing."""
    found = []
    for polygon in polygons:
        points, whole = cut(polygon, width, height).reshape(-1, 2), polygon.reshape(-1, 2)
        is_corner = np.isin(points[:, 0], (0, width)) & np.isin(points[:, 1], (0, height))
        # Cutting goes through a corner of the view also where the polygon passes it by.
        passed_by = [corner and not _holds(whole, point) for corner, point in zip(is_corner, points, strict=True)]
        found.append(points[~np.array(passed_by, dtype=bool)] if is_corner.any() else points)
    points = np.concatenate([np.zeros((0, 2)), *found])
    return np.concatenate([points.min(axis=0), points.max(axis=0)]) if len(points) else np.zeros(4)


def _holds(polygon: np.ndarray, point: np.ndarray) -> bool:
    """Whether a point is inside a polygon (k, 2), or one of its own."""
    after = np.roll(polygon, -1, axis=0)
    spans = (polygon[:, 1] > point[1]) != (after[:, 1] > point[1])
    height = np.where(spans, after[:, 1] - polygon[:, 1], 1.0)
    at = polygon[:, 0] + (point[1] - polygon[:, 1]) / height * (after[:, 0] - polygon[:, 0])
    return bool((spans & (at > point[0])).sum() % 2 or (polygon == point).all(axis=1).any())


def edges_of(outlines: Sequence[Polygons]) -> np.ndarray:
    """float64 (n, most edges, 4): x1 y1 x2 y2 of the edges of each object's polygons, zeros after the last.

    All polygons run in the same direction: inside them, an object's crossings then never cancel out.
    """
    objects = [[_directed(polygon.reshape(-1, 2)) for polygon in polygons] for polygons in outlines]
    counts = [sum(map(len, polygons)) for polygons in objects]
    edges = np.zeros((len(objects), max(counts, default=0), 4))
    for found, polygons, count in zip(edges, objects, counts, strict=True):
        if count:
            found[:count] = np.concatenate([np.hstack([each, np.roll(each, -1, axis=0)]) for each in polygons])
    return edges


def _directed(points: np.ndarray) -> np.ndarray:
    x, y = points.T
    return points if np.dot(x, np.roll(y, -1)) >= np.dot(y, np.roll(x, -1)) else points[::-1]
