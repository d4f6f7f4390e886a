"""Polygons as targets of masks, against COCO's own rasteriser, box by box as detectron2 does it."""

import numpy as np
import pytest
import torch
from faster_coco_eval.core import mask

from pipeline.data.dense.outlines import edges_of
from pipeline.dense.rasters import rasterised
from pipeline.dense.regions import mask_targets, masks_within


def within_box(polygons, box, side):
    """As `rasterize_polygons_within_box` of detectron2."""
    width, height = max(box[2] - box[0], 0.1), max(box[3] - box[1], 0.1)
    moved = []
    for polygon in polygons:
        points = (np.asarray(polygon).reshape(-1, 2) - box[:2]) * (side / width, side / height)
        moved.append(points.flatten().tolist())
    return mask.decode(mask.merge(mask.frPyObjects(moved, side, side)))


def star(draw, points):
    """A polygon that does not cross itself, in either direction."""
    angles = np.sort(draw.uniform(0, 2 * np.pi, points))[:: draw.choice([1, -1])]
    radius = draw.uniform(5, 30, points)
    centre = draw.uniform(20, 60, 2)
    return (centre + radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)).flatten()


@pytest.mark.parametrize("side", [14, 28])
def test_rasterised__any_polygons_and_boxes__are_cocos_bitmaps(side):
    draw, differing = np.random.default_rng(0), 0
    outlines = [[star(draw, int(draw.integers(3, 40))) for _ in range(1 + number % 3)] for number in range(20)]
    objects = draw.integers(0, 20, 100)
    corners = draw.uniform(-5, 60, (100, 2))
    boxes = np.concatenate([corners, corners + draw.uniform(0.5, 60, (100, 2))], axis=1).astype(np.float32)
    found = rasterised(
        torch.from_numpy(edges_of(outlines)), torch.from_numpy(objects), torch.from_numpy(boxes), side
    ).numpy()
    for number, box, pixels in zip(objects, boxes.astype(np.float64), found, strict=True):
        differing += (within_box(outlines[number], box, side) != pixels).sum()
    assert found.mean() > 0.05
    assert differing <= 1e-4 * found.size


def test_rasterised__box_without_extent_or_image_without_objects__is_there():
    edges = torch.from_numpy(edges_of([[np.array([0.0, 0, 8, 0, 8, 8, 0, 8])]]))
    found = rasterised(edges, torch.tensor([0, 0]), torch.tensor([[0.0, 0, 8, 8], [2, 2, 2, 2]]), 4)
    assert found[0].all() and found[1].all()
    assert rasterised(torch.zeros(0, 0, 4), torch.tensor([0]), torch.tensor([[0.0, 0, 8, 8]]), 4).shape == (1, 4, 4)


def test_masks_within__some_objects_with_runs__takes_bitmaps_for_those():
    square = np.array([4.0, 4, 12, 4, 12, 12, 4, 12])
    bitmap = torch.zeros(1, 32, 32, dtype=torch.uint8)
    bitmap[0, 16:24, 16:20] = 1
    target = {"edges": torch.from_numpy(edges_of([[square], []])), "masks": bitmap, "with_mask": torch.tensor([1])}
    objects, boxes = torch.tensor([1, 0, 1]), torch.tensor([[16.0, 16, 24, 24], [4, 4, 20, 20], [8, 16, 24, 32]])
    found = masks_within(target, objects, boxes, 8)
    assert torch.equal(found[[0, 2]], mask_targets(bitmap, torch.tensor([0, 0]), boxes[[0, 2]], 8))
    assert found[1, :4, :4].all() and found[1].sum() == 16
