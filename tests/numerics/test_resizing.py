"""Batched resizing against Pillow: cut, resize, shift, mirror, pad, to the last bit."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from pipeline.data.images.gpu.resizing import MAX_SHRINK, Axis, cut, needed, resize_batch, taps_of

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def noise(height, width, channels=3, seed=0):
    """Sharp edges and all values: what rounds differently is found."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def resized(images, axes, size, interpolation="bicubic"):
    """(B, height, width, C) of images that lie one after the other; `axes` are rows and columns of each."""
    offsets = np.cumsum([0, *(image.shape[0] * image.shape[1] for image in images)])
    cuts = [cut(int(offset), image.shape[1], *both) for offset, image, both in zip(offsets, images, axes, strict=False)]
    extent = max(each.outer.kept for each in cuts)
    pixels = torch.from_numpy(np.concatenate([image.reshape(-1, image.shape[2]) for image in images]))
    rows = torch.tensor([each.row for each in cuts])
    found = resize_batch(pixels, rows, taps_of(rows, max(size), interpolation), torch.arange(extent), size)
    assert found.dtype == torch.uint8
    return found.permute(0, 2, 3, 1).numpy()


def pillow(image, size, interpolation="bicubic"):
    squeezed = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    return np.asarray(squeezed.resize(size[::-1], FILTERS[interpolation])).reshape(*size, -1)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(24, 32), (30, 30), (32, 24)])
def test_resize_batch__images_of_many_sizes__equal_pillow_to_the_bit(interpolation, channels, size):
    heights, widths = ([1, 7, out - 1, out, out + 1, out + 7, MAX_SHRINK * out] for out in size)
    images = [noise(height, width, channels, height * width) for height in heights for width in widths]
    axes = [(Axis(image.shape[0], size[0]), Axis(image.shape[1], size[1])) for image in images]
    expected = np.stack([pillow(image, size, interpolation) for image in images])
    assert np.array_equal(resized(images, axes, size, interpolation), expected)


@pytest.mark.parametrize("height", [20, 30, 48])
def test_resize_batch__mirrored__is_pillows_mirror(height):
    image = noise(height, 40)
    expected = ImageOps.mirror(Image.fromarray(pillow(image, (24, 32))))
    found = resized([image], [(Axis(height, 24), Axis(40, 32, 31, -1))], (24, 32))
    assert np.array_equal(found[0], np.asarray(expected))


@pytest.mark.parametrize(("top", "left"), [(-4, 3), (4, -2), (0, 0)])
def test_resize_batch__shifted__is_a_window_of_the_resized_image_with_black_around(top, left):
    image = noise(20, 20)
    whole = ImageOps.expand(Image.fromarray(pillow(image, (32, 32))), 4)
    expected = np.asarray(whole.crop((left + 4, top + 4, left + 36, top + 36)))
    assert np.array_equal(resized([image], [(Axis(20, 32, top), Axis(20, 32, left))], (32, 32))[0], expected)


def test_resize_batch__region_of_an_image__is_pillows_crop_resized():
    image, (top, left, height, width) = noise(50, 60), (5, 7, 33, 41)
    each = cut(top * 60 + left, 60, Axis(height, 24), Axis(width, 32))
    rows, pixels = torch.tensor([each.row]), torch.from_numpy(image.reshape(-1, 3))
    found = resize_batch(pixels, rows, taps_of(rows, 32, "bicubic"), torch.arange(height), (24, 32))
    expected = pillow(np.ascontiguousarray(image[top : top + height, left : left + width]), (24, 32))
    assert np.array_equal(found[0].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("shape", [(60, 61), (33, 90), (20, 24), (96, 70)])
@pytest.mark.parametrize(("top", "left"), [(9, 11), (0, 24), (-3, 2)])
def test_resize_batch__only_the_needed_pixels__give_the_window_of_the_whole(shape, interpolation, top, left):
    image, size, window = noise(*shape), (48, 56), (24, 32)
    whole = ImageOps.expand(Image.fromarray(pillow(image, size, interpolation)), 3)
    expected = np.asarray(whole.crop((left + 3, top + 3, left + 3 + window[1], top + 3 + window[0])))
    spans = [needed(*each) for each in zip(shape, size, (top, left), window, strict=True)]
    axes = [
        Axis(length, resized, first, 1, begin, length - end)
        for length, resized, first, (begin, end) in zip(shape, size, (top, left), spans, strict=True)
    ]
    part = np.ascontiguousarray(image[slice(*spans[0]), slice(*spans[1])])
    assert part.size < image.size
    assert np.array_equal(resized([part], [axes], window, interpolation)[0], expected)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_taps__any_length_up_to_the_limit__have_weights_that_sum_to_one_and_sums_that_int32_holds(interpolation):
    lengths = torch.arange(1, 28 * MAX_SHRINK + 1)
    cuts = [cut(0, 100, Axis(length, 28), Axis(length, 28)) for length in lengths.tolist()]
    places, weights = taps_of(torch.tensor([each.row for each in cuts]), 28, interpolation)
    assert weights.dtype == torch.int32
    assert int(places.min()) == 0 and torch.equal(places.amax(dim=(1, 2, 3)), lengths - 1)
    assert int(255 * weights.long().abs().sum(dim=-1).max()) + 2**21 < 2**31
    sums = weights.sum(dim=-1) / 2**22
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=4e-6, rtol=0)
