"""Mixing, erasing and smoothing against timm's own classes, seed by seed."""

import random

import numpy as np
import pytest
import torch
from timm.data import Mixup
from timm.data.mixup import mixup_target
from timm.data.random_erasing import RandomErasing

from pipeline.core.seeds import seed_everything
from pipeline.data.images.augment import Augment
from pipeline.data.images.mixing import Erasing, Mixing, erase, inside, mix, soft_targets

SHAPE = (6, 3, 20, 14)
RECIPES = {
    "deit": {"mixup": 0.8, "cutmix": 1.0},
    "mixup": {"mixup": 0.2},
    "cutmix": {"cutmix": 1.0},
    "sometimes": {"mixup": 0.8, "cutmix": 1.0, "mix_prob": 0.4, "mix_switch_prob": 0.9},
}


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=generator), torch.randint(5, (SHAPE[0],), generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_mix__any_seed__has_the_images_targets_and_following_draws_of_timm(recipe):
    augment, (images, labels) = Augment(**recipe), batch()
    reference = Mixup(
        augment.mixup,
        augment.cutmix,
        prob=augment.mix_prob,
        switch_prob=augment.mix_switch_prob,
        label_smoothing=0.1,
        num_classes=5,
    )
    mixing, num_changed = Mixing(augment), 0
    for seed in range(200):
        seed_everything("mix", seed)
        wanted, wanted_targets = reference(images.clone(), labels)
        following = np.random.rand()
        seed_everything("mix", seed)
        drawn = mixing.draw(*SHAPE[-2:])
        assert np.random.rand() == following
        assert drawn.dtype == torch.float32  # always: a step is compiled and recorded for one type
        assert torch.equal(mix(images, drawn), wanted)
        assert torch.equal(soft_targets(labels, 5, 0.1, drawn), wanted_targets)
        num_changed += not torch.equal(wanted, images)
    assert 50 < num_changed <= 200


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_targets__not_mixed__are_those_of_timm(smoothing):
    labels = torch.tensor([3, 0, 4, 4, 1])
    assert torch.equal(soft_targets(labels, 5, smoothing), mixup_target(labels, 5, smoothing=smoothing))


@pytest.mark.parametrize("shape", [(8, 20, 14), (8, 3, 40)], ids=["usual", "flat, where many boxes do not fit"])
def test_erasing__any_seed__has_the_boxes_and_following_draws_of_timm(shape):
    count, *size = shape
    erasing, reference, num_erased = Erasing(0.5), RandomErasing(0.5, mode="pixel", device="cpu"), 0
    for seed in range(100):
        seed_everything("erase", seed)
        wanted = reference(torch.full((count, 1, *size), torch.nan))
        following = random.random()
        seed_everything("erase", seed)
        boxes = erasing.draw(count, *size)
        assert random.random() == following
        assert torch.equal(inside(boxes, *size), ~wanted[:, 0].isnan())
        num_erased += int((boxes[:, 1] > 0).sum())
    assert 0.2 < num_erased / (100 * count) < 0.6


def test_erase__boxes__hold_the_noise_and_the_rest_stays():
    images, boxes = torch.full((64, 3, 16, 16), 7.0), torch.tensor([[2, 12, 0, 16]] * 63 + [[0, 0, 0, 0]])
    noise = torch.randn(images.shape)
    found = erase(images, boxes, noise)
    assert torch.equal(found[:63, :, 2:12], noise[:63, :, 2:12])
    assert (found[63] == 7).all()
    assert (found[:, :, :2] == 7).all()
    assert (found[:, :, 12:] == 7).all()
