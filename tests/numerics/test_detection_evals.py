"""Evaluations of detectors, against one image at a time."""

import io
import json

import numpy as np
import pytest
import torch
from peers import peers
from PIL import Image
from small_set import MEAN, STD, build

from pipeline.dense.average_precision import METRICS, ImageRecord, Objects, average_precision, encoded, record_of
from pipeline.evals.base import EVALS
from pipeline.evals.dense import detection_pictures
from pipeline.evals.dense.detection_pictures import PALETTE, SIDE, draw_objects

pytestmark = pytest.mark.slow


def listed(world):
    """What the files of the validation set say of each image, in order."""
    content = json.loads((world.site.data["small_objects"] / "annotations/instances_val2017.json").read_text())
    for image in content["images"]:
        yield image, [each for each in content["annotations"] if each["image_id"] == image["id"]]


@torch.no_grad()
def records_of(method, world):
    """Each image by itself, read and resized by plain calls."""
    records = []
    for image, annotations in listed(world):
        pixels = Image.open(world.site.data["small_objects"] / "val2017" / image["file_name"])
        small = np.array(pixels.resize((32, round(32 * 40 / 44)), Image.Resampling.BILINEAR))
        inputs = torch.zeros(1, 1, 32, 32)
        inputs[0, 0, : small.shape[0]] = (torch.tensor(small).float() / 255 - MEAN) / STD
        size = torch.tensor(small.shape)
        (found,) = method.detect(inputs, [{"size": size}])
        boxes = np.array([each["bbox"] for each in annotations], dtype=float)
        runs = [rectangle(box, (40, 44)) for box in boxes]
        target = {
            "size": size,
            "original": torch.tensor([40, 44]),
            "image_id": torch.tensor(image["id"]),
            "gt_boxes": torch.from_numpy(boxes),
            "gt_labels": torch.tensor([each["category_id"] // 10 for each in annotations]),
            "gt_crowd": torch.tensor([each["iscrowd"] for each in annotations]),
            "gt_area": torch.tensor([each["area"] for each in annotations]),
            "gt_rle": torch.tensor(list(b"".join(runs)), dtype=torch.uint8),
            "gt_rle_sizes": torch.tensor([len(run) for run in runs]),
        }
        records.append(record_of(found, target))
    return records


def rectangle(box, size):
    mask = np.zeros(size, dtype=np.uint8)
    x, y, w, h = (int(value) for value in box)
    mask[y : y + h, x : x + w] = 1
    return encoded(mask)


def test_detection__small_set__matches_one_image_at_a_time(world):
    method = build("mask_rcnn")
    outcome = world.evaluate("detection", method)
    expected = average_precision(records_of(method, world)).metrics
    assert outcome.metrics == pytest.approx(expected, abs=1e-6)
    assert outcome.count == 9 and outcome.per_image == {}  # AP is no mean over images
    assert 0 < outcome.metrics["ap_b"] < 100
    assert {*outcome.metrics, *outcome.reasons} == set(METRICS)
    assert set(outcome.reasons.values()) == {"the set has no large objects"}


@pytest.mark.parametrize("size", [2, 3])
def test_detection__shared_by_processes__is_that_of_one_to_the_last_bit(world, size):
    method = build("mask_rcnn")
    alone = world.evaluate("detection", method)
    together = [world.evaluate("detection", method, peer=peer) for peer in peers(size)][-1]
    assert together.metrics == alone.metrics


@pytest.mark.parametrize("name", ["detection", "detection_pictures"])
def test_reason__method_without_objects__is_given(world, name):
    kind = EVALS.get(name)
    for method, reason in (("baseline", "method supervised does not detect objects"), ("mask_rcnn", "")):
        assert kind.reason_against(kind.Config(), {"model": world.run_of(build(method))}) == reason


def test_pictures__of_a_detector__have_two_columns_and_a_row_for_each_image(world):
    files = world.evaluate("detection_pictures", build("mask_rcnn"), images=3).files
    page = Image.open(io.BytesIO(files["detections.png"]))
    assert 2 * SIDE < page.width < 2.2 * SIDE and 3 * SIDE < page.height < 3.4 * SIDE


def test_pictures__truth__is_drawn_without_crowds_and_what_was_found_from_the_least_score(world, monkeypatch):
    shown = []

    def noted(picture, record, objects, texts, chosen):
        shown.append((record, objects is record.truth, chosen.tolist()))
        return draw_objects(picture, record, objects, texts, chosen)

    monkeypatch.setattr(detection_pictures, "draw_objects", noted)
    world.evaluate("detection_pictures", build("mask_rcnn"), images=9, min_score=0.3)
    for record, is_truth, chosen in shown:
        kept = record.crowd == 0 if is_truth else record.scores >= 0.3
        assert chosen == np.flatnonzero(kept).tolist()
    assert any(record.crowd.any() for record, *_ in shown)


def test_drawn__one_object__is_framed_and_half_covered_in_the_colour_of_its_class():
    objects = Objects(np.array([[10.0, 5, 20, 10]]), np.array([2]), [rectangle([10, 5, 20, 10], (20, 40))])
    record = ImageRecord(1, (20, 40), objects, np.zeros(1), np.ones(1), objects, np.ones(1))
    found = draw_objects(torch.full((1, 20, 40), 100, dtype=torch.uint8), record, objects, ["thing"], np.array([0]))
    assert found.shape == (3, SIDE, SIDE) and found.dtype == torch.uint8
    top = (SIDE - SIDE // 2) // 2  # the picture is twice as wide as high
    assert found[:, top + 120, 220].tolist() == [(100 + value) // 2 for value in PALETTE[1]]
    assert found[:, top + 50, 250].tolist() == list(PALETTE[1])  # the frame
    assert found[:, top + 180, 20].tolist() == [100] * 3  # the picture next to it
    assert found[:, 0, 0].tolist() == [255] * 3
    nothing = draw_objects(
        torch.full((1, 20, 40), 100, dtype=torch.uint8), record, objects, ["thing"], np.zeros(0, dtype=int)
    )
    assert nothing[:, top : top + SIDE // 2].unique().tolist() == [100]
