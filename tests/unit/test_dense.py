"""Feature maps: equal to timm's own, at the encoder's grid and at others."""

from functools import partial

import pytest
import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_sam import VisionTransformerSAM
from tiny_vit import CHANNELS, build_tiny, tiny_encoder, tiny_resnet, tiny_swin
from torch import nn

from pipeline.core.errors import ConfigError
from pipeline.models.dense import feature_maps, freeze_unused, strides, widths
from pipeline.models.patches import Grid

SHAPE = {"img_size": 28, "patch_size": 4, "in_chans": CHANNELS, "embed_dim": 32, "depth": 3, "num_heads": 2}


def images_of(height, width, count=2):
    return torch.randn(count, CHANNELS, height, width, generator=torch.Generator().manual_seed(0))


def any_positions(encoder):
    """Away from 0, so that wrong ones are seen."""
    with torch.no_grad():
        encoder.pos_embed.normal_(generator=torch.Generator().manual_seed(1))
    return encoder.eval()


def windowed_vit(window_size, **changes):
    norm = partial(nn.LayerNorm, eps=1e-6)
    encoder = VisionTransformerSAM(
        **SHAPE, num_classes=0, window_size=window_size, neck_chans=0, norm_layer=norm, **changes
    )
    encoder.grid = Grid(7, 7)
    return any_positions(encoder)


@torch.no_grad()
def test_feature_maps__of_a_vit_at_its_own_size__are_those_of_timm():
    encoder, images = any_positions(tiny_encoder(depth=4)), images_of(28, 28)
    found = feature_maps(encoder, images, taps=[0, 2, 3])
    expected = encoder.forward_intermediates(images, indices=[0, 2, 3], intermediates_only=True)
    assert [tuple(each.shape) for each in found] == [(2, 32, 7, 7)] * 3
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@torch.no_grad()
def test_feature_maps__without_taps__is_the_last_block_only():
    encoder, images = any_positions(tiny_encoder()), images_of(28, 28)
    (found,) = feature_maps(encoder, images)
    tokens = encoder.blocks(encoder._pos_embed(encoder.patch_embed(images)))
    assert torch.equal(found, tokens[:, 1:].transpose(1, 2).reshape(2, 32, 7, 7))


@torch.no_grad()
def test_feature_maps__of_a_vit_at_another_size__are_those_of_a_vit_of_that_size():
    encoder, images = any_positions(tiny_encoder()), images_of(20, 36)
    other = build_tiny_of(encoder, (20, 36))
    expected = other.forward_intermediates(images, indices=[0, 1], intermediates_only=True)
    for found, wanted in zip(feature_maps(encoder, images, [0, 1]), expected, strict=True):
        assert found.shape == (2, 32, 5, 9)
        assert torch.equal(found, wanted)


