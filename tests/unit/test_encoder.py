"""Building encoders from configs: what each family has, and positions that timm does not make."""

import math
from functools import partial

import pytest
import timm
import torch
from pydantic import ValidationError
from tiny_vit import IMAGE_SIZE, build_tiny, image_size_of, tiny_encoder, tiny_model, tiny_resnet, tiny_swin

from pipeline.core.config import CONFIGS, Layers, parse, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.patches import Grid, grid_of
from pipeline.models.places import ROTARY
from pipeline.models.position import encode, sincos_positions

MODELS = {
    "learned": tiny_model(),
    "none": tiny_model(pos_embed="none"),
    "sin-cos": tiny_model(pos_embed="sincos"),
    "learned from sin-cos": tiny_model(pos_embed="sincos_learn"),
    "relative": tiny_model(pos_embed="relative"),
    "rotary": tiny_model(pos_embed="rope"),
    "rotary with learned frequencies": tiny_model(pos_embed="rope_mixed"),
    "rotary of DINOv3 beside a table": tiny_model(pos_embed="rope_dinov3", add_absolute=True),
    "scaled blocks": tiny_model(layer_scale=0.5),
    "average": tiny_model(pool="avg"),
    "swin": tiny_swin(),
    "resnet": tiny_resnet(),
}


def images_for(model, count=2):
    size = image_size_of(model)
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_encode__own_positions__equals_forward_features_of_timm(name):
    encoder, images = build_tiny(MODELS[name]).eval(), images_for(MODELS[name])
    torch.testing.assert_close(encode(encoder, images), encoder.forward_features(images), atol=1e-6, rtol=0)


