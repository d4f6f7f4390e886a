"""Views of pictures with objects: published masks come out unchanged, and boxes and masks follow every jitter."""

import json

import numpy as np
import pytest
import torch
from dense_sets import config, data_config, list_path, write_coco
from faster_coco_eval.core import mask
from PIL import Image

from pipeline.core.seeds import seed_everything
from pipeline.data.dense.detection_views import JitteredView, WholeView, fitted_size
from pipeline.data.dense.outlines import cut, extent
from pipeline.data.kind import kind_of
from pipeline.data.readers.coco import read_coco
from pipeline.data.store.opening import open_split
from pipeline.dense.rasters import rasterised

REAL = {"image_size": 128, "num_train": 50, "num_val": 32}


@pytest.fixture(scope="session")
def real(coco_small):
    """Train and val of 85 real pictures, and the lists as published."""
    samples = {split: open_split(data_config("coco", **REAL), coco_small, split) for split in ("train", "val")}
    return samples, {split: json.loads(list_path(coco_small, split).read_text()) for split in samples}


def published(content, image_id):
    return [entry for entry in content["annotations"] if entry["image_id"] == image_id]


def by_the_library(entry, height, width):
    return mask.decode(mask.segmToRle(entry["segmentation"], width, height)).reshape(height, width)


def tight_box(pixels):
    rows, columns = np.nonzero(pixels)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


# Training


@pytest.mark.slow
def test_view__at_the_published_size__has_the_published_pixels_and_masks(real):
    samples, lists = real
    for index in range(20):
        sample = samples["train"][index]
        width, height = sample.image.size
        inputs, targets = JitteredView(256, (1, 1), 0, "bitmaps").seen(sample, (width, height), (0, 0), False)
        assert np.array_equal(inputs[:, :height, :width].permute(1, 2, 0), np.asarray(sample.image))
        assert not inputs[:, height:].any() and not inputs[:, :, width:].any()
        assert targets["size"].tolist() == [height, width]
        entries = published(lists["train"], sample.image_id)
        wanted = [by_the_library(entry, height, width) for entry in entries]
        drawn = [pixels for pixels in wanted if pixels.any()]
        assert len(drawn) == len(targets["masks"]) > 0
        for pixels, found in zip(drawn, targets["masks"], strict=True):
            assert np.array_equal(found[:height, :width], pixels) and found.sum() == pixels.sum()


@pytest.mark.slow
def test_view__jittered__has_boxes_that_are_the_bounds_of_its_masks(real):
    samples, _ = real
    view, smaller, larger = kind_of(data_config("coco", **REAL, outlines="bitmaps")).train_view(), 0, 0
    for index in range(50):
        seed_everything("test", index)
        inputs, targets = view(samples["train"][index])
        height, width = targets["size"].tolist()
        smaller, larger = smaller + (max(height, width) < 128), larger + (min(height, width) == 128)
        assert inputs.shape == (3, 128, 128) and inputs.dtype == torch.uint8 and max(height, width) <= 128
        assert not inputs[:, height:].any() and not inputs[:, :, width:].any()
        masks = targets["masks"]
        assert masks.shape[1:] == (128, 128) and masks.dtype == torch.uint8
        assert not masks[:, height:].any() and not masks[:, :, width:].any()
        assert len(masks) == len(targets["boxes"]) == len(targets["labels"])
        assert targets["boxes"].tolist() == [tight_box(found.numpy()) for found in masks]
    assert smaller > 5 and larger > 5


