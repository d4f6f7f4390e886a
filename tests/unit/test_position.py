"""The grid, its patches and their sin-cos table, and running a ViT with given positions."""

import math

import pytest
import torch
from tiny_vit import IMAGE_SIZE, build_tiny, tiny_encoder, tiny_model, tiny_swin

from pipeline.models.encoder import build_encoder
from pipeline.models.patches import Grid, embed_patches, grid_of, random_order, take, to_images, to_patches
from pipeline.models.position import encode, num_prefix_tokens, patch_positions, sincos_positions, with_cls


def test_grid__five_columns__coordinates_run_along_rows_first():
    grid = Grid(rows=3, cols=5)
    expected = [[row, col] for row in range(3) for col in range(5)]
    assert grid.size == 15
    assert grid.coordinates().tolist() == expected


def test_grid_of__28_pixels_in_4_pixel_patches__is_7_by_7():
    assert grid_of(tiny_encoder()) == Grid(7, 7)


def test_patch_positions__vit_with_cls__leaves_the_cls_row_out():
    encoder = tiny_encoder()
    with torch.no_grad():
        encoder.pos_embed.copy_(torch.arange(50.0).view(1, 50, 1).expand(1, 50, 32))
    assert patch_positions(encoder)[:, 0].tolist() == list(range(1, 50))


# Sin-cos tables


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "width"), [(Grid(14, 14), 768), (Grid(3, 5), 16)])
def test_sincos_positions__any_grid__matches_the_formula_element_by_element(grid, width):
    """The first half of the channels for the column; each half [sin | cos] with base 10000."""
    found = sincos_positions(grid, width)
    assert found.shape == (1, grid.size, width)
    half, quarter = width // 2, width // 4
    for patch in range(0, grid.size, 7):
        row, col = divmod(patch, grid.cols)
        for channel in range(width):
            place, inside = (col, channel) if channel < half else (row, channel - half)
            angle = place / 10000 ** ((inside % quarter) / quarter)
            expected = math.sin(angle) if inside < quarter else math.cos(angle)
            assert found[0, patch, channel].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("grid", [Grid(1, 98), Grid(12, 1)])
def test_sincos_positions__grid_of_one_row_or_column__is_the_table_of_a_sequence(grid):
    """Vaswani et al. 2017, Sec. 3.5, over all channels, the sines first: the angle is place / 10000^(2k / D)."""
    width = 30
    expected = torch.zeros(grid.size, width, dtype=torch.float64)
    for place in range(grid.size):
        for k in range(width // 2):
            angle = place / 10000 ** (2 * k / width)
            expected[place, k], expected[place, width // 2 + k] = math.sin(angle), math.cos(angle)
    torch.testing.assert_close(sincos_positions(grid, width, num_prefix=1)[0, 1:], expected.float())


def test_sincos_positions__prefix_token__gets_zeros():
    table = sincos_positions(Grid(7, 7), 32, num_prefix=1)
    assert table.shape == (1, 50, 32)
    assert not table[0, 0].any()
    assert torch.equal(table[:, 1:], sincos_positions(Grid(7, 7), 32))


def test_sincos_positions__every_patch__has_a_row_of_its_own():
    rows = sincos_positions(Grid(14, 14), 32)[0]
    assert torch.cdist(rows, rows).fill_diagonal_(1.0).min() > 0.1


@pytest.mark.parametrize("width", [30, 31])
def test_sincos_positions__width_that_4_does_not_divide__is_refused(width):
    with pytest.raises(ValueError, match=f"width that 4 divides, found {width}"):
        sincos_positions(Grid(7, 7), width)


def test_sincos_positions__odd_width_of_a_sequence__is_refused():
    with pytest.raises(ValueError, match="width that 2 divides, found 31"):
        sincos_positions(Grid(1, 98), 31)


def test_build_encoder__sincos__holds_the_table_with_a_zero_row_for_cls():
    for choice in ("sincos", "sincos_learn"):
        encoder = tiny_encoder(pos_embed=choice)
        assert torch.equal(encoder.pos_embed, sincos_positions(Grid(7, 7), 32, num_prefix=1))
    swin = build_tiny(tiny_swin(pos_embed="sincos"))
    assert torch.equal(swin.pos_embed, sincos_positions(Grid(8, 8), 32))


# Patches


def test_to_patches__colour_image__patch_by_patch_what_is_cut_out_by_hand():
    images, grid = torch.arange(2 * 3 * 6 * 8.0).view(2, 3, 6, 8), Grid(3, 2)
    patches = to_patches(images, grid)
    assert patches.shape == (2, 6, 3, 8)
    for index in range(6):
        row, col = index // 2 * 2, index % 2 * 4
        assert torch.equal(patches[:, index], images[:, :, row : row + 2, col : col + 4].flatten(2))


@pytest.mark.parametrize(("grid", "size"), [(Grid(3, 2), (6, 8)), (Grid(7, 7), (28, 28)), (Grid(1, 1), (4, 4))])
def test_to_images__of_patches__gives_the_image_back(grid, size):
    images = torch.randn(2, 3, *size)
    assert torch.equal(to_images(to_patches(images, grid), size, grid), images)


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 3])
def test_embed_patches__all_in_order__equals_the_patch_embedding_of_timm(channels):
    encoder = build_encoder(tiny_model(), IMAGE_SIZE, channels, 0)
    encoder.patch_embed.proj.bias.normal_()
    images = torch.randn(2, channels, IMAGE_SIZE, IMAGE_SIZE)
    found = embed_patches(encoder, to_patches(images, grid_of(encoder)))
    torch.testing.assert_close(found, encoder.patch_embed(images), atol=1e-5, rtol=1e-5)


