"""A ViT with windows: what it computes beside a plain one, and how it starts from the file of one."""

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from pipeline.core.errors import ConfigError
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.position import sincos_positions
from pipeline.models.weights import load_encoder
from pipeline.models.windowed import global_blocks
from tests.foreign_weights import WIDTH, droppos_file, mae_file, moco_file, vit

SHAPE = {"patch_size": 4, "embed_dim": 48, "depth": 4, "num_heads": 2}
SIDE = 32  # 8 x 8 patches


def model(**keys):
    return ModelConfig(name="x", arch="vit_tiny_patch16_224", **SHAPE, **keys)


def plain_file(folder, **keys):
    torch.manual_seed(1)
    encoder = build_encoder(model(**keys), SIDE, 1, 10)
    save_file(encoder.state_dict(), folder / "plain.safetensors")
    return folder / "plain.safetensors", encoder.state_dict()


def without_cls(weights):
    """timm's plain ViT of the same weights, without a class token and without its last norm."""
    sizes = {"img_size": SIDE, "in_chans": 1, "num_classes": 0, "class_token": False, "global_pool": "avg"}
    vit = timm.create_model("vit_tiny_patch16_224", fc_norm=False, **sizes, **SHAPE)
    weights = {name: value for name, value in weights.items() if name != "cls_token" and not name.startswith("head")}
    vit.load_state_dict(weights | {"pos_embed": weights["pos_embed"][:, 1:]})
    vit.norm = torch.nn.Identity()
    return vit.eval()


@pytest.mark.slow
@pytest.mark.parametrize("side", [8, 100])
def test_windowed__one_window__equals_the_plain_vit_exactly(tmp_path, side):
    path, weights = plain_file(tmp_path)
    windowed = build_encoder(model(window_size=side), SIDE, 1, 0).eval()
    load_encoder(windowed, path)
    images = torch.rand(2, 1, SIDE, SIDE)
    expected = without_cls(weights).forward_features(images)
    found = windowed.forward_features(images).flatten(2).transpose(1, 2)
    assert (found - expected).abs().max() == 0


def test_windowed__window_of_a_local_block__does_not_see_the_others():
    encoder = build_encoder(model(window_size=4, global_blocks=1), SIDE, 1, 0).eval()
    images = torch.rand(1, 1, SIDE, SIDE)
    other = images.clone()
    other[..., 16:, 16:] += 1  # the last of four windows
    tokens, changed = (encoder.patch_embed(x) + encoder.pos_embed for x in (images, other))
    local = [encoder.blocks[0](x) for x in (tokens, changed)]
    assert torch.equal(local[0][:, :4], local[1][:, :4])
    assert not torch.equal(encoder.blocks[3](tokens)[:, :4], encoder.blocks[3](changed)[:, :4])


def test_windowed__file_of_a_plain_vit__gives_all_but_relative_positions(tmp_path):
    path, weights = plain_file(tmp_path)
    windowed = build_encoder(model(window_size=4, add_relative=True), SIDE, 1, 0)
    report = load_encoder(windowed, path)
    assert sorted({name.split(".")[-1] for name in report.fresh}) == ["rel_pos_h", "rel_pos_w"]
    assert sorted({name.split(".")[0] for name in report.dropped}) == ["cls_token", "head", "norm"]
    assert report.positions == "file"
    assert torch.equal(windowed.pos_embed.flatten(1, 2), weights["pos_embed"][:, 1:])
    assert all((block.attn.rel_pos_h == 0).all() for block in windowed.blocks)


@pytest.mark.slow
def test_windowed__larger_grid__has_resampled_positions_as_a_plain_vit_has(tmp_path):
    path, _ = plain_file(tmp_path)
    windowed, plain = (build_encoder(model(**keys), 48, 1, 0) for keys in ({"window_size": 4}, {}))
    reports = [load_encoder(encoder, path, "released") for encoder in (windowed, plain)]
    assert [report.resized for report in reports] == [["pos_embed 8x8 -> 12x12"]] * 2
    assert torch.equal(windowed.pos_embed.flatten(1, 2), plain.pos_embed[:, 1:])


@pytest.mark.slow
def test_windowed__fixed_positions__are_computed_for_the_new_grid(tmp_path):
    path, _ = plain_file(tmp_path, pos_embed="sincos")
    windowed = build_encoder(model(window_size=4, pos_embed="sincos"), 48, 1, 0)
    assert load_encoder(windowed, path).positions == "formula"
    assert torch.equal(windowed.pos_embed.flatten(1, 2), sincos_positions(windowed.grid, 48))
    assert not windowed.pos_embed.requires_grad


@pytest.mark.slow
def test_windowed__file_of_its_own__keeps_relative_positions_and_resizes_them(tmp_path):
    first = build_encoder(model(window_size=4, global_blocks=2, add_relative=True), SIDE, 1, 0)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in first.blocks:
            block.attn.rel_pos_h.normal_(generator=draw)
    path = tmp_path / "windowed.safetensors"
    save_file(first.state_dict(), path)
    same, other = (
        build_encoder(model(window_size=size, global_blocks=2, add_relative=True), SIDE, 1, 0) for size in (4, 6)
    )
    assert load_encoder(same, path).resized == []
    assert torch.equal(same.blocks[0].attn.rel_pos_h, first.blocks[0].attn.rel_pos_h)
    assert "blocks.0.attn.rel_pos_h 7 -> 11" in load_encoder(other, path).resized
    # Each of the 11 stands for an equal part of the 7: the first of them lies at (0 + 0.5) * 7 / 11 - 0.5.
    places = (np.arange(11) + 0.5) * 7 / 11 - 0.5
    before, after = (encoder.blocks[0].attn.rel_pos_h.detach().numpy().T for encoder in (first, other))
    np.testing.assert_allclose(after, [np.interp(places, np.arange(7), column) for column in before], atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"global_blocks": 2}, "give it a window_size"),
        ({"window_size": 4, "pool": "avg"}, "classifies nothing, found pool: avg"),
        ({"window_size": 4, "pos_embed": "relative"}, "use add_relative"),
        ({"add_relative": True, "pos_embed": "relative"}, "remove one of them"),
    ],
)
def test_model__keys_that_do_not_fit__are_refused(keys, found):
    with pytest.raises(ValueError, match=found):
        model(**keys)


def test_global_blocks__end_equal_parts():
    assert global_blocks(12, 4) == (2, 5, 8, 11)
    with pytest.raises(ConfigError, match="does not divide the 12 blocks"):
        global_blocks(12, 5)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [mae_file, droppos_file, moco_file, lambda e: {"model": e.state_dict()}])
@pytest.mark.parametrize("size", [28, 56])
def test_windowed__official_files__arrive_whole_on_any_grid(tmp_path, wrap, size):
    official = vit()
    torch.save(wrap(official), tmp_path / "official.pth")
    keys = {"arch": "vit_tiny_patch16_224", "patch_size": 4, "embed_dim": WIDTH, "depth": 2, "num_heads": 2}
    cfg = ModelConfig(name="x", window_size=4, global_blocks=1, add_relative=True, **keys)
    windowed = build_encoder(cfg, size, 1, 0)
    report = load_encoder(windowed, tmp_path / "official.pth")
    weights = official.state_dict()
    assert {name for name in report.fresh if "rel_pos" not in name} == set()
    assert report.resized == ([] if size == 28 else ["pos_embed 7x7 -> 14x14"])
    assert all(
        torch.equal(value, weights[name])
        for name, value in windowed.blocks.state_dict(prefix="blocks.").items()
        if "rel_pos" not in name
    )
