"""The evaluation of attacks by gradient matching: its numbers, its pairs, its pictures."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from small_set import build, config_of

from pipeline.evals.base import EVALS
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.evals.privacy.gradient_matching import (
    bounds_of,
    draw_curves,
    known_labels,
    paired,
    patches_where_they_fit,
)
from pipeline.evals.privacy.leakage import pixels_of
from pipeline.models.jigsaw import shuffle_patches
from pipeline.models.patches import Grid
from pipeline.privacy.matching import Matching, attack
from pipeline.tasks.classify import Classify

SHORT = {"images": 4, "iterations": 6, "tv": 0.02, "signed": False, "pictures": 3}


def first_images(world, count=4):
    task = Classify(world.data, torch.device("cpu"))
    return task.eval_batch(torch.from_numpy(world.pixels[:count, None]), torch.from_numpy(world.labels[:count]).long())


def psnr_of(found, wanted, data):
    """Of images that are rounded to 256 levels, one at a time."""
    pairs = zip(*((255 * pixels_of(each, data)).round().numpy() / 255 for each in (found, wanted)), strict=True)
    return [float(-10 * np.log10(((one - other) ** 2).mean())) for one, other in pairs]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["a", "b", "c"])
def test_gradient_matching__numbers__are_those_of_the_attack_itself(world, setting):
    method = build("mjp")
    images, labels = first_images(world)
    moved, shuffled = Shuffler(method, 0.5, 0)(images)
    inputs, hidden = (images, None) if setting == "a" else (moved, shuffled)
    wanted = images if setting == "c" else inputs
    cfg = Matching(iterations=6, tv=0.02, signed=False)
    expected = attack(method, inputs, labels, hidden, cfg, bounds_of(world.data))

    found = world.evaluate("gradient_matching", method, setting=setting, shuffle_ratio=0.5, **SHORT)

    assert found.per_image["psnr"] == pytest.approx(psnr_of(expected.images, wanted, world.data), rel=1e-5)
    fitted = patches_where_they_fit(expected.images, wanted, Grid(7, 7))
    assert found.per_image["patch_psnr"] == pytest.approx(psnr_of(fitted, wanted, world.data), rel=1e-5)
    assert found.per_image["blank_psnr"] == pytest.approx(psnr_of(0 * wanted, wanted, world.data), rel=1e-5)
    assert found.per_image["gradient_distance"] == pytest.approx(expected.distance.numpy(), rel=1e-5)
    assert found.metrics["label_accuracy"] == 100
    assert "28 px" in found.reasons["lpips"] and found.count == 4


@pytest.mark.slow
def test_gradient_matching__protected_run__is_attacked_through_its_protection(world):
    method = build("baseline")
    plain, noisy = (
        world.evaluate("gradient_matching", method, protection=protection, **SHORT)
        for protection in (None, {"noise": 100.0})
    )
    assert noisy.metrics["gradient_distance"] > plain.metrics["gradient_distance"]
    assert noisy.metrics["label_accuracy"] < 100


@pytest.mark.slow
def test_gradient_matching__gradient_of_several_images__has_numbers_of_each(world):
    found = world.evaluate("gradient_matching", build("baseline"), batch=2, **SHORT)
    distances = found.per_image["gradient_distance"]
    assert len(found.per_image["psnr"]) == 4
    assert distances[0] == distances[1] != distances[2] == distances[3]


@pytest.mark.slow
def test_gradient_matching__progress__has_a_row_for_each_image_and_a_column_for_each_picture(world):
    narrow, wide = (
        Image.open(
            io.BytesIO(world.evaluate("gradient_matching", build("mjp"), **SHORT | changes).files["progress.png"])
        )
        for changes in ({"shown": 2, "setting": "a"}, {"shown": 3, "pictures": 6, "setting": "b"})
    )
    row, column = 112 + 12 + 6 + 6, 112 + 6  # an image, its caption and gaps
    assert wide.width - narrow.width >= 4 * column  # three pictures, and the shuffled image
    assert wide.height > narrow.height + row / 2


def test_paired__recovered_images_in_another_order__are_put_next_to_their_originals():
    wanted = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    places = [2, 0, 1, 5, 4, 3]  # each within its group of three
    recovered = wanted[places] + 0.1
    assert torch.allclose(recovered[paired(recovered, wanted, 3)], wanted + 0.1)
    assert paired(recovered, wanted, 1).tolist() == [0, 1, 2, 3, 4, 5]


def test_known_labels__in_any_order__count_those_of_their_own_group():
    found, wanted = torch.tensor([1, 2, 3, 4]), torch.tensor([2, 1, 4, 1])
    assert known_labels(found, wanted, 2).tolist() == [1, 1, 1, 0]
    assert known_labels(found, wanted, 1).tolist() == [0, 0, 0, 0]


def test_bounds__of_a_set__are_black_and_white_as_a_model_sees_them(world):
    black, white = (pixels_of(bound[None], world.data) for bound in bounds_of(world.data))
    assert (float(black), float(white)) == pytest.approx((0, 1))


@pytest.mark.slow
def test_curves__of_distances_that_reach_zero__are_drawn():
    curves = torch.tensor([[1.0, 0.1, 0.0], [2.0, 0.5, 0.2]])
    picture = Image.open(io.BytesIO(draw_curves(curves, "cosine")))
    assert picture.size == (704, 396) and draw_curves(curves, "cosine") == draw_curves(curves, "cosine")


def test_config__images_that_make_no_whole_groups__are_refused():
    with pytest.raises(ValueError, match="images 6 must be a multiple of batch 4"):
        EVALS.get("gradient_matching").Config(images=6, batch=4)


@pytest.mark.parametrize("kind", ["baseline", "no positions", "mjp"])
def test_reason_against__a_vit_that_classifies__is_none(world, kind):
    runs = {"model": world.run_of(build(kind))}
    assert EVALS.get("gradient_matching").reason_against(config_of("gradient_matching"), runs) == ""


def test_patches__of_a_shuffled_image__go_back_where_they_belong():
    images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    order = torch.stack([torch.randperm(49, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)])
    mixed = shuffle_patches(images, order, Grid(7, 7))

    assert torch.equal(patches_where_they_fit(mixed, images, Grid(7, 7)), images)
    assert torch.equal(patches_where_they_fit(images, images, Grid(7, 7)), images)