def test_take__rows_with_and_without_more_dimensions__match_a_loop():
    index = torch.tensor([[2, 0], [1, 1]])
    for rows in (torch.randn(2, 3), torch.randn(2, 3, 4), torch.randn(2, 3, 4, 5)):
        found = take(rows, index)
        expected = [[rows[image, patch] for patch in index[image]] for image in range(2)]
        assert torch.equal(found, torch.stack([torch.stack(of_image) for of_image in expected]))


def test_random_order__each_image__is_a_permutation_of_its_own_and_seeded():
    first, second = (random_order(3, 49, torch.Generator().manual_seed(4), torch.device("cpu")) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first.sort(dim=1).values, torch.arange(49).expand(3, 49))
    assert len({tuple(order) for order in first.tolist()}) == 3


@torch.no_grad()
def test_with_cls__position_given__adds_it_to_cls_only():
    encoder = tiny_encoder()
    encoder.cls_token.normal_()
    tokens, position = torch.randn(2, 5, 32), torch.randn(1, 1, 32)
    for given, expected in ((None, encoder.cls_token), (position, encoder.cls_token + position)):
        found = with_cls(encoder, tokens, given)
        assert torch.equal(found[:, :1], expected.expand(2, 1, 32))
        assert torch.equal(found[:, 1:], tokens)


def test_num_prefix_tokens__each_family__is_cls_or_nothing():
    assert num_prefix_tokens(tiny_encoder()) == 1
    assert num_prefix_tokens(build_tiny(tiny_swin())) == 0


# Running an encoder


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch16_clip_224"])
def test_encode__own_positions__equals_forward_features(arch):
    """The CLIP one has a norm before its blocks."""
    encoder = tiny_encoder(arch=arch).eval()
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        found, expected = encode(encoder, images, encoder.pos_embed), encoder.forward_features(images)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_encode__positions_of_one_image__do_not_touch_the_other():
    encoder = tiny_encoder().eval()
    images = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    positions = encoder.pos_embed.detach().repeat(2, 1, 1)
    positions[1] += torch.randn(50, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, plain = encode(encoder, images, positions), encoder.forward_features(images)
    torch.testing.assert_close(found[0], plain[0], atol=1e-6, rtol=0)
    assert (found[1] - plain[1]).abs().max() > 1e-2
