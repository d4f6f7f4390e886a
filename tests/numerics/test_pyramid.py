"""The feature pyramids of Mask R-CNN, and the map that a region is cut from."""

import math

import pytest
import torch
from tiny_scenes import SCENE_MODELS, build_scene_encoder, scene_vit

from pipeline.core.errors import ConfigError
from pipeline.dense.pyramid import build_pyramid, coarsest_stride, level_of
from pipeline.models.encoder import build_encoder


@pytest.mark.parametrize("model", SCENE_MODELS)
def test_pyramid__of_each_family__has_five_maps_each_half_the_one_before(model):
    encoder = build_scene_encoder(SCENE_MODELS[model])
    pyramid = build_pyramid(encoder, 24)
    maps = pyramid(encoder, torch.randn(2, 1, 64, 64))
    assert pyramid.strides == ([2, 4, 8, 16, 32] if model == "swin" else [4, 8, 16, 32, 64])
    sides = [64 // stride for stride in pyramid.strides]
    assert [tuple(each.shape) for each in maps] == [(2, 24, side, side) for side in sides]
    assert [tuple(grid) for grid in pyramid.grids(encoder)] == [(side, side) for side in sides]
    assert torch.equal(maps[4], maps[3][:, :, ::2, ::2])


@pytest.mark.slow
def test_pyramid__of_a_vit__gives_each_level_the_weights_of_vitdet():
    """ViTDet on a ViT-B: deconvolutions to 384 and 192, then 1x1 and 3x3 to 256 with LayerNorm and without bias."""
    encoder = build_scene_encoder(scene_vit(embed_dim=768, depth=1, num_heads=12, patch_size=16))
    pyramid = build_pyramid(encoder, 256)
    up = 768 * 384 * 4 + 384
    quarter = up + 2 * 384 + 384 * 192 * 4 + 192
    heads = sum(channels * 256 + 256 * 256 * 9 + 4 * 256 for channels in (192, 384, 768, 768))
    assert sum(p.numel() for p in pyramid.parameters()) == quarter + up + heads


@pytest.mark.parametrize("model", SCENE_MODELS)
def test_coarsest_stride__of_each_family__is_that_of_the_fourth_map(model):
    pyramid = build_pyramid(build_scene_encoder(SCENE_MODELS[model]), 24)
    assert coarsest_stride(SCENE_MODELS[model]) == pyramid.strides[3]


@pytest.mark.parametrize("patch", [2, 4, 8, 16])
def test_pyramid__of_a_vit_of_any_patch__has_the_same_strides(patch):
    encoder = build_scene_encoder(scene_vit(patch_size=patch, depth=1))
    maps = build_pyramid(encoder, 24)(encoder, torch.randn(1, 1, 64, 64))
    assert [each.shape[-1] for each in maps] == [16, 8, 4, 2, 1]


@pytest.mark.parametrize("size", [(96, 160), (160, 96)])
def test_grids__of_rectangles_with_odd_maps__are_those_of_the_maps(size):
    """Every second place of a map of three rows are two rows."""
    encoder = build_encoder(scene_vit(depth=1), size, 1, 0)
    pyramid = build_pyramid(encoder, 24)
    found = [tuple(each.shape[2:]) for each in pyramid(encoder, torch.randn(1, 1, *size))]
    assert [tuple(grid) for grid in pyramid.grids(encoder)] == found
    assert found[3:] == [(size[0] // 32, size[1] // 32), (-(-size[0] // 64), -(-size[1] // 64))]


def test_pyramid__patch_that_is_no_power_of_two__is_refused():
    with pytest.raises(ConfigError, match="found patches of 32 pixels"):
        build_pyramid(build_scene_encoder(scene_vit(patch_size=32)), 24)


@pytest.mark.parametrize("side", [20.0, 111.9, 112.0, 112.1, 223.9, 224.0, 224.1, 447.9, 448.0, 448.1, 1000.0])
def test_level_of__boxes_of_many_sizes__follows_fpn(side):
    """FPN Eq. 1 with k0 = 4, of the levels 2 to 5."""
    expected = min(max(math.floor(4 + math.log2(side / 224)), 2), 5) - 2
    assert level_of(torch.tensor([3.0, 5.0, 3 + 2 * side, 5 + side / 2]), first_stride=4) == expected
