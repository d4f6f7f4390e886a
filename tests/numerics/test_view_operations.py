"""Each operation of RandAugment on a batch against timm's, which Pillow carries out: the same pixels."""

import os
from io import BytesIO
from pathlib import Path
from tarfile import open as open_tar

import numpy as np
import pytest
import torch
from PIL import Image
from pixels import same_as_pillows
from timm.data.auto_augment import (
    _RAND_INCREASING_TRANSFORMS,
    _RAND_TRANSFORMS,
    AugmentOp,
    RandAugment,
    rand_augment_transform,
)

from pipeline.core.seeds import seed_everything
from pipeline.data.images.gpu.operation_draws import KINDS_OF_TIMM, Kind, OperationRecorder, batched, noted, unpacked
from pipeline.data.images.gpu.view_operations import Colouring, changes_for, operate
from pipeline.data.images.transforms import _mend_posterize

NAMES = sorted({*_RAND_TRANSFORMS, *_RAND_INCREASING_TRANSFORMS})
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
FILL = (26, 128, 230)


def drawn_images():
    """Noise, few values, one value, two: what histograms and their steps may stumble over."""
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 256, (48, 40, 3)), rng.integers(100, 120, (48, 40, 3)), np.full((48, 40, 3), 77)
    stripes = np.where(np.arange(40)[None, :, None] < 1, 250, 249) * np.ones((48, 1, 3))
    return [Image.fromarray(np.asarray(pixels, dtype=np.uint8)) for pixels in (*shapes, stripes)]


def photographs():
    """Four of 224 pixels."""
    source = Path(os.environ.get("PATCHWORK_DATA", "")) / "imagenet-samples-256" / "imagenet-samples-256.tar"
    if not source.is_file():
        pytest.skip("PATCHWORK_DATA does not name the development data")
    with open_tar(source) as tar:
        files = [member for member in tar if member.name.lower().endswith((".jpeg", ".jpg"))][50::250]
        contents = [Image.open(BytesIO(tar.extractfile(file).read())).convert("RGB") for file in files]
    return [image.resize((224, 224)) for image in contents]


def both_ways(images, name, interpolation, seeds):
    """What timm makes of each image, and a device of all of them."""
    _mend_posterize()
    hparams = {"img_mean": FILL, "interpolation": FILTERS[interpolation], "magnitude_std": 2.0}
    timms = RandAugment([AugmentOp(name, 1.0, 8, hparams)], 1)
    staged, expected, operations = noted(timms), [], []
    for seed, image in zip(seeds, images, strict=True):
        seed_everything(seed)
        expected.append(np.asarray(timms(image)).transpose(2, 0, 1))
        seed_everything(seed)
        operations.append(staged(OperationRecorder(*image.size)).operations)
    batch = torch.from_numpy(np.stack([np.asarray(image).transpose(2, 0, 1) for image in images]))
    how = Colouring(interpolation, torch.tensor(FILL, dtype=torch.uint8))
    packed, counts = batched(operations)
    found = operate(batch, unpacked(packed, counts), counts, changes_for(how, compiled=False))
    return found.numpy(), np.stack(expected)


def test_every_operation_of_timm__is_known():
    assert {name.removesuffix("Increasing") for name in NAMES} == set(KINDS_OF_TIMM)


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("name", NAMES)
def test_operation__noise_and_flat_images__equals_timms(name, interpolation):
    images = drawn_images() * 8
    found, expected = both_ways(images, name, interpolation, range(len(images)))
    assert same_as_pillows(found, expected)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", _RAND_INCREASING_TRANSFORMS)
def test_operation__photographs__equals_timms_and_changes_something(name):
    images = photographs()
    found, expected = both_ways(images, name, "bicubic", range(len(images)))
    assert same_as_pillows(found, expected)
    assert not np.array_equal(found, np.stack([np.asarray(image).transpose(2, 0, 1) for image in images]))


def test_batched__images_with_no_one_and_two_operations__are_in_rounds_by_group():
    rotate, invert = (noted(RandAugment([AugmentOp(name, 1.0, 5)], 1)) for name in ("Rotate", "Invert"))
    one = invert(OperationRecorder(8, 8)).operations
    two = rotate(rotate(OperationRecorder(8, 8))).operations
    packed, counts = batched([two, one, one, []])
    found = unpacked(packed, counts)
    assert counts == [[1, 0, 1], [1, 0, 1]]
    assert found.images.tolist() == [2, 0, 1, 0]
    assert found.kinds.tolist() == [Kind.TABLE, Kind.WARP, Kind.TABLE, Kind.WARP]
    assert found.tables.tolist() == [[255 - value for value in range(256)]] * 2
    assert torch.equal(found.values[1::2], torch.tensor([operation.values for operation in two], dtype=torch.float64))


def test_batched__groups_that_are_to_be_recorded__are_filled_up_to_a_size_that_comes_again():
    rotate = noted(RandAugment([AugmentOp("Rotate", 1.0, 5)], 1))
    drawn = [rotate(OperationRecorder(8, 8)).operations if image in (3, 4, 9) else [] for image in range(16)]
    assert batched(drawn)[1] == [[0, 0, 3]]
    packed, counts = batched(drawn, fill=True)
    found = unpacked(packed, counts)
    assert counts == [[0, 0, 11]]  # 17 % of them, 2.72, and 5 deviations of 1.50
    assert found.images.tolist() == [3, 4, 9, *[3] * 8]
    assert torch.equal(found.values[3:], found.values[:1].expand(8, -1))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [128, 512])
def test_batched__rand_augment_of_many_batches__has_one_size(batch):
    """Another one would be compiled and recorded in the middle of a training."""
    _mend_posterize()
    draw = noted(rand_augment_transform("rand-m9-mstd0.5-inc1", {"interpolation": FILTERS["bicubic"]}))
    seed_everything("groups", batch)
    batches = [[draw(OperationRecorder(64, 64)).operations for _ in range(batch)] for _ in range(2**15 // batch)]
    assert len({str(batched(drawn, fill=True)[1]) for drawn in batches}) == 1
