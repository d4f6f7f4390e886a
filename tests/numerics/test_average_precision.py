"""Average precision: of the truth itself, of boxes that are shifted, and against COCO's own code."""

import io
import json
import os
import tarfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from faster_coco_eval import COCO, COCOeval_faster

from pipeline.core.errors import DataError
from pipeline.dense.average_precision import (
    METRICS,
    ImageRecord,
    Objects,
    _results,
    _truth,
    average_precision,
    encoded,
    reasons,
    record_of,
)
from pipeline.dense.detections import Detections
from pipeline.dense.resampled_precision import weighted_statistics
from pipeline.tasks.detect import AveragePrecision

SIZE = 100, 120


def rectangle(box, size=SIZE):
    mask = np.zeros(size, dtype=bool)
    x, y, w, h = (round(value) for value in box)
    mask[y : y + h, x : x + w] = True
    return encoded(mask)


def objects(boxes, labels, size=SIZE):
    boxes = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    return Objects(boxes, np.array(labels, dtype=np.int64), [rectangle(box, size) for box in boxes])


def record(image_id, truth, found, scores, crowd=None, share=1.0):
    """`share`: of its box that an object covers, as its annotation has it."""
    truth, found = objects(*truth), objects(*found)
    crowd = np.zeros(len(truth.labels), dtype=np.uint8) if crowd is None else np.array(crowd, dtype=np.uint8)
    area = truth.boxes[:, 2] * truth.boxes[:, 3] * share
    return ImageRecord(image_id, SIZE, truth, crowd, area, found, np.array(scores, dtype=np.float64))


def random_records(count=12, seed=0):
    """Truth in three sizes and classes; detections are near it, of another class, doubled, missing, or of nothing."""
    draw = np.random.default_rng(seed)
    records = []
    for image_id in range(count):
        number = draw.integers(0, 6)
        sides = draw.choice([12, 40, 98], size=(number, 1)) * draw.uniform(0.5, 1.0, (number, 2))
        corners = draw.uniform(0, 1, (number, 2)) * (np.array([120, 100]) - sides)
        truth = np.concatenate([corners, sides], axis=1).round()
        labels = draw.integers(1, 4, number)
        found = np.repeat(truth, 2, axis=0) + draw.normal(0, 3, (2 * number, 4)).round()
        guesses = np.where(draw.uniform(size=2 * number) < 0.8, np.repeat(labels, 2), draw.integers(1, 5, 2 * number))
        found = np.concatenate([found, [[5, 5, 30, 30]]])
        found[:, :2] = found[:, :2].clip(0)
        found[:, 2:] = found[:, 2:].clip(2)
        crowd = draw.uniform(size=number) < 0.15
        scores = draw.uniform(size=2 * number + 1)
        share = draw.uniform(0.3, 1, number)
        records.append(record(image_id, (truth, labels), (found, [*guesses, 1]), scores, crowd, share))
        records[-1].found.runs[:] = [rectangle(box - (0, 0, 2, 0)) for box in found]  # masks are not quite the boxes
    return records


def itself(records):
    """The truth as detections; crowds are none."""
    found = []
    for each in records:
        chosen = np.flatnonzero(each.crowd == 0)
        truth = each.truth
        own = Objects(truth.boxes[chosen], truth.labels[chosen], [truth.runs[number] for number in chosen])
        found.append(replace(each, found=own, scores=np.linspace(1, 0.5, len(chosen))))
    return found


