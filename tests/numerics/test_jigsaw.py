"""The block generator against a plain-Python one and the published counts; the patch shuffle against loops."""

import math
import random
from functools import cache

import pytest
import torch
from tiny_vit import tiny_encoder

from pipeline.models.jigsaw import block_mask, jigsaw_order, permuted, shuffle_patches
from pipeline.models.patches import Grid, grid_of

GRID = Grid(14, 14)
MOST_CHOSEN = {0.03: 5, 0.09: 17, 0.15: 29, 0.21: 41, 0.27: 52}


def reference_cells(grid, ratio, rng):
    """The released generator on a set of (row, column): 10 tries a block, a block that fails ends the draw."""
    chosen, target = set(), int(grid.rows * grid.cols * ratio)
    while len(chosen) < target:
        room = min(target - len(chosen), 75)
        for _ in range(10):
            area, log_aspect = rng.uniform(8, room), rng.uniform(math.log(0.3), math.log(1 / 0.3))
            height = round(math.sqrt(area * math.exp(log_aspect)))
            width = round(math.sqrt(area / math.exp(log_aspect)))
            if not (width < grid.cols and height < grid.rows):
                continue
            top, left = rng.randint(0, grid.rows - height), rng.randint(0, grid.cols - width)
            block = {(top + row, left + col) for row in range(height) for col in range(width)}
            if 0 < len(block - chosen) <= room:
                chosen |= block
                break
        else:
            return chosen
    return chosen


@cache
def counts(ratio, draws, seed=0, grid=GRID):
    rng = random.Random(seed)
    return torch.tensor([int(block_mask(grid, ratio, rng).sum()) for _ in range(draws)]).float()


@pytest.mark.parametrize("grid", [GRID, Grid(9, 16)], ids=str)
@pytest.mark.parametrize("ratio", [0.03, 0.15, 0.27, 0.5, 0.9])
def test_block_mask__same_seed_as_reference__chooses_the_same_patches(ratio, grid):
    ours, theirs = random.Random(7), random.Random(7)
    for _ in range(60):
        mask = block_mask(grid, ratio, ours)
        expected = {row * grid.cols + col for row, col in reference_cells(grid, ratio, theirs)}
        assert set(mask.nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize(("ratio", "most"), MOST_CHOSEN.items())
def test_block_mask__published_ratio__never_exceeds_k_and_reaches_it(ratio, most):
    assert counts(ratio, 400).max() == most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "mean", "share_full", "tolerance"),
    # Published means and shares of full draws; the tolerance is five standard errors and the rounding.
    [(0.03, 3.80, 0.435, 0.16), (0.09, 16.5, 0.68, 0.15), (0.15, 28.7, 0.74, 0.10), (0.27, 51.8, 0.82, 0.10)],
)
def test_block_mask__thousands_of_draws__have_the_published_mean_and_share_of_full_draws(
    ratio, mean, share_full, tolerance
):
    found = counts(ratio, 4000)
    assert abs(found.mean() - mean) < tolerance
    assert abs((found == MOST_CHOSEN[ratio]).float().mean() - share_full) < 0.045


@pytest.mark.slow
def test_block_mask__ratio_0_03__is_empty_one_time_in_six():
    empty = (counts(0.03, 4000) == 0).float().mean()
    assert abs(empty - 0.158) < 0.03


def test_block_mask__ratio_0__selects_nothing():
    assert counts(0.0, 20).sum() == 0
    assert not block_mask(GRID, 0.0, random.Random(0), exact=True).any()


@pytest.mark.parametrize("ratio", [0.03, 0.15, 0.9, 1.0])
def test_block_mask__exact__selects_int_of_n_times_ratio_every_time(ratio):
    rng = random.Random(0)
    assert {int(block_mask(GRID, ratio, rng, exact=True).sum()) for _ in range(100)} == {int(196 * ratio)}


@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.09, 0.15, 0.21, 0.27, 0.5, 0.9, 1.0])
def test_block_mask__grid_7x7__stays_within_k_for_every_ratio(ratio):
    found = counts(ratio, 100, grid=Grid(7, 7))
    assert found.max() <= int(49 * ratio)
    assert (found.max() > 0) == (ratio > 0)


