"""The grid, and running a ViT with given positions."""

import pytest
import torch
from tiny_vit import tiny_encoder

from pipeline.models.position import Grid, encode, grid_of, patch_positions


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


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch16_clip_224"])
def test_encode__own_positions__equals_forward_features(arch):
    """The CLIP one has a norm before its blocks."""
    import timm

    torch.manual_seed(0)
    shape = {"img_size": 28, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "in_chans": 1}
    encoder = timm.create_model(arch, num_classes=10, **shape).eval()
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