def cocos_own(records):
    """The same by pycocotools, from one dict for everything."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = {"images": [], "annotations": [], "categories": [{"id": label} for label in range(1, 91)]}
    boxes, masks = [], []
    for r in records:
        truth["images"].append({"id": r.image_id, "height": r.size[0], "width": r.size[1]})
        for number in range(len(r.truth.labels)):
            truth["annotations"].append(
                {
                    "id": len(truth["annotations"]) + 1,
                    "image_id": r.image_id,
                    "category_id": int(r.truth.labels[number]),
                    "bbox": r.truth.boxes[number].tolist(),
                    "area": float(r.area[number]),
                    "iscrowd": int(r.crowd[number]),
                    "segmentation": {"size": list(r.size), "counts": r.truth.runs[number]},
                }
            )
        for number in range(len(r.found.labels)):
            about = {"image_id": r.image_id, "category_id": int(r.found.labels[number]), "score": r.scores[number]}
            boxes.append({**about, "bbox": r.found.boxes[number].tolist()})
            masks.append({**about, "segmentation": {"size": list(r.size), "counts": r.found.runs[number]}})
    values = []
    with redirect_stdout(io.StringIO()):
        for kind, results in (("bbox", boxes), ("segm", masks)):
            known = COCO()
            known.dataset = truth
            known.createIndex()
            evaluation = COCOeval(known, known.loadRes(results), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            values += (100 * evaluation.stats).tolist()
    return {name: value for name, value in zip(METRICS, values, strict=True) if value >= 0}


def test_metrics__are_twelve_of_boxes_and_twelve_of_masks():
    assert len(set(METRICS)) == 24
    assert METRICS[:7] == ("ap_b", "ap_b50", "ap_b75", "ap_b_small", "ap_b_medium", "ap_b_large", "ar_b_1")
    assert METRICS[12:] == tuple(name.replace("_b", "_m", 1) for name in METRICS[:12])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_average_precision__noisy_detections__equals_cocos_own_code(seed, capsys):
    records = random_records(seed=seed)
    found, expected = average_precision(records).metrics, cocos_own(records)
    assert found.keys() == expected.keys()
    assert [found[name] for name in found] == pytest.approx([expected[name] for name in found], abs=1e-9)
    assert 5 < found["ap_b"] < 95 and found["ap_b"] != found["ap_m"]
    assert capsys.readouterr().out == ""


def test_average_precision__truth_itself__is_100_with_crowds_and_empty_images():
    records = itself(random_records(20))
    assert any(each.crowd.any() for each in records) and any(len(each.truth.labels) == 0 for each in records)
    found = average_precision(records).metrics
    recalls_of_few = ("ar_b_1", "ar_m_1", "ar_b_10", "ar_m_10")
    assert all(value == pytest.approx(100) for name, value in found.items() if name not in recalls_of_few)


def test_average_precision__shifted_boxes__is_the_share_of_thresholds_that_they_pass():
    """A box of 40 px moved by 4 px has IoU 36 / 44 = 0.818: right at 0.50 to 0.80, 7 of 10 thresholds."""
    truth = [[10, 10, 40, 40], [60, 50, 40, 40]], [1, 2]
    moved = [[14, 10, 40, 40], [64, 50, 40, 40]], [1, 2]
    found = average_precision([record(7, truth, moved, [0.9, 0.8])]).metrics
    for letter in "bm":
        assert found[f"ap_{letter}"] == pytest.approx(70)
        assert (found[f"ap_{letter}50"], found[f"ap_{letter}75"]) == pytest.approx((100, 100))
        assert found[f"ar_{letter}_100"] == pytest.approx(70)


def test_average_precision__one_of_two_found_after_a_false_one__is_the_area_under_the_steps():
    """Precision 1/2 up to recall 1/2, then 0: 51 of 101 recalls, each 1/2."""
    truth = [[10, 10, 40, 40], [60, 50, 40, 40]], [1, 1]
    found = average_precision([record(7, truth, ([[100, 0, 10, 10], [10, 10, 40, 40]], [1, 1]), [0.9, 0.8])]).metrics
    assert found["ap_b"] == pytest.approx(100 * 51 / 101 / 2)


def test_average_precision__false_detections_in_an_image_without_objects__count():
    good = record(1, ([[10, 10, 40, 40]], [1]), ([[10, 10, 40, 40]], [1]), [0.5])
    empty = record(2, ([], []), ([[10, 10, 40, 40]], [1]), [0.9])
    assert average_precision([good]).metrics["ap_b"] == pytest.approx(100)
    assert average_precision([good, empty]).metrics["ap_b"] == pytest.approx(50)


def test_average_precision__no_detection__is_zero():
    found = average_precision([record(1, ([[10, 10, 40, 40]], [1]), ([], []), [])]).metrics
    assert (found["ap_b"], found["ap_m"]) == (0, 0)


def test_average_precision__size_that_the_set_lacks__is_left_out_with_a_reason():
    found = average_precision([record(1, ([[10, 10, 40, 40]], [1]), ([[10, 10, 40, 40]], [1]), [0.5])]).metrics
    missing = reasons(found)
    assert set(missing) == {
        f"{kind}_{letter}_{size}" for kind in ("ap", "ar") for letter in "bm" for size in ("small", "large")
    }
    assert missing["ap_b_small"] == "the set has no small objects"


def test_average_precision__area_of_an_object__is_the_annotated_one_and_not_that_of_its_box():
    """A box of 40 x 40 pixels is medium; an object that covers half of it is small."""
    box = [[10, 10, 40, 40]], [1]
    found = average_precision([record(1, box, box, [0.9], share=0.5)]).metrics
    for letter in "bm":
        assert found[f"ap_{letter}_small"] == pytest.approx(100) and f"ap_{letter}_medium" not in found


def test_average_precision__overlap_exactly_on_a_threshold__counts():
    """Half of a box has IoU 0.5: right at the first of ten thresholds."""
    found = average_precision([record(1, ([[10, 10, 40, 40]], [1]), ([[10, 10, 40, 20]], [1]), [0.9])]).metrics
    for letter in "bm":
        assert (found[f"ap_{letter}50"], found[f"ap_{letter}"]) == pytest.approx((100, 10))


def test_average_precision__area_of_a_detection__is_that_of_its_box_or_of_its_mask():
    """A thin object in a large box: for boxes the unmatched detection is large and ignored among small ones."""
    truth = ([[0, 0, 20, 20]], [1])
    thin = record(1, truth, ([[0, 0, 20, 20], [0, 0, 100, 90]], [1, 1]), [0.5, 0.9])
    thin.found.runs[1] = rectangle([0, 40, 100, 2])
    found = average_precision([thin]).metrics
    assert found["ap_b_small"] == pytest.approx(100)
    assert found["ap_m_small"] == pytest.approx(50)


# The metric of the task


def target_of(each):
    runs = b"".join(each.truth.runs)
    return {
        "size": torch.tensor([50, 60]),
        "original": torch.tensor(each.size),
        "image_id": torch.tensor(each.image_id),
        "index": torch.tensor(0),
        "gt_boxes": torch.from_numpy(each.truth.boxes),
        "gt_labels": torch.from_numpy(each.truth.labels),
        "gt_crowd": torch.from_numpy(each.crowd),
        "gt_area": torch.from_numpy(each.area),
        "gt_ids": torch.arange(len(each.area)),
        "gt_rle": torch.frombuffer(bytearray(runs), dtype=torch.uint8) if runs else torch.zeros(0, dtype=torch.uint8),
        "gt_rle_sizes": torch.tensor([len(run) for run in each.truth.runs], dtype=torch.int64),
    }


def detections_of(each):
    """Full masks in boxes of the input, which has half the size of the image."""
    corners = torch.from_numpy(each.found.boxes).float().clone()
    corners[:, 2:] += corners[:, :2]
    labels, scores = torch.from_numpy(each.found.labels), torch.from_numpy(each.scores).float()
    return Detections(corners / 2, scores, labels, torch.ones(len(labels), 28, 28))


def test_record_of__boxes_of_the_input__are_in_pixels_of_the_image_with_masks_that_fill_them():
    truth = [[10, 10, 40, 40], [50, 30, 9, 9]], [2, 3]
    detected = [[12, 20, 30, 50], [60, 2, 20, 20]], [2, 1]
    each = record(3, truth, detected, [0.9, 0.4], crowd=[0, 1], share=0.5)
    found = record_of(detections_of(each), target_of(each))
    assert found.image_id == 3 and found.size == SIZE
    assert found.area.tolist() == [800, 40.5] and found.crowd.tolist() == [0, 1]
    assert found.truth.labels.tolist() == [2, 3] and found.truth.boxes.tolist() == truth[0]
    assert found.found.labels.tolist() == [2, 1] and found.scores.tolist() == pytest.approx([0.9, 0.4])
    np.testing.assert_allclose(found.found.boxes, each.found.boxes)
    assert found.found.runs == each.found.runs and found.truth.runs == each.truth.runs


def test_record_of__box_outside_the_image__is_no_detection():
    each = record(3, ([[10, 10, 40, 40]], [2]), ([[130, 20, 30, 50], [60, 2, 20, 20]], [2, 1]), [0.9, 0.4])
    assert record_of(detections_of(each), target_of(each)).found.labels.tolist() == [1]


def measured(records):
    return [(detections_of(each), target_of(each)) for each in records]


@pytest.mark.slow
def test_metric__batches_in_another_order_or_in_two_processes__finds_the_same_to_the_last_bit():
    records = random_records()
    batches = {number: measured(records[4 * number : 4 * number + 4]) for number in range(3)}
    metrics = []
    for shares in ([[0, 1, 2]], [[2, 0, 1]], [[0, 2], [1]], [[1], [], [2, 0]]):
        each = [AveragePrecision() for _ in shares]
        for metric, share in zip(each, shares, strict=True):
            for number in share:
                metric.update(batches[number], number)
        states = [metric.state() for metric in each]
        each[0].merge(states)
        metrics.append(each[0].compute())
    assert all(found.metrics == metrics[0].metrics for found in metrics)
    assert metrics[0].count == 12 and metrics[0].errors == {} and metrics[0].per_image == {}
    expected = average_precision(records).metrics
    assert metrics[0].metrics["ap_b"] == pytest.approx(expected["ap_b"], abs=0.5)  # what sticks out is cut off there


def test_metric__no_object_at_all__is_refused():
    metric = AveragePrecision()
    metric.update(measured([record(2, ([], []), ([[10, 10, 40, 40]], [1]), [0.9])]), 0)
    with pytest.raises(DataError, match="none of 1 images has an object"):
        metric.compute()


# Real images


def real_records():
    """The 60 validation images of a small part of COCO, with its crowds and an image without objects."""
    folder = os.environ.get("PATCHWORK_DATA")
    if not folder:
        pytest.skip("PATCHWORK_DATA names no folder with coco-mini; set it to the folder of the development data")
    from faster_coco_eval.core import mask

    with tarfile.open(Path(folder) / "coco-mini" / "coco-mini.tar") as archive:
        content = json.load(archive.extractfile("coco-mini/annotations/instances_val2017.json"))
    records = []
    for image in content["images"]:
        size = image["height"], image["width"]
        own = [each for each in content["annotations"] if each["image_id"] == image["id"]]
        outlines = [mask.frPyObjects(each["segmentation"], *size) for each in own]
        runs = [(mask.merge(each) if isinstance(each, list) else each)["counts"] for each in outlines]
        boxes = np.array([each["bbox"] for each in own], dtype=np.float64).reshape(-1, 4)
        truth = Objects(boxes, np.array([each["category_id"] for each in own], dtype=np.int64), runs)
        crowd = np.array([each["iscrowd"] for each in own], dtype=np.uint8)
        area = np.array([each["area"] for each in own], dtype=np.float64)
        records.append(ImageRecord(image["id"], size, truth, crowd, area, truth, np.ones(len(own))))
    return records


@pytest.mark.slow
def test_average_precision__real_images__is_100_of_the_truth_and_cocos_own_of_shifted_boxes():
    records = itself(real_records())
    assert len(records) == 60
    assert sum(each.crowd.sum() for each in records) == 7
    assert min(len(each.truth.labels) for each in records) == 0
    found = average_precision(records).metrics
    assert found.keys() == set(METRICS)
    # Small masks are judged by the area in the list, which is that of the polygon and not of its pixels.
    assert all(found[name] == pytest.approx(100) for name in ("ap_b", "ap_b50", "ap_b75", "ap_m", "ap_m50", "ap_m75"))
    draw = np.random.default_rng(0)
    shifted = [
        replace(each, found=replace(each.found, boxes=each.found.boxes + draw.normal(0, 4, each.found.boxes.shape)))
        for each in records
    ]
    found, expected = average_precision(shifted).metrics, cocos_own(shifted)
    assert found == pytest.approx(expected, abs=1e-9)
    assert 20 < found["ap_b"] < 90 and found["ap_m"] == pytest.approx(100)


def evaluated(records):
    """What resampling takes: COCO's evaluation of boxes, with what it found in each image."""
    truth = COCO(_truth(records), print_function=str)
    results = truth.loadRes(list(_results(records, "bbox")))
    evaluation = COCOeval_faster(truth, results, "bbox", print_function=str, separate_eval=True)
    evaluation.run()
    return evaluation


