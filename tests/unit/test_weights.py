"""Weight files of other runs and other projects: each layout is written as its project writes it, then loaded."""

import hashlib
import json
import os
import pickle

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.models.patches import Grid
from pipeline.models.position import sincos_positions
from pipeline.models.weights import fill_weights, load_encoder, read_weights
from pipeline.site import Site, weights_path
from tests.foreign_weights import WIDTH, droppos_file, mae_file, moco_file, resnet, swin, vit, without
from tests.tiny_vit import build_tiny, tiny_batch, tiny_encoder, tiny_model

LAYOUTS = {
    "timm flat": (lambda e: e.state_dict(), "timm", False),
    "timm state_dict": (lambda e: {"state_dict": e.state_dict(), "arch": "vit", "metric": 71.2}, "timm", False),
    "DDP of compiled": (lambda e: {f"module._orig_mod.{n}": v for n, v in e.state_dict().items()}, "timm", False),
    "deit": (lambda e: {"model": e.state_dict()}, "deit", False),
    "mae pretrain": (mae_file, "mae", True),
    "mae release": (lambda e: {"model": without(e.state_dict(), "head")}, "mae", True),
    "droppos": (droppos_file, "droppos", True),
    "moco v3": (moco_file, "moco_v3", True),
    "moco v3 linear": (
        lambda e: {"epoch": 90, "state_dict": {f"module.{n}": v for n, v in e.state_dict().items()}},
        "timm",
        False,
    ),
}


def load(content, encoder, tmp_path, **options):
    path = tmp_path / "given.pth"
    torch.save(content, path)
    return load_encoder(encoder, path, **options)


def refusal(content, encoder, tmp_path, **options):
    """The message, once it is sure that the encoder was left alone."""
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load(content, encoder, tmp_path, **options)
    assert_equal(encoder.state_dict(), before)
    return str(caught.value)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_load_encoder__layout_of_a_project__every_tensor_arrives(layout, tmp_path):
    write, name, has_fresh_head = LAYOUTS[layout]
    given, encoder = vit(seed=1), vit(seed=2)
    head = {n: v.clone() for n, v in encoder.state_dict().items() if n.startswith("head")}

    report = load(write(given), encoder, tmp_path)

    assert_equal(encoder.state_dict(), given.state_dict() | (head if has_fresh_head else {}))
    assert report.format == name
    assert report.fresh == (["head.weight", "head.bias"] if has_fresh_head else [])
    assert report.resized == []
    assert {*report.matched, *report.fresh} == set(encoder.state_dict())


def test_load_encoder__safetensors_of_a_run__matches_and_is_identified(tmp_path):
    given, encoder, path = tiny_encoder(seed=1), tiny_encoder(seed=2), tmp_path / "encoder.safetensors"
    save_file(given.state_dict(), path)

    report = load_encoder(encoder, path)

    assert_equal(encoder.state_dict(), given.state_dict())
    assert report.format == "timm"
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert_equal(read_weights(path), dict(given.state_dict()))


def test_load_encoder__file_of_the_old_torch_format__arrives(tmp_path):
    given, encoder, path = vit(seed=1), vit(seed=2), tmp_path / "model.pth.tar"
    torch.save({"model": given.state_dict()}, path, _use_new_zipfile_serialization=False)
    assert load_encoder(encoder, path).format == "deit"
    assert_equal(encoder.state_dict(), given.state_dict())


def test_load_encoder__mae_layout__gives_the_tokens_of_the_encoder_that_wrote_it(tmp_path):
    given, encoder, images = vit(seed=1), vit(seed=2), tiny_batch().images
    load(mae_file(given), encoder, tmp_path)
    with torch.no_grad():
        assert torch.equal(encoder.forward_features(images), given.forward_features(images))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "head"), [(swin, "head.fc"), (resnet, "fc")])
def test_load_encoder__other_families__arrive_with_and_without_their_classifier(build, head, tmp_path):
    given, same, other, none = build(1), build(2), build(3, num_classes=7), build(4, num_classes=0)
    for encoder in (same, other, none):
        report = load({"state_dict": given.state_dict()}, encoder, tmp_path)
        assert report.fresh == ([f"{head}.weight", f"{head}.bias"] if encoder is other else [])
        assert report.dropped == ([f"{head}.weight", f"{head}.bias"] if encoder is none else [])
        assert_equal(without(encoder.state_dict(), head), without(given.state_dict(), head))
    assert_equal(same.state_dict(), given.state_dict())