@pytest.mark.slow
@pytest.mark.parametrize("is_flipped", [False, True], ids=["as it is", "flipped"])
def test_view__enlarged_and_cropped__shows_the_same_place_of_picture_and_masks(real, is_flipped):
    """The reference moves published bitmaps as pictures are moved."""
    samples, lists = real
    compared = 0
    for index in range(12):
        sample = samples["train"][index]
        width, height = sample.image.size
        size, corner = (2 * width, 2 * height), (width // 3, height // 4)
        inputs, targets = JitteredView(200, (1, 1), 0, "bitmaps").seen(sample, size, corner, is_flipped)

        def moved(picture, size=size, corner=corner):
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_flipped else picture
            whole = np.asarray(picture.resize(size, Image.Resampling.BILINEAR))
            return whole[corner[1] : corner[1] + 200, corner[0] : corner[0] + 200]

        wanted = moved(sample.image)
        assert np.array_equal(inputs[:, : wanted.shape[0], : wanted.shape[1]].permute(1, 2, 0), wanted)
        assert targets["size"].tolist() == list(wanted.shape[:2])
        bitmaps = [by_the_library(entry, height, width) for entry in published(lists["train"], sample.image_id)]
        references = [moved(Image.fromarray(255 * bitmap)) >= 128 for bitmap in bitmaps]
        for found in targets["masks"].numpy()[:, : wanted.shape[0], : wanted.shape[1]]:
            overlaps = [(found & other).sum() / (found | other).sum() for other in references]
            if found.sum() > 400:
                compared += 1
                assert max(overlaps) > 0.85
    assert compared > 20


def test_view__of_runs__follows_flip_and_crop_to_the_pixel(tmp_path):
    sample = open_split(config("coco"), write_coco(tmp_path), "train")[0]
    _, targets = JitteredView(80, (1, 1), 0, "bitmaps").seen(sample, (120, 80), (30, 4), True)
    assert targets["labels"].tolist() == [2] and targets["size"].tolist() == [76, 80]
    # Rows 4 to 12 and columns 1 to 3 of 60: flipped 57 to 59, doubled 114 to 118, without 20 at the left and 4 above.
    _, targets = JitteredView(100, (1, 1), 0, "bitmaps").seen(sample, (120, 80), (20, 4), True)
    (found,) = targets["masks"][targets["labels"] == 1]
    wanted = torch.zeros(100, 100, dtype=torch.uint8)
    wanted[4:20, 94:98] = 1
    assert torch.equal(found, wanted)


def test_view__crowds_and_what_is_cut_off__are_not_trained_on(tmp_path):
    sample = open_split(config("coco"), write_coco(tmp_path), "train")[0]
    view = JitteredView(32, (1, 1), 0)
    assert view.seen(sample, (60, 40), (0, 0), False)[1]["labels"].tolist() == [2, 1]
    assert view.seen(sample, (60, 40), (20, 0), False)[1]["labels"].tolist() == [2]


def test_view__of_a_picture_without_objects__has_no_rows(tmp_path):
    write_coco(tmp_path)
    empty = read_coco(tmp_path, "train", "train2017", "annotations/instances_train2017.json", False).samples[1]
    _, targets = kind_of(config("coco")).train_view()(empty)
    shapes = {name: (tuple(found.shape), found.dtype) for name, found in targets.items()}
    assert shapes == {
        "boxes": ((0, 4), torch.float32),
        "edges": ((0, 0, 4), torch.float64),
        "with_mask": ((0,), torch.int64),
        "labels": ((0,), torch.int64),
        "masks": ((0, 32, 32), torch.uint8),
        "size": ((2,), torch.int64),
    }
    _, targets = kind_of(config("coco")).eval_view()(empty)
    assert targets["gt_boxes"].shape == (0, 4) and targets["gt_rle"].shape == targets["gt_ids"].shape == (0,)


def test_view__scales__are_uniform_in_the_range_and_crops_anywhere(tmp_path):
    sample = open_split(config("coco"), write_coco(tmp_path), "train")[0]
    view, seen = JitteredView(32, (0.5, 2.0), 0.5), []
    view.seen = lambda sample, *drawn: seen.append(drawn)  # what is drawn is all that is asked here
    seed_everything("test", 0)
    for _ in range(2000):
        view(sample)
    longer = np.array([max(size) for size, _, _ in seen])
    assert 16 <= longer.min() <= 17 and 63 <= longer.max() <= 64 and abs(longer.mean() - 40) < 1
    left = np.array([corner[0] / (size[0] - 32) for size, corner, _ in seen if size[0] > 48])
    assert left.min() < 0.05 and left.max() > 0.95 and abs(left.mean() - 0.5) < 0.04
    assert all(corner == (0, 0) for size, corner, _ in seen if max(size) <= 32)
    assert abs(np.mean([is_flipped for *_, is_flipped in seen]) - 0.5) < 0.05


def test_view__same_seed__is_the_same_whatever_came_before(real):
    samples, _ = real
    view = kind_of(data_config("coco", **REAL)).train_view()
    found = []
    for before in (0, 3):
        for index in range(before):
            view(samples["train"][index])
        seed_everything("view", 5)
        found.append(view(samples["train"][7]))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(found[0][1][key], found[1][1][key]) for key in found[0][1])