def cocos_statistics(evaluation):
    """COCO says -1 where it has no objects."""
    return np.where(evaluation.stats[:12] > -1, evaluation.stats[:12], np.nan)


def test_weighted_statistics__all_weights_one__are_cocos_own():
    evaluation = evaluated(random_records(30))
    found = weighted_statistics(evaluation, np.ones((2, 30), dtype=np.int32))
    np.testing.assert_allclose(found, np.stack([cocos_statistics(evaluation)] * 2, axis=1), atol=1e-12)


def test_weighted_statistics__images_twice_and_left_out__are_those_of_such_a_set():
    records = random_records(20)
    weights = np.array([2, 0, 1, 3, 1] * 4, dtype=np.int32)
    drawn = [each for each, weight in zip(records, weights, strict=True) for _ in range(weight)]
    drawn = [replace(each, image_id=number) for number, each in enumerate(drawn)]
    found = weighted_statistics(evaluated(records), weights[None])[:, 0]
    np.testing.assert_allclose(found, cocos_statistics(evaluated(drawn)), atol=1e-12)


@pytest.mark.slow
def test_errors__of_average_precision__are_the_spread_over_other_images():
    sets = [average_precision(random_records(40, seed)).metrics for seed in range(40)]
    found = [average_precision(random_records(40, seed), resamples=50) for seed in range(4)]
    assert all(each.errors.keys() == each.metrics.keys() for each in found)
    for name in ("ap_b", "ap_m", "ar_b_10"):
        spread = np.std([each[name] for each in sets], ddof=1)
        assert np.mean([each.errors[name] for each in found]) == pytest.approx(spread, rel=0.35), name


@pytest.mark.slow
def test_errors__same_seed__are_the_same_and_without_resamples_there_are_none():
    records = random_records(10)
    one, other = (average_precision(records, resamples=20, seed=3).errors for _ in range(2))
    assert one == other != average_precision(records, resamples=20, seed=4).errors
    assert average_precision(records).errors == {}