@pytest.mark.slow
def test_load_encoder__moco_resnet__drops_its_projector(tmp_path):
    given, encoder = resnet(1), resnet(2)
    report = load(moco_file(given, head="fc"), encoder, tmp_path)
    assert report.fresh == ["fc.weight", "fc.bias"]
    assert_equal(without(encoder.state_dict(), "fc"), without(given.state_dict(), "fc"))


def test_load_encoder__swin_of_the_authors__is_renamed_and_its_buffers_dropped(tmp_path):
    given, encoder = swin(1), swin(2)
    old = {name.replace("layers.1.downsample", "layers.0.downsample"): v for name, v in given.state_dict().items()}
    old = {name.replace("head.fc.", "head."): value for name, value in old.items()}
    buffers = {"layers.0.blocks.0.attn.relative_position_index": torch.zeros(49, 49, dtype=torch.long)}
    buffers |= {"layers.0.blocks.1.attn_mask": torch.zeros(4, 49, 49)}

    report = load({"model": old | buffers}, encoder, tmp_path)

    assert report.format == "swin"
    assert report.dropped == list(buffers)
    assert_equal(encoder.state_dict(), given.state_dict())


@pytest.mark.parametrize("num_classes", [7, 0])
def test_load_encoder__other_classes__keeps_the_models_classifier(num_classes, tmp_path):
    encoder = vit(seed=2, num_classes=num_classes)
    before = {name: value.clone() for name, value in encoder.state_dict().items() if name.startswith("head")}
    report = load({"model": vit(seed=1).state_dict()}, encoder, tmp_path)
    assert report.fresh == list(before)
    assert report.dropped == ([] if num_classes else ["head.weight", "head.bias"])
    for name, value in before.items():
        assert torch.equal(encoder.state_dict()[name], value)