def build_tiny_of(encoder, size):
    """A ViT with the same weights, made for images of this size."""
    shape = SHAPE | {"img_size": size, "depth": len(encoder.blocks)}
    other = VisionTransformer(**shape, num_classes=0).eval()
    weights = {name: value for name, value in encoder.state_dict().items() if not name.startswith("head")}
    grid = other.patch_embed.grid_size
    weights["pos_embed"] = resample_abs_pos_embed(weights["pos_embed"], grid, (7, 7), num_prefix_tokens=1)
    other.load_state_dict(weights)
    return other


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 32), (48, 32)])
def test_feature_maps__of_a_swin__are_the_outputs_of_its_stages(size):
    encoder, images = build_tiny(tiny_swin()).eval(), images_of(*size)
    expected = encoder.forward_intermediates(images, intermediates_only=True)
    found = feature_maps(encoder, images)
    rows, cols = size[0] // 4, size[1] // 4
    assert [tuple(each.shape) for each in found] == [(2, 32, rows, cols), (2, 64, rows // 2, cols // 2)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@torch.no_grad()
def test_feature_maps__of_a_swin_with_positions__see_them_at_every_size():
    encoder = build_tiny(tiny_swin(pos_embed="learn")).eval()
    plain = feature_maps(encoder, images_of(32, 32))
    larger = feature_maps(encoder, images_of(64, 32))
    encoder.pos_embed += torch.arange(64.0)[:, None]
    assert not torch.allclose(feature_maps(encoder, images_of(32, 32))[0], plain[0], atol=1e-2)
    assert not torch.allclose(feature_maps(encoder, images_of(64, 32))[0], larger[0], atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize(("size", "grid"), [((32, 48), (8, 12)), ((64, 48), (16, 12))])
def test_feature_maps__of_a_swin_for_rectangles__add_one_row_of_its_table_to_each_place(size, grid):
    encoder = any_positions(build_tiny(tiny_swin(pos_embed="learn"), image_size=(32, 48)))
    images = images_of(*size)
    places = resample_abs_pos_embed(encoder.pos_embed, list(grid), [8, 12], num_prefix_tokens=0).view(*grid, 32)
    stage = encoder.layers[0](encoder.patch_embed(images) + places)
    torch.testing.assert_close(feature_maps(encoder, images)[0], stage.permute(0, 3, 1, 2))


@torch.no_grad()
def test_feature_maps__one_window_as_large_as_the_grid__are_those_of_a_plain_vit_without_cls():
    windowed, images = windowed_vit(7), images_of(28, 28)
    plain = VisionTransformer(**SHAPE, num_classes=0, class_token=False, global_pool="avg").eval()
    weights = windowed.state_dict()
    weights["pos_embed"] = weights["pos_embed"].flatten(1, 2)
    plain.load_state_dict({name: value for name, value in weights.items() if "neck" not in name}, strict=False)
    expected = plain.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
    for found, wanted in zip(feature_maps(windowed, images, [0, 2]), expected, strict=True):
        assert torch.equal(found, wanted)


@torch.no_grad()
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("size", [(28, 28), (20, 36)])
def test_feature_maps__of_a_windowed_vit__are_those_of_timm(size, relative):
    encoder = windowed_vit(3, use_rel_pos=relative, global_attn_indexes=(2,))
    images = images_of(*size)
    expected = encoder.forward_intermediates(images, intermediates_only=True)
    found = feature_maps(encoder, images, [0, 1, 2])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, expected, strict=True))


@torch.no_grad()
def test_feature_maps__windows__do_not_see_each_other():
    encoder, images = windowed_vit(3), images_of(28, 28)
    before = feature_maps(encoder, images)[0]
    images[:, :, :4, :4] += 1
    changed = (feature_maps(encoder, images)[0] != before).any(dim=1).any(dim=0)
    assert changed[:3, :3].all() and not changed[3:].any() and not changed[:, 3:].any()


def test_widths_and_strides__of_every_family__describe_the_maps():
    swin, vit = build_tiny(tiny_swin()), tiny_encoder()
    assert (widths(swin), strides(swin)) == ([32, 64], [4, 8])
    assert (widths(swin, [1]), strides(swin, [1])) == ([64], [8])
    assert (widths(vit, [0, 1]), strides(vit, [0, 1])) == ([32, 32], [4, 4])
    assert (widths(vit), strides(windowed_vit(3))) == ([32], [4])


FREEZABLE = {
    "vit": (partial(tiny_encoder, depth=3), 28, [0, 1]),
    "vit with average pooling": (partial(tiny_encoder, pool="avg"), 28, None),
    "swin": (partial(build_tiny, tiny_swin()), 32, [0]),
    "windowed": (partial(windowed_vit, 3), 28, [1]),
}


@pytest.mark.parametrize("name", FREEZABLE)
def test_freeze_unused__of_every_family__trains_exactly_what_the_maps_depend_on(name):
    build, side, taps = FREEZABLE[name]
    encoder = build()
    sum(each.square().sum() for each in feature_maps(encoder, images_of(side, side), taps)).backward()
    needed = {name for name, value in encoder.named_parameters() if value.grad is not None}
    freeze_unused(encoder, taps)
    assert {name for name, value in encoder.named_parameters() if value.requires_grad} == needed


@pytest.mark.parametrize(
    ("encoder", "size", "taps", "reason"),
    [
        (tiny_encoder, (30, 28), None, "images of 30x28 are no whole number of patches of 4x4"),
        (tiny_encoder, (28, 28), [0, 2], "taps [0, 2] of a model of 2 blocks"),
        (tiny_encoder, (28, 28), [1, 0], "expected numbers from 0, each larger"),
        (partial(tiny_encoder, pos_embed="relative"), (20, 28), None, "relative positions are of 7x7 patches, found"),
        (partial(build_tiny, tiny_resnet()), (28, 28), None, "is neither a ViT nor a Swin"),
    ],
)
def test_feature_maps__what_cannot_be__is_refused(encoder, size, taps, reason):
    with pytest.raises(ConfigError, match=reason.replace("[", r"\[").replace("]", r"\]")):
        feature_maps(encoder(), images_of(*size), taps)
