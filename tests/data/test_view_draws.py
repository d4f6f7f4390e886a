"""Draws of views, which are cheaper here than in timm, torchvision and numpy: the same numbers, and as many of them."""

import random

import numpy as np
import pytest
import torch
from timm.data.auto_augment import RandAugment, rand_augment_transform
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision.transforms import RandomHorizontalFlip

from pipeline.core.seeds import seed_everything
from pipeline.data.images.gpu.operation_draws import NotedAugment, OperationRecorder, drawn_below, noted
from pipeline.data.images.gpu.resizing import needed
from pipeline.data.images.gpu.view_steps import Plan, _single, decisions, resized_crop

SIZES = [(64, 64), (375, 500), (500, 333), (20, 200), (200, 20), (1, 1), (7, 3)]
SCALES = [(0.08, 1.0), (0.9, 1.0)]


def drawn(draw, *seed):
    """What is drawn, and what comes next from every generator."""
    seed_everything(*seed)
    return draw(), (random.gauss(0, 1), random.random(), np.random.random(), torch.rand(1).item())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_resized_crop__many_seeds__is_timms(size, scale):
    """Long images have crops that do not fit, ten times in a row: then it is the centre."""
    ratio, image = (3 / 4, 4 / 3), torch.empty(size)
    for seed in range(200):
        expected = drawn(lambda: RandomResizedCropAndInterpolation.get_params(image, scale, ratio), seed)
        assert drawn(lambda: resized_crop(*size, scale, ratio), seed) == expected


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
def test_flip__many_seeds__is_torchvisions(probability):
    (decide,) = decisions([RandomHorizontalFlip(probability)], "bicubic")
    for seed in range(200):
        plan = Plan.of(8, 8)
        expected, following = drawn(lambda: bool(torch.rand(1) < probability), seed)
        assert drawn(lambda: decide(plan), seed) == (None, following)  # noqa: B023
        assert plan.is_mirrored == expected


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.7])
def test_flip__draws_next_to_the_probability__are_compared_as_torch_does(probability):
    """In float32: 0.7 lies above the float32 that is nearest to it, and a draw of just that is not below it."""
    nearest = np.float32(probability)
    for value in (np.nextafter(nearest, np.float32(0)), nearest, np.nextafter(nearest, np.float32(1))):
        assert (value.item() < _single(probability)) == bool(torch.tensor([value]) < probability)


@pytest.mark.parametrize("num_layers", [2, 5])
@pytest.mark.parametrize("num_ops", [1, 15, 16, 17])
def test_rand_augment__many_seeds__chooses_what_timm_chooses(num_ops, num_layers):
    chosen: list[int] = []
    ops = [lambda image, number=number: chosen.append(number) or image for number in range(num_ops)]

    def numbers(augment):
        chosen.clear()
        augment("image")
        return tuple(chosen)

    for seed in range(200):
        expected = drawn(lambda: numbers(RandAugment(ops, num_layers)), seed)
        assert len(expected[0]) == num_layers
        assert drawn(lambda: numbers(NotedAugment(ops, num_layers)), seed) == expected


@pytest.mark.parametrize("limit", [1, 2, 3, 15, 16, 17, 1000, 2**20 + 1])
def test_drawn_below__many_seeds__are_numpys_randint_and_its_choice(limit):
    for seed in range(200):
        expected = drawn(lambda: np.random.randint(limit, size=3).tolist(), seed)
        assert drawn(lambda: drawn_below(limit, 3), seed) == expected
        assert drawn(lambda: np.random.choice(limit, 3, replace=True).tolist(), seed) == expected


@pytest.mark.parametrize("text", ["rand-m9-mstd0.5-inc1", "rand-m9-n3-mstd0.5", "rand-m9-mstd0.5-tweights"])
def test_noted_rand_augment__many_seeds__leaves_generators_where_timm_leaves_them(text):
    """With weights, timm draws itself."""
    augment = rand_augment_transform(text, {"img_mean": (1, 2, 3), "interpolation": 3})
    staged = noted(augment)
    timms = RandAugment(staged.ops, augment.num_layers, augment.choice_weights)
    assert isinstance(staged, RandAugment) == (augment.choice_weights is not None)
    for seed in range(200):
        expected = drawn(lambda: timms(OperationRecorder(64, 64)).operations, seed)
        assert drawn(lambda: staged(OperationRecorder(64, 64)).operations, seed) == expected


def test_axes__whole_image_is_seen__need_all_of_it():
    rng = random.Random(0)
    for _ in range(1000):
        length, resized = rng.randint(1, 600), rng.randint(1, 600)
        assert needed(length, resized, 0, resized) == (0, length)