# Evaluation


def test_eval_view__of_real_pictures__has_the_truth_as_published(real):
    samples, lists = real
    view = WholeView(200)
    for index in range(0, 32, 3):
        sample = samples["val"][index]
        width, height = sample.image.size
        inputs, targets = view(sample)
        assert targets["index"] == index and targets["image_id"] == sample.image_id
        assert targets["original"].tolist() == [height, width]
        assert max(targets["size"].tolist()) == 200 and inputs.shape == (3, 200, 200)
        entries = published(lists["val"], sample.image_id)
        assert targets["gt_boxes"].tolist() == [entry["bbox"] for entry in entries]
        assert targets["gt_area"].tolist() == [entry["area"] for entry in entries]
        assert targets["gt_ids"].tolist() == [entry["id"] for entry in entries]
        assert targets["gt_crowd"].tolist() == [entry["iscrowd"] for entry in entries]
        numbers = samples["val"].category_ids
        assert [numbers[label - 1] for label in targets["gt_labels"]] == [entry["category_id"] for entry in entries]
        texts = targets["gt_rle"].split(targets["gt_rle_sizes"].tolist())
        for text, entry in zip(texts, entries, strict=True):
            runs = {"size": [height, width], "counts": text.numpy().tobytes()}
            assert np.array_equal(mask.decode(runs), by_the_library(entry, height, width))


def test_eval_view__of_a_crowd__keeps_its_runs(tmp_path):
    sample = open_split(config("coco"), write_coco(tmp_path), "train")[0]
    _, targets = kind_of(config("coco")).eval_view()(sample)
    assert targets["gt_crowd"].tolist() == [0, 0, 1]
    text = targets["gt_rle"].split(targets["gt_rle_sizes"].tolist())[2]
    runs = mask.decode({"size": [40, 60], "counts": text.numpy().tobytes()})
    assert runs[:, 0].all() and runs.sum() == 40


@pytest.mark.parametrize(
    ("size", "side", "wanted"),
    [
        ((640, 480), 1024, (1024, 768)),
        ((480, 640), 256, (192, 256)),
        ((3, 1000), 100, (1, 100)),
        ((7, 7), 9.6, (10, 10)),
    ],
    ids=str,
)
def test_fitted_size__of_a_picture__has_the_longer_side_and_at_least_a_pixel(size, side, wanted):
    assert fitted_size(size, side) == wanted


# Polygons


def polygons_within(content, image_id, size, corner):
    """Of each object: its polygons, enlarged to `size` and moved to `corner`."""
    picture = next(image for image in content["images"] if image["id"] == image_id)
    factors = np.array(size) / (picture["width"], picture["height"])
    for entry in published(content, image_id):
        if not entry["iscrowd"]:
            yield [np.array(part).reshape(-1, 2) * factors - corner for part in entry["segmentation"]]