@torch.no_grad()
def test_encode__swin_with_absolute_positions__adds_one_row_to_each_patch():
    encoder, images = build_tiny(tiny_swin(pos_embed="learn")).eval(), images_for(tiny_swin())
    encoder.pos_embed.normal_()
    plain = build_tiny(tiny_swin()).eval()
    plain.load_state_dict({key: value for key, value in encoder.state_dict().items() if key != "pos_embed"})
    tokens = plain.patch_embed(images)
    for patch in range(64):
        tokens[:, patch // 8, patch % 8] += encoder.pos_embed[0, patch]
    expected = plain.norm(plain.layers(tokens))
    torch.testing.assert_close(encode(encoder, images), expected, atol=1e-5, rtol=0)
    assert (expected - encode(plain, images)).abs().max() > 0.1


# Positions


@pytest.mark.parametrize(
    ("pos_embed", "is_trained"), [("learn", True), ("sincos", False), ("sincos_learn", True)], ids=str
)
def test_build_encoder__absolute_positions__are_trained_or_fixed_as_asked(pos_embed, is_trained):
    assert tiny_encoder(pos_embed=pos_embed).pos_embed.requires_grad is is_trained
    assert build_tiny(tiny_swin(pos_embed=pos_embed)).pos_embed.requires_grad is is_trained


def test_build_encoder__without_positions__has_no_table():
    assert tiny_encoder(pos_embed="none").pos_embed is None
    assert not hasattr(build_tiny(tiny_swin()), "pos_embed")


def test_build_encoder__learned_positions_of_a_swin__start_as_timm_starts_a_vits():
    table = build_tiny(tiny_swin(pos_embed="learn")).pos_embed
    assert table.shape == (1, 64, 32)
    assert table.std().item() == pytest.approx(0.02, rel=0.1)


@torch.no_grad()
def test_relative_positions__at_their_start__change_nothing():
    plain, relative = tiny_encoder(pos_embed="none").eval(), tiny_encoder(pos_embed="relative").eval()
    relative.load_state_dict(plain.state_dict(), strict=False)
    images = images_for(tiny_model())
    torch.testing.assert_close(relative(images), plain(images), atol=1e-6, rtol=0)


def relative_attention(seed=1):
    """One attention of a tiny encoder, its table away from its start."""
    attn = tiny_encoder(pos_embed="relative").eval().blocks[0].attn
    with torch.no_grad():
        attn.rel_pos.relative_position_bias_table.normal_(generator=torch.Generator().manual_seed(seed))
    return attn


@torch.no_grad()
def test_relative_positions__pairs_of_equal_offset__share_a_bias_and_others_do_not():
    bias = relative_attention().rel_pos.get_bias()[0, :, 1:, 1:]  # (heads, 49, 49)
    by_offset = {}
    for query in range(49):
        for key in range(49):
            offset = (key // 7 - query // 7, key % 7 - query % 7)
            by_offset.setdefault(offset, set()).add(tuple(bias[:, query, key].tolist()))
    assert len(by_offset) == 13 * 13
    assert all(len(values) == 1 for values in by_offset.values())
    assert len(set.union(*by_offset.values())) == 13 * 13


@torch.no_grad()
def test_relative_attention__table_set__adds_the_bias_to_the_logits_before_the_softmax():
    attn = relative_attention().double()
    tokens = torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bias = attn.rel_pos.get_bias()[0]
    query, key, value = (attn.qkv(tokens)).view(2, 50, 3, 2, 16).unbind(2)
    logits = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(16) + bias
    weights = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
    expected = attn.proj(torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2))
    torch.testing.assert_close(attn(tokens), expected, atol=1e-10, rtol=0)


@torch.no_grad()
def test_relative_positions__every_block__has_a_table_of_its_own():
    encoder = tiny_encoder(pos_embed="relative")
    tables = [block.attn.rel_pos.relative_position_bias_table for block in encoder.blocks]
    # 13 x 13 offsets, and CLS to patch, patch to CLS, CLS to CLS.
    assert [table.shape for table in tables] == [(13 * 13 + 3, 2)] * 2
    assert tables[0] is not tables[1]
    assert not any(table.any() for table in tables)


# The grid


def test_grid_of__each_family__counts_its_patches_or_the_squares_of_a_jigsaw():
    assert grid_of(tiny_encoder()) == Grid(7, 7)
    assert grid_of(build_tiny(tiny_swin())) == Grid(8, 8)
    assert grid_of(build_tiny(tiny_resnet())) == Grid(7, 7)


def test_grid_of__resnet_without_patch_size__has_squares_of_16_pixels():
    assert grid_of(build_encoder(tiny_resnet(patch_size=None), 224, 1, 10)) == Grid(14, 14)


def test_grid_of__resnet_for_rectangles__counts_rows_then_columns():
    assert grid_of(build_encoder(tiny_resnet(patch_size=(4, 7)), (28, 42), 1, 10)) == Grid(7, 6)


# Heads


@pytest.mark.parametrize("model", [tiny_model, tiny_swin, tiny_resnet])
def test_build_encoder__0_classes__has_no_classifier(model):
    encoder = build_tiny(model(head_std=2e-5), num_classes=0)
    assert isinstance(encoder.get_classifier(), torch.nn.Identity)


@pytest.mark.parametrize("model", [tiny_model, tiny_swin, tiny_resnet])
def test_build_encoder__head_std__is_the_classifiers(model):
    weight = build_tiny(model(head_std=2e-5)).get_classifier().weight
    assert weight.std().item() == pytest.approx(2e-5, rel=0.2)


def test_build_encoder__cls_std__is_that_of_cls():
    assert tiny_encoder(embed_dim=256, depth=1, cls_std=0.5).cls_token.std().item() == pytest.approx(0.5, rel=0.15)


def test_build_encoder__no_head_std__keeps_the_start_of_timm():
    changes = {"img_size": IMAGE_SIZE, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **changes)
    found = tiny_encoder().state_dict()
    assert all(torch.equal(found[key], value) for key, value in plain.state_dict().items())


@torch.no_grad()
def test_build_encoder__pool__is_what_is_classified():
    images = images_for(tiny_model())
    by_mean, by_cls = (tiny_encoder(pool=pool).eval() for pool in ("avg", "cls"))
    patches = by_mean.fc_norm(by_mean.forward_features(images)[:, 1:].mean(dim=1))
    torch.testing.assert_close(by_mean(images), by_mean.head(patches), atol=1e-6, rtol=0)
    first = by_cls.forward_features(images)[:, 0]
    torch.testing.assert_close(by_cls(images), by_cls.head(first), atol=1e-6, rtol=0)


# Dropout


def test_build_encoder__dropout__is_that_of_positions_attention_blocks_and_the_classifier():
    encoder = tiny_encoder(dropout=0.3)
    rates = {name: part.p for name, part in encoder.named_modules() if isinstance(part, torch.nn.Dropout)}
    in_a_block = ("attn.attn_drop", "attn.proj_drop", "mlp.drop1", "mlp.drop2")
    names = ["pos_drop", *[f"blocks.{block}.{place}" for block in (0, 1) for place in in_a_block], "head_drop"]
    assert rates == dict.fromkeys(names, 0.3)


@torch.no_grad()
def test_encode__dropout__is_drawn_in_training_only():
    plain, dropped, images = tiny_encoder(), tiny_encoder(dropout=0.3), images_for(tiny_model())
    assert torch.equal(encode(plain.eval(), images), encode(dropped.eval(), images))
    dropped.train()
    assert not torch.equal(encode(dropped, images), encode(dropped, images))


# The transformer of speech


def test_build_encoder__speech_transformer__has_the_papers_70_thousand_parameters():
    """MP3 Sec. 4.3: width 32, depth 8, MLP 64; CLS and biases counted, the fixed table of positions not."""
    model = ModelConfig.model_validate(read_yaml(CONFIGS / "model" / "speech_transformer.yaml")["model"])
    encoder = build_encoder(model, (40, 98), 1, 12)
    norm, frames, classes = 2 * 32, 40 * 32 + 32, 32 * 12 + 12
    block = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 2 * norm
    assert 32 + frames + 8 * block + norm + classes == 70_156
    assert sum(part.numel() for name, part in encoder.named_parameters() if name != "pos_embed") == 70_156
    assert sum(part.numel() for part in encoder.parameters() if part.requires_grad) == 70_156
    assert (model.dropout, grid_of(encoder)) == (0.1, Grid(1, 98))
    assert torch.equal(encoder.pos_embed, sincos_positions(Grid(1, 98), 32, num_prefix=1))


# What is refused


@pytest.mark.parametrize(
    ("model", "key", "value", "reason"),
    [
        (tiny_swin, "depth", 2, "depth is for a vit or bert or gpt2, swin_tiny_patch4_window7_224 does not have it"),
        (tiny_swin, "act_layer", "relu", "act_layer is for a vit"),
        (tiny_swin, "pool", "avg", "pool is for a vit"),
        (tiny_swin, "pos_embed", "relative", "a Swin always has relative positions"),
        (tiny_swin, "num_heads", 2, "num_heads of a Swin is a list, one number for each stage, found 2"),
        (tiny_swin, "num_heads", (2, 2, 2), "num_heads has 3 stages, depths has 2; make them equal"),
        (tiny_model, "depths", (2, 2), "depths is for a swin, vit_tiny_patch16_224 does not have it"),
        (tiny_resnet, "window_size", 7, "window_size is for a vit or swin"),
        (tiny_model, "num_heads", (2, 2), "num_heads of a ViT is one number"),
        (tiny_resnet, "depth", 2, "depth is for a vit"),
        (tiny_swin, "dropout", 0.1, "dropout is for a vit or bert or gpt2, swin_tiny_patch4_window7_224 does not"),
        (partial(tiny_model, window_size=3), "dropout", 0.1, "with windows has no dropout, found 0.1; remove it"),
        (tiny_swin, "pos_embed", "rope", "pos_embed: rope is for a ViT, swin_tiny_patch4_window7_224 does not have it"),
        (partial(tiny_model, window_size=3), "pos_embed", "rope", "a ViT with windows has no pos_embed: rope"),
        (partial(tiny_model, add_relative=True), "pos_embed", "rope", "add_relative adds to absolute positions"),
        (tiny_model, "add_absolute", True, "add_absolute adds a table to rotations, found pos_embed: learn"),
        (tiny_resnet, "pos_embed", "learn", "test_resnet is a CNN and has no pos_embed; remove it"),
        (tiny_resnet, "embed_dim", 8, "is a CNN and has no embed_dim"),
        (tiny_resnet, "num_heads", 2, "is a CNN and has no num_heads"),
        (tiny_resnet, "mlp_ratio", 2.0, "is a CNN and has no mlp_ratio"),
    ],
)
def test_model_config__key_the_family_has_not__is_refused_with_what_to_do(model, key, value, reason):
    with pytest.raises(ValidationError, match=reason):
        model(**{key: value})


@pytest.mark.parametrize("model", [tiny_swin, tiny_resnet])
def test_model_config__no_positions_asked_of_a_family_without__is_fine(model):
    assert model(pos_embed="none").positions == "none"


def test_config__misspelt_positions__names_the_nearest():
    layers = Layers(("mine.yaml", {"name": "mine", "arch": "vit_small_patch16_224", "pos_embed": "ropee"}))
    with pytest.raises(ConfigError, match=r"pos_embed: found 'ropee'; .*did you mean 'rope'\?"):
        parse(ModelConfig, layers)


@pytest.mark.parametrize(
    ("arch", "fields"),
    [
        ("vit_small_patch16_rope_224", "pos_embed: rope and layer_scale"),
        ("vit_small_patch16_rope_mixed_ape_224", "pos_embed: rope_mixed, add_absolute: true and layer_scale"),
    ],
)
def test_build_encoder__rotary_architecture_of_timm__names_the_fields_of_a_plain_one(arch, fields):
    with pytest.raises(ConfigError, match=rf"set arch: vit_small_patch16_224, {fields}: 1.0e-5"):
        tiny_encoder(arch=arch)


@pytest.mark.parametrize("pos_embed", ROTARY)
def test_build_encoder__rotations_of_heads_that_4_does_not_divide__names_the_fields(pos_embed):
    with pytest.raises(ConfigError, match=rf"model.pos_embed {pos_embed} .* found 18; change embed_dim or num_heads"):
        tiny_encoder(embed_dim=36, pos_embed=pos_embed)


def test_build_encoder__unknown_architecture__names_near_ones():
    with pytest.raises(ConfigError, match=r"'vit_tiniest' is not a timm architecture; similar names: .*vit_"):
        tiny_encoder(arch="vit_tiniest")


@pytest.mark.parametrize("pos_embed", ["sincos", "sincos_learn"])
def test_build_encoder__width_that_sincos_cannot_fill__says_so(pos_embed):
    with pytest.raises(ConfigError, match=rf"model.pos_embed {pos_embed}: .* width that 4 divides, found 30"):
        tiny_encoder(pos_embed=pos_embed, embed_dim=30)
