"""Standard errors of COCO's statistics, by the bootstrap over images.

Which object a detection finds depends on its image alone, so images are matched once. A resample draws as many images
as there are, some of them several times: it is a weight for each image, and precision and recall are those of weighted
detections. With all weights 1 the statistics are COCO's own.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

# For each of COCO's twelve statistics: precision or recall, the threshold of IoU (all, or its place), the range of
# areas (all, small, medium, large), and detections of an image and class that count.
AP, AR = "precision", "recall"
ALL, AT_50, AT_75 = slice(None), slice(0, 1), slice(5, 6)
STATISTICS = (
    *((AP, ALL, 0, 100), (AP, AT_50, 0, 100), (AP, AT_75, 0, 100)),
    *((AP, ALL, 1, 100), (AP, ALL, 2, 100), (AP, ALL, 3, 100)),
    *((AR, ALL, 0, 1), (AR, ALL, 0, 10), (AR, ALL, 0, 100)),
    *((AR, ALL, 1, 100), (AR, ALL, 2, 100), (AR, ALL, 3, 100)),
)
MOST = (1, 10, 100)
RECALLS = np.linspace(0, 1, 101)
AREAS = 4


@dataclass(frozen=True)
class RankedDetections:
    """Detections of one class and range of areas, the surest first, and the objects of each image that count."""

    image: np.ndarray  # (D,)
    rank: np.ndarray  # (D,): its place among those of its image
    is_right: np.ndarray  # bool (thresholds, D)
    counts: np.ndarray  # bool (thresholds, D): neither right nor wrong where it does not
    objects: np.ndarray  # (images,)


def resampled_errors(evaluation: Any, times: int, seed: int) -> list[float]:
    """Standard errors of the statistics of a COCOeval_faster that ran with `separate_eval`, from 0 to 1.

    NaN of a statistic that hardly any resample has.
    """
    num_images = len(evaluation.params.imgIds)
    draws = np.random.default_rng(seed).integers(0, num_images, (times, num_images))
    weights = np.stack([np.bincount(each, minlength=num_images) for each in draws]).astype(np.int32)
    known = [values[~np.isnan(values)] for values in weighted_statistics(evaluation, weights)]
    return [float(values.std(ddof=1)) if len(values) > 1 else math.nan for values in known]


def weighted_statistics(evaluation: Any, weights: np.ndarray) -> np.ndarray:
    """(12, times) of weights int32 (times, images); NaN where no object counts."""
    found = [[_of_class(each, weights, area == 0) for each in _matched(evaluation, area)] for area in range(AREAS)]
    statistics = []
    for kind, thresholds, area, most in STATISTICS:
        place = 0 if kind == AP else 1 + MOST.index(most)
        values = np.stack([each[place][thresholds] for each in found[area]])  # (classes, thresholds, times)
        statistics.append(_mean(values.reshape(-1, len(weights))))
    return np.stack(statistics)


def _matched(evaluation: Any, area: int) -> Iterator[RankedDetections]:
    """Yield each class. An image's result is a tuple: matches, ids, scores, ignored objects, ignored detections."""
    num_images, num_thresholds = len(evaluation.params.imgIds), len(evaluation.params.iouThrs)
    for category in range(len(evaluation.params.catIds)):
        first = (category * AREAS + area) * num_images
        images = [each.__getstate__() for each in evaluation._evalImgs_cpp[first : first + num_images]]
        matches, _, scores, no_objects, ignored, *_ = zip(*images, strict=True)
        lengths = np.array([len(each) for each in scores])
        order = np.argsort(-_concatenate(scores, np.float64), kind="mergesort")
        image = np.repeat(np.arange(num_images), lengths)[order]
        starts = np.cumsum(lengths) - lengths
        rank = order - starts[image]
        # An image has (thresholds, detections) in one list.
        places = num_thresholds * starts[image] + np.arange(num_thresholds)[:, None] * lengths[image] + rank
        counts = ~_concatenate(ignored, np.bool_)[places]
        is_right = (_concatenate(matches, np.int64)[places] > 0) & counts
        objects = np.array([len(each) - sum(each) for each in no_objects])
        yield RankedDetections(image, rank, is_right, counts, objects)


def _concatenate(lists: Iterable[list[Any]], kind: Any) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), kind)


def _of_class(found: RankedDetections, weights: np.ndarray, has_fewer: bool) -> list[np.ndarray]:
    """(thresholds, times) each: average precision, then recall with the first detections of an image, and all."""
    total = weights @ found.objects
    precision, recall = (np.full((len(found.counts), len(weights)), np.nan) for _ in range(2))
    fewer = [np.full_like(recall, np.nan) for _ in MOST[:-1]]
    there = np.flatnonzero(total)
    if not len(there):
        return [precision, *fewer, recall]
    drawn, total = weights[there][:, found.image], total[there]
    for threshold, (right, counts) in enumerate(zip(found.is_right, found.counts, strict=True)):
        precision[threshold, there], recall[threshold, there] = _curve(drawn, right, counts, total)
        for most, values in zip(MOST, fewer if has_fewer else (), strict=False):
            values[threshold, there] = drawn[:, right & (found.rank < most)].sum(axis=1) / total
    return [precision, *fewer, recall]


def _curve(
    drawn: np.ndarray, right: np.ndarray, counts: np.ndarray, total: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Average precision and recall (times,) of weights (times, D). Both change at detections that are right alone."""
    if not right.any():
        return np.zeros(len(total)), np.zeros(len(total))
    places = np.flatnonzero(right[counts])
    number = np.cumsum(drawn[:, counts], axis=1)[:, places]
    hits = np.cumsum(drawn[:, right], axis=1)
    # The best precision at this recall or any higher one.
    best = np.maximum.accumulate((hits / np.maximum(number, 1))[:, ::-1], axis=1)[:, ::-1]
    best = np.concatenate([best, np.zeros((len(best), 1))], axis=1)
    recalls = hits / total[:, None]
    places = np.stack([known.searchsorted(RECALLS) for known in recalls])
    return np.take_along_axis(best, places, axis=1).mean(axis=1), recalls[:, -1]


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the classes and thresholds (n, times) that have a value; NaN where none has."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0).sum(axis=0) / there.sum(axis=0)
