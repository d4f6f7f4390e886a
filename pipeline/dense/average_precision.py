"""Average precision and recall of boxes and masks as COCO defines them, computed by faster-coco-eval.

An image is a plain record, so that processes can exchange them. Detections and truth are in pixels of the image as
published. Values are in per cent. What a set cannot tell, such as the AP of small objects where it has none, is left
out; `reasons` says why.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pipeline.dense.detections import Detections, paste, to_original
from pipeline.dense.resampled_precision import resampled_errors

log = logging.getLogger(__name__)

# In the order of COCO's statistics; b for boxes and m for masks takes the place of the star.
STATISTICS = (
    *("ap_*", "ap_*50", "ap_*75", "ap_*_small", "ap_*_medium", "ap_*_large"),
    *("ar_*_1", "ar_*_10", "ar_*_100", "ar_*_small", "ar_*_medium", "ar_*_large"),
)
KINDS = {"b": "bbox", "m": "segm"}
METRICS = tuple(name.replace("*", letter) for letter in KINDS for name in STATISTICS)


@dataclass(frozen=True)
class Objects:
    """Objects of one image: boxes (n, 4) as x, y, width, height, labels (n,) from 1, and a compressed RLE each."""

    boxes: np.ndarray
    labels: np.ndarray
    runs: list[bytes]


@dataclass(frozen=True)
class ImageRecord:
    """What is in an image, and what was found in it."""

    image_id: int
    size: tuple[int, int]  # height, width
    truth: Objects
    crowd: np.ndarray  # uint8 (n,) of the truth
    area: np.ndarray  # float64 (n,) of the truth
    found: Objects
    scores: np.ndarray


def record_of(detections: Detections, target: Mapping[str, Tensor]) -> ImageRecord:
    """On the host: the masks are put into the image, and written as runs."""
    host = {name: value.cpu() for name, value in target.items()}
    boxes, scores, labels, masks = (part.detach().float().cpu() for part in detections)
    height, width = host["original"].tolist()
    boxes = to_original(boxes, host["size"], host["original"])
    kept = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    boxes, scores, labels, masks = (part[kept] for part in (boxes, scores, labels, masks))
    runs = [encoded(paste(mask, box, height, width).numpy()) for mask, box in zip(masks, boxes, strict=True)]
    boxes[:, 2:] -= boxes[:, :2]
    return ImageRecord(
        image_id=int(host["image_id"]),
        size=(height, width),
        truth=Objects(host["gt_boxes"].numpy(), host["gt_labels"].numpy(), _runs(host)),
        crowd=host["gt_crowd"].numpy(),
        area=host["gt_area"].numpy(),
        found=Objects(boxes.numpy(), labels.long().numpy(), runs),
        scores=scores.numpy(),
    )


def encoded(mask: np.ndarray) -> bytes:
    """A bitmap (height, width) as COCO's compressed runs."""
    from faster_coco_eval.core import mask as coco_mask

    return coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))["counts"]


def decoded(runs: bytes, size: tuple[int, int]) -> np.ndarray:
    """COCO's compressed runs as a uint8 bitmap (height, width)."""
    from faster_coco_eval.core import mask as coco_mask

    return coco_mask.decode({"size": list(size), "counts": runs})


def _runs(host: Mapping[str, Tensor]) -> list[bytes]:
    edges = [0, *host["gt_rle_sizes"].cumsum(0).tolist()]
    content = host["gt_rle"].numpy().tobytes()
    return [content[start:end] for start, end in pairwise(edges)]


class Precision(NamedTuple):
    """Statistics by name, and standard errors of those that have one."""

    metrics: dict[str, float]
    errors: dict[str, float]


def average_precision(records: Sequence[ImageRecord], resamples: int = 0, seed: int = 0) -> Precision:
    """The twelve statistics of boxes (ap_b, ...) and of masks (ap_m, ...), those that the set can tell.

    Their standard errors are by the bootstrap over images, with this many resamples; 0: none.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    found = Precision({}, {})
    for letter, kind in KINDS.items():
        truth = COCO(_truth(records), print_function=log.debug)
        results = truth.loadRes(list(_results(records, kind)))
        evaluation = COCOeval_faster(truth, results, kind, print_function=log.debug, separate_eval=True)
        evaluation.run()
        names = [name.replace("*", letter) for name in STATISTICS]
        known = {name: 100 * float(value) for name, value in zip(names, evaluation.stats, strict=False) if value > -1}
        errors = resampled_errors(evaluation, resamples, seed) if resamples and known else []
        found.metrics.update(known)
        found.errors.update(
            {name: 100 * error for name, error in zip(names, errors, strict=False) if math.isfinite(error)}
        )
    return found


def reasons(found: Mapping[str, float]) -> dict[str, str]:
    """Why metrics are missing."""
    return {name: f"the set has no {name.split('_')[-1]} objects" for name in METRICS if name not in found}


def _truth(records: Sequence[ImageRecord]) -> dict[str, Any]:
    labels = {int(label) for record in records for part in (record.truth, record.found) for label in part.labels}
    annotations = [
        {
            "image_id": record.image_id,
            "category_id": int(label),
            "bbox": box.tolist(),
            "segmentation": {"size": list(record.size), "counts": runs},
            "iscrowd": int(crowd),
            "area": float(area),
        }
        for record in records
        for label, box, runs, crowd, area in zip(
            record.truth.labels, record.truth.boxes, record.truth.runs, record.crowd, record.area, strict=True
        )
    ]
    # Matches are kept by number, and 0 stands for none.
    numbered = [{"id": number, **each} for number, each in enumerate(annotations, start=1)]
    images = [{"id": r.image_id, "height": r.size[0], "width": r.size[1]} for r in records]
    return {"images": images, "annotations": numbered, "categories": [{"id": label} for label in sorted(labels)]}


def _results(records: Sequence[ImageRecord], kind: str) -> Iterator[dict[str, Any]]:
    """Without the other kind: whether an object is small is decided by its box, or by its mask."""
    for record in records:
        found, size = record.found, list(record.size)
        for label, box, runs, score in zip(found.labels, found.boxes, found.runs, record.scores, strict=True):
            masks = {"segmentation": {"size": size, "counts": runs}}
            shape = masks if kind == "segm" else {"bbox": box.tolist()}
            yield {"image_id": record.image_id, "category_id": int(label), "score": float(score), **shape}
