"""Polygons, run lengths and bitmaps against the library that evaluates COCO, and against a few lines of numpy."""

import numpy as np
import pytest
from faster_coco_eval.core import mask

from pipeline.data.dense.outlines import bitmap, bounds, compressed, decompressed, expanded, moved, run_lengths


@pytest.fixture(params=range(6), ids=lambda seed: f"seed {seed}")
def pixels(request):
    draw = np.random.default_rng(request.param)
    share = [0.0, 0.02, 0.5, 0.9, 1.0, 0.3][request.param]
    return (draw.random((draw.integers(1, 70), draw.integers(1, 300))) < share).astype(np.uint8)


def reference(pixels):
    return mask.encode(np.asfortranarray(pixels))


def test_decompressed__of_what_the_library_writes__are_the_runs(pixels):
    counts = decompressed(reference(pixels)["counts"])
    assert counts == run_lengths(pixels)
    assert np.array_equal(expanded(np.array(counts), *pixels.shape), pixels)


def test_compressed__of_runs__is_what_the_library_writes(pixels):
    assert compressed(np.array(run_lengths(pixels)), *pixels.shape) == reference(pixels)["counts"]


@pytest.mark.parametrize("text", [b"T", b"1 2", b"\x80"], ids=["breaks off", "a space", "no such character"])
def test_decompressed__of_damaged_text__is_refused(text):
    with pytest.raises(ValueError, match="run lengths"):
        decompressed(text)


def test_bitmap__of_two_polygons__is_their_union_cut_at_the_border():
    squares = [np.array([-9.0, 2, 3, 2, 3, 6, -9, 6]), np.array([2.0, 4, 90, 4, 90, 5, 2, 5])]
    wanted = np.zeros((8, 10), dtype=np.uint8)
    wanted[2:6, :3] = wanted[4:5, 2:] = 1
    assert np.array_equal(bitmap(squares, 8, 10), wanted)


def test_bounds__of_bitmaps__contain_all_pixels_and_no_empty_border(pixels):
    ((left, top, right, bottom),) = bounds(pixels[None]).astype(int)
    assert pixels[top:bottom, left:right].sum() == pixels.sum()
    if pixels.any():
        inside = pixels[top:bottom, left:right]
        assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
    else:
        assert (left, top, right, bottom) == (0, 0, 0, 0)


def test_moved__polygon__has_x_and_y_multiplied_and_shifted():
    (found,) = moved([np.array([1.0, 2, 3, 4, 5, 6])], (10, 100), (-1, 1))
    assert found.tolist() == [9, 201, 29, 401, 49, 601]


@pytest.mark.parametrize("seed", range(8))
def test_bitmap__of_any_polygons__is_what_the_library_decodes(seed):
    draw = np.random.default_rng(seed)
    height, width = draw.integers(1, 50, 2)
    polygons = [draw.uniform(-20, 60, 2 * draw.integers(3, 7)).round(2) for _ in range(draw.integers(1, 4))]
    runs = mask.merge(mask.frPyObjects([polygon.tolist() for polygon in polygons], int(height), int(width)))
    assert np.array_equal(bitmap(polygons, int(height), int(width)), mask.decode(runs))


def test_bitmap__of_polygons_outside_or_all_over__is_empty_or_full():
    around, beside = np.array([-5.0, -5, 20, -5, 20, 20, -5, 20]), np.array([30.0, 1, 40, 1, 40, 5])
    assert bitmap([around], 8, 10).all() and not bitmap([beside], 8, 10).any()