@pytest.mark.slow
def test_view__of_polygons__has_the_bounds_of_a_fine_bitmap_and_the_same_area(real):
    """The reference draws each object in a bitmap 16 times as fine, and cuts the view out of that."""
    samples, lists = real
    side, fine, apart, cut_off = 64, 16, [], 0
    for index in range(12):
        sample = samples["train"][index]
        size, corner = (90, 80), (13, 7)
        _, targets = JitteredView(side, (1, 1), 0).seen(sample, size, corner, False)
        wanted = []
        for polygons in polygons_within(lists["train"], sample.image_id, size, corner):
            moved = [((points + corner) * fine).flatten().tolist() for points in polygons]
            drawn = mask.decode(mask.merge(mask.frPyObjects(moved, fine * size[1], fine * size[0])))
            seen = drawn[corner[1] * fine :][: side * fine, corner[0] * fine :][:, : side * fine]
            cut_off += seen.sum() < drawn.sum()
            if seen.any():
                wanted.append(seen)
        assert len(wanted) <= len(targets["boxes"]) == len(targets["edges"]) == len(targets["labels"])
        for number, box in enumerate(targets["boxes"].double().numpy()):
            view = torch.tensor([[0.0, 0, side, side]])
            whole = rasterised(targets["edges"], torch.tensor([number]), view, side * fine)[0].numpy() > 0
            near = min(wanted, key=lambda pixels: (pixels != whole).sum())
            assert (near != whole).sum() <= 0.01 * near.sum() + 40 * fine
            beyond = (np.array(tight_box(near)) / fine - box) * (1, 1, -1, -1)  # of tips that no pixel is inside of
            assert beyond.min() > -2 / fine
            apart.append(beyond.max())
    assert len(apart) > 40 and cut_off > 10 and np.median(apart) < 1 / fine and max(apart) < 1


def test_extent__polygon_that_passes_a_corner_by__ends_where_it_is_seen():
    """It enters at the left, leaves there, and goes around the corner outside of the view, up and back."""
    around = np.array([10.0, 50, 10, 60, -10, 60, -10, -10, 20, -10, 20, -5, -5, -5, -5, 50])
    assert extent([around], 100, 100).tolist() == [0, 50, 10, 60]
    assert extent([np.array([-5.0, -5, 50, -5, -5, 50])], 100, 100).tolist() == [0, 0, 45, 45]
    assert extent([np.array([-9.0, -9, -2, -9, -9, -2])], 100, 100).tolist() == [0, 0, 0, 0]


def test_cut__polygon_inside_across_and_outside__keeps_its_part():
    inside = np.array([1.0, 1, 5, 1, 3, 4])
    assert cut(inside, 10, 10) is inside
    assert cut(inside + 20, 10, 10).tolist() == []
    square = cut(np.array([5.0, 5, 15, 5, 15, 15, 5, 15]), 10, 12).reshape(-1, 2)
    assert sorted(map(tuple, square.tolist())) == [(5, 5), (5, 12), (10, 5), (10, 12)]


def test_view__runs_among_polygons__stay_bitmaps_and_are_named(tmp_path):
    sample = open_split(config("coco"), write_coco(tmp_path), "train")[0]
    _, targets = JitteredView(100, (1, 1), 0).seen(sample, (120, 80), (20, 4), True)
    _, drawn = JitteredView(100, (1, 1), 0, "bitmaps").seen(sample, (120, 80), (20, 4), True)
    (number,) = targets["with_mask"].tolist()
    assert torch.equal(targets["labels"], drawn["labels"]) and targets["labels"][number] == 1
    assert torch.equal(targets["masks"][0], drawn["masks"][number])
    assert torch.equal(targets["boxes"][number], drawn["boxes"][number]) and not targets["edges"][number].any()
    other = 1 - number
    assert targets["edges"][other].any()
    assert (targets["boxes"][other] - drawn["boxes"][other]).abs().max() <= 1