def resampled(positions, side, antialias=True):
    """The reference: prefix rows as they are, the grid resampled as an image; MAE's and DeiT's without antialiasing."""
    prefix, grid = positions[:, :-49], positions[:, -49:].reshape(1, 7, 7, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(side, side), mode="bicubic", antialias=antialias, align_corners=False)
    return torch.cat([prefix, grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


@pytest.mark.parametrize("side", [4, 9])
def test_load_encoder__another_grid__resizes_positions_and_keeps_the_prefix_row(side, tmp_path):
    given, encoder = vit(seed=1), vit(seed=2, img_size=4 * side)
    report = load({"model": given.state_dict()}, encoder, tmp_path)
    assert report.resized == [f"pos_embed 7x7 -> {side}x{side}"]
    torch.testing.assert_close(encoder.pos_embed.data, resampled(given.pos_embed.data, side))
    assert torch.equal(encoder.pos_embed[:, 0], given.pos_embed[:, 0])


def test_load_encoder__half_precision_on_another_grid__arrives_in_the_models_precision(tmp_path):
    given, encoder = vit(seed=1).half(), vit(seed=2, img_size=16)
    load({"model": given.state_dict()}, encoder, tmp_path)
    assert encoder.pos_embed.dtype == torch.float32
    torch.testing.assert_close(encoder.pos_embed.data, resampled(given.pos_embed.data.float(), 4), atol=5e-3, rtol=0)


def test_load_encoder__swin_with_absolute_positions__resizes_without_a_prefix_row(tmp_path):
    given, encoder = swin(1, img_size=28, window_size=2), swin(2, img_size=56, window_size=2)
    for model, side in ((given, 7), (encoder, 14)):
        model.pos_embed = torch.nn.Parameter(torch.randn(1, side**2, 16))
    report = load(given.state_dict(), encoder, tmp_path)
    assert report.resized == ["pos_embed 7x7 -> 14x14"]
    torch.testing.assert_close(encoder.pos_embed.data, resampled(given.pos_embed.data, 14))


def test_load_encoder__file_without_positions__keeps_the_models_own(tmp_path):
    given, encoder = vit(seed=1, pos_embed="none").state_dict(), vit(seed=2)
    before = encoder.pos_embed.clone()
    assert load(given, encoder, tmp_path).fresh == ["pos_embed"]
    assert torch.equal(encoder.pos_embed, before)


def test_load_encoder__model_without_positions__drops_them(tmp_path):
    assert load(vit(1).state_dict(), vit(2, pos_embed="none"), tmp_path).dropped == ["pos_embed"]


def test_load_encoder__fixed_table__takes_the_same_grid_and_keeps_its_formula_on_another(tmp_path):
    given, same, other = vit(seed=1).state_dict(), vit(seed=2), vit(seed=3, img_size=16)
    same.pos_embed.requires_grad_(False)
    other.pos_embed.requires_grad_(False)
    formula = other.pos_embed.clone()

    assert load(given, same, tmp_path).fresh == []
    report = load(given, other, tmp_path)

    assert torch.equal(same.pos_embed, given["pos_embed"])
    assert torch.equal(other.pos_embed, formula)
    assert (report.fresh, report.resized, report.dropped) == (["pos_embed"], [], [])


@pytest.mark.parametrize("side", [4, 9])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_load_encoder__another_grid_the_released_way__interpolates_the_files_table_fixed_or_not(
    is_fixed, side, tmp_path
):
    given, encoder = vit(seed=1).state_dict(), vit(seed=2, img_size=4 * side)
    encoder.pos_embed.requires_grad_(not is_fixed)

    report = load(given, encoder, tmp_path, resampling="released")

    expected = resampled(given["pos_embed"], side, antialias=False)
    assert torch.equal(encoder.pos_embed, expected)
    assert (expected - resampled(given["pos_embed"], side)).abs().max() > 0.1  # timm's way is another
    assert (report.resized, report.fresh) == ([f"pos_embed 7x7 -> {side}x{side}"], [])
    assert report.positions == "released"


def test_load_encoder__sincos_of_another_grid__computed_and_interpolated_tables_differ(tmp_path):
    given = tiny_encoder(seed=1, pos_embed="sincos").state_dict()
    computed, interpolated = (build_tiny(tiny_model(pos_embed="sincos"), 2, image_size=40) for _ in range(2))

    assert load(given, computed, tmp_path).positions == "formula"
    assert load(given, interpolated, tmp_path, resampling="released").positions == "released"

    assert torch.equal(computed.pos_embed, sincos_positions(Grid(10, 10), WIDTH, num_prefix=1))
    assert (computed.pos_embed - interpolated.pos_embed).abs().max() > 0.5


@pytest.mark.slow
def test_load_encoder__positions__report_says_where_they_come_from(tmp_path):
    given = vit(seed=1).state_dict()
    found = {
        "same grid": load(given, vit(seed=2), tmp_path),
        "other grid": load(given, vit(seed=2, img_size=16), tmp_path),
        "file without": load(without(given, "pos_embed"), vit(seed=2), tmp_path),
        "model without": load(given, vit(seed=2, pos_embed="none"), tmp_path),
        "cnn": load(resnet(1).state_dict(), resnet(2), tmp_path),
    }
    assert {case: report.positions for case, report in found.items()} == {
        "same grid": "file",
        "other grid": "timm",
        "file without": "start",
        "model without": "none",
        "cnn": "none",
    }
    assert found["other grid"].as_dict()["positions"] == "timm"


def test_load_encoder__class_token_file_into_average_pooling__starts_fc_norm_anew(tmp_path):
    encoder = vit(seed=2, global_pool="avg")
    before = encoder.fc_norm.weight.clone()
    report = load(mae_file(vit(seed=1)), encoder, tmp_path)
    assert report.fresh == ["fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"]
    assert {"norm.weight", "norm.bias"} <= set(report.dropped)
    assert torch.equal(encoder.fc_norm.weight, before)


def test_load_encoder__finetuned_mae__brings_its_fc_norm(tmp_path):
    given, encoder = vit(seed=1, global_pool="avg"), vit(seed=2, global_pool="avg")
    report = load({"model": given.state_dict()}, encoder, tmp_path)
    assert (report.format, report.fresh, report.dropped) == ("mae", [], [])
    assert_equal(encoder.state_dict(), given.state_dict())


def test_load_encoder__average_pooling_file_into_class_token_model__is_refused(tmp_path):
    message = refusal({"model": vit(seed=1, global_pool="avg").state_dict()}, vit(seed=2), tmp_path)
    assert "fc_norm" in message and "average pooling" in message


def test_load_encoder__relative_tables__fresh_dropped_or_resized(tmp_path):
    plain, relative = vit(seed=1, pos_embed="none"), tiny_encoder(seed=2, pos_embed="relative")
    smaller = dict(relative.state_dict())
    tables = [name for name in smaller if name.endswith("relative_position_bias_table")]
    assert tables == [f"blocks.{i}.attn.rel_pos.relative_position_bias_table" for i in range(2)]

    assert load(plain.state_dict(), relative, tmp_path).fresh == tables
    assert load(relative.state_dict(), plain, tmp_path).dropped == tables
    smaller |= {name: torch.randn(7 * 7 + 3, 2) for name in tables}  # of a 4x4 grid, with three rows for CLS
    assert load(smaller, relative, tmp_path).resized == [f"{name} 4x4 -> 7x7" for name in tables]
    assert torch.equal(relative.get_parameter(tables[0])[-3:], smaller[tables[0]][-3:])


@pytest.mark.parametrize("window", [4, 14])
def test_load_encoder__swin_with_another_window__resizes_tables_as_timm_does(window, tmp_path):
    given, encoder = swin(1), swin(2, window_size=window)
    expected = timm.models.swin_transformer.checkpoint_filter_fn(dict(given.state_dict()), encoder)
    report = load(given.state_dict(), encoder, tmp_path)
    table = "layers.0.blocks.0.attn.relative_position_bias_table"
    assert f"{table} 7x7 -> {window}x{window}" in report.resized
    assert_equal(encoder.state_dict(), expected)
    old, new = given.get_parameter(table), encoder.get_parameter(table)
    torch.testing.assert_close(new[len(new) // 2], old[len(old) // 2])  # no offset: the same in every window


@pytest.mark.slow
def test_load_encoder__distilled_deit__is_refused_with_its_reason(tmp_path):
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, num_classes=10)
    message = refusal({"model": distilled.state_dict()}, vit(), tmp_path)
    assert "distilled model with two prefix tokens" in message


def test_load_encoder__other_patch_size__is_refused_not_resampled(tmp_path):
    message = refusal({"model": vit(img_size=56, patch_size=8).state_dict()}, vit(), tmp_path)
    assert "patch size found (8, 8), expected (4, 4)" in message
    assert "tensors that differ (1): patch_embed.proj.weight: found (32, 1, 8, 8), expected (32, 1, 4, 4)" in message


def test_load_encoder__other_width__says_another_architecture(tmp_path):
    message = refusal({"model": vit(embed_dim=64).state_dict()}, vit(), tmp_path)
    assert "another architecture (embed dim found 64, expected 32)" in message


@pytest.mark.slow
def test_load_encoder__other_family__says_another_architecture(tmp_path):
    assert "another architecture" in refusal(resnet().state_dict(), vit(), tmp_path)


def test_load_encoder__deeper_file__lists_twenty_and_counts_all(tmp_path):
    message = refusal({"model": vit(depth=5).state_dict()}, vit(), tmp_path)
    assert "tensors that differ (36)" in message and "and 16 more" in message
    assert message.count("not expected") == 20


def test_load_encoder__missing_and_unexpected_tensors__are_listed_with_shapes(tmp_path):
    given = dict(vit().state_dict())
    given["blocks.0.attn.other"] = given.pop("blocks.0.attn.qkv.bias")
    message = refusal(given, vit(), tmp_path)
    assert "blocks.0.attn.qkv.bias: missing, expected (96,)" in message
    assert "blocks.0.attn.other: found (96,), not expected" in message


def test_load_encoder__positions_of_no_square_grid__are_refused(tmp_path):
    given = vit().state_dict() | {"pos_embed": torch.randn(1, 13, WIDTH)}
    assert "pos_embed: found (1, 13, 32), expected (1, 50, 32)" in refusal(given, vit(), tmp_path)


class Malicious:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_load_encoder__pickle_that_runs_code__is_refused_and_does_not_run(is_zip, tmp_path):
    path, made = tmp_path / "evil.pth", tmp_path / "made"
    content = {"model": vit().state_dict(), "args": Malicious(made)}
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match=r"asks for posix.mkdir"):
        load_encoder(vit(), path)
    assert not made.exists()


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.999])
def test_load_encoder__truncated_checkpoint__says_so(part, is_zip, tmp_path):
    path = tmp_path / "cut.pth"
    torch.save({"model": vit().state_dict()}, path, _use_new_zipfile_serialization=is_zip)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(CheckpointError, match=r"cut.pth could not be read .* download it again"):
        load_encoder(vit(), path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_load_encoder__pickle_of_another_library__does_not_advise_to_load_it_unsafely(tmp_path):
    path = tmp_path / "other.pkl"
    path.write_bytes(pickle.dumps({"a": [1, 2]}, protocol=4))
    with pytest.raises(CheckpointError, match=r"expected a whole file that torch.save wrote") as caught:
        load_encoder(vit(), path)
    assert "weights_only" not in str(caught.value)


def test_load_encoder__truncated_safetensors__says_so(tmp_path):
    path = tmp_path / "encoder.safetensors"
    save_file(vit().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_encoder(vit(), path)


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>", b"version https://git-lfs.github.com/spec/v1"])
def test_load_encoder__foreign_file__says_what_it_begins_with(content, tmp_path):
    path = tmp_path / "model.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load_encoder(vit(), path)
    assert repr(content[:9]) in str(caught.value) and "download it again" in str(caught.value)


@pytest.mark.parametrize(("content", "found"), [([1, 2], "a list"), ({"epoch": 3}, "no tensors but epoch")])
def test_load_encoder__checkpoint_without_state_dict__says_what_it_holds(content, found, tmp_path):
    assert found in refusal(content, vit(), tmp_path)


def test_load_encoder__missing_file__says_where_files_belong(tmp_path):
    with pytest.raises(CheckpointError, match=r"none.pth not found.*`weights` of the site"):
        load_encoder(vit(), tmp_path / "none.pth")


def test_load_encoder__folder__is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"Is a directory.*expected one weight file"):
        load_encoder(vit(), tmp_path)


def test_report__mae_into_another_grid__one_line_and_json(tmp_path):
    report = load(mae_file(vit(seed=1)), vit(seed=2, img_size=16), tmp_path)
    assert report.summary() == (
        f"mae file {tmp_path}/given.pth: 29 tensors matched, 1 resized (pos_embed 7x7 -> 4x4), "
        "2 fresh (head.weight, head.bias), 12 dropped (mask_token, decoder_pos_embed, decoder_embed.weight, "
        "decoder_embed.bias, and 3 more), positions: timm"
    )
    found = json.loads(json.dumps(report.as_dict()))
    assert found["num_dropped"] == 12 and "decoder_blocks.* x6" in found["dropped"]
    assert found["num_matched"] == 29 == len(found["matched"])
    assert found["resized"] == ["pos_embed 7x7 -> 4x4"]


def test_fill_weights__one_tensor_missing__loads_none(tmp_path):
    module = vit(seed=2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"tensors that differ \(1\): norm.bias: missing"):
        fill_weights(module, without(vit(seed=1).state_dict(), "norm.bias"), tmp_path / "x")
    assert_equal(module.state_dict(), before)


def test_weights_path__relative_and_absolute__start_at_the_sites_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE", str(tmp_path))
    assert weights_path(Site(weights="$STORE/w"), "file:mae/base.pth") == tmp_path / "w/mae/base.pth"
    assert weights_path(Site(weights="$STORE/w"), "file:/abs/x.pth").as_posix() == "/abs/x.pth"
    default = weights_path(Site(), "file:deit_small.pth")
    assert default.is_absolute() and default.parts[-2:] == ("weights", "deit_small.pth")


@pytest.mark.parametrize("init", ["file:", "mae-vit_b", "http://x/y.pth"])
def test_weights_path__no_file__says_the_form(init):
    with pytest.raises(ConfigError, match=r"expected file:name.pth"):
        weights_path(Site(), init)