def test_block_mask__grid_wider_than_high__chooses_in_every_row_and_column():
    grid, rng = Grid(5, 11), random.Random(0)
    hits = sum(block_mask(grid, 0.3, rng).view(grid).int() for _ in range(200))
    assert hits.shape == (5, 11)
    assert hits.min() > 0


def test_block_mask__same_seed__same_masks_and_another_seed_others():
    def draws(seed):
        rng = random.Random(seed)
        masks = [block_mask(GRID, 0.15, rng) for _ in range(5)]
        return torch.stack(masks + [jigsaw_order(mask, rng) for mask in masks])

    assert torch.equal(draws(1), draws(1))
    assert not torch.equal(draws(1), draws(2))


def test_jigsaw_order__chosen_patches__are_permuted_and_the_others_stay():
    rng = random.Random(0)
    for ratio in (0.0, 0.03, 0.15, 1.0):
        mask = block_mask(GRID, ratio, rng)
        order = jigsaw_order(mask, rng)
        assert sorted(order.tolist()) == list(range(196))
        assert torch.equal(order[~mask], torch.arange(196)[~mask])


@pytest.mark.slow
def test_jigsaw_order__three_chosen_patches__every_permutation_equally_often():
    rng, seen = random.Random(0), {}
    mask = torch.tensor([True, False, True, True])
    for _ in range(3000):
        order = tuple(jigsaw_order(mask, rng).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    # 500 expected, standard deviation 20.
    assert all(400 < count < 600 for count in seen.values())


def test_permuted__any_number_of_slots__is_what_the_standard_library_samples():
    ours, theirs = random.Random(3), random.Random(3)
    for count in (*range(40), 196, 500):
        slots = list(range(0, 3 * count, 3))
        assert permuted(slots, ours) == theirs.sample(slots, count)
    assert ours.getstate() == theirs.getstate()


def distinct_images(batch, channels, height, width):
    return torch.arange(batch * channels * height * width).float().view(batch, channels, height, width)


@pytest.mark.parametrize(("grid", "per_image"), [(Grid(7, 7), True), (Grid(7, 7), False), (Grid(3, 5), True)])
def test_shuffle_patches__random_orders__match_a_loop_over_patches(grid, per_image):
    generator = torch.Generator().manual_seed(0)
    images = distinct_images(3, 2, grid.rows * 4, grid.cols * 6)
    orders = torch.stack([torch.randperm(grid.size, generator=generator) for _ in range(3 if per_image else 1)])

    moved = shuffle_patches(images, orders, grid)

    expected = torch.full_like(images, -1)
    for number in range(3):
        for slot, patch in enumerate(orders[number if per_image else 0].tolist()):
            to_y, to_x = slot // grid.cols * 4, slot % grid.cols * 6
            y, x = patch // grid.cols * 4, patch % grid.cols * 6
            expected[number, :, to_y : to_y + 4, to_x : to_x + 6] = images[number, :, y : y + 4, x : x + 6]
    assert torch.equal(moved, expected)


def test_shuffle_patches__jigsaw__keeps_the_multiset_of_patches():
    rng = random.Random(0)
    images = distinct_images(1, 3, 56, 56)
    order = jigsaw_order(block_mask(GRID, 0.5, rng), rng)

    moved = shuffle_patches(images, order[None], GRID)

    def patches(image):
        return sorted(
            image[0, :, y : y + 4, x : x + 4].flatten().tolist() for y in range(0, 56, 4) for x in range(0, 56, 4)
        )

    assert not torch.equal(moved, images)
    assert patches(moved) == patches(images)


def test_shuffle_patches__before_patch_embed__is_permuting_tokens_after_it():
    encoder, generator = tiny_encoder(), torch.Generator().manual_seed(0)
    images = torch.randn(3, 1, 28, 28, generator=generator)
    orders = torch.stack([torch.randperm(49, generator=generator) for _ in range(3)])

    moved = encoder.patch_embed(shuffle_patches(images, orders, grid_of(encoder)))

    tokens = encoder.patch_embed(images)
    expected = torch.stack([tokens[number][orders[number]] for number in range(3)])
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-6)
