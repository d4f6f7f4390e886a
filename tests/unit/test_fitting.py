"""Models of timm are built with the sizes of their weight files, and what contradicts a file is refused."""

import pytest
import timm
import torch
from foreign_encoders import IMAGE_SIZE, KINDS, build_kind
from safetensors.torch import save_file

from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.models.fitting import fit
from pipeline.models.foreign import build_foreign

# Kinds whose files do not tell an image size.
UNTOLD = ("relative, no position table", "rotary", "BEiT", "Swin")
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
ARCH = "vit_tiny_patch16_224"


def written(folder, arch=ARCH, metadata=None, **args):
    torch.manual_seed(0)
    state = timm.create_model(arch, **args).state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "file.safetensors", metadata)
    return folder / "file.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "given", "args"),
    [
        (ARCH, SMALL, {"img_size": 96, "patch_size": 8}),
        (ARCH, SMALL, {"img_size": 48, "in_chans": 1, "num_classes": 5}),
        (ARCH, SMALL, {"img_size": 32, "patch_size": 4, "class_token": False, "global_pool": "avg"}),
        (ARCH, SMALL, {"img_size": 32, "patch_size": 4, "global_pool": "avg"}),
        (ARCH, SMALL, {"img_size": 32, "patch_size": 4, "reg_tokens": 3, "no_embed_class": True}),
        (ARCH, SMALL, {"num_classes": 0}),
        ("test_resnet", {}, {"in_chans": 1, "num_classes": 3}),
        (
            "swin_tiny_patch4_window7_224",
            {"img_size": 64, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)},
            {"window_size": 8, "num_classes": 4},
        ),
    ],
)
def test_fit__file_of_other_sizes_than_its_architecture__builds_the_model_of_the_file(tmp_path, arch, given, args):
    file = written(tmp_path, arch, **given, **args)
    fitted = fit(arch, given, file)
    seen = fitted.image_size or 64
    encoder = build_foreign(arch, file, fitted, seen).eval()
    torch.manual_seed(0)
    expected = timm.create_model(arch, **given, **args).eval().to(memory_format=torch.channels_last)
    images = torch.randn(2, args.get("in_chans", 3), seen, seen)
    with torch.no_grad():
        assert torch.equal(encoder(images), expected(images))
    assert seen == args.get("img_size", given.get("img_size", 224 if arch == ARCH else 64))
    assert (fitted.num_classes or 0) == args.get("num_classes", 1000) and not fitted.resampled


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fit__file_of_every_kind_of_model__builds_the_model_of_the_file(tmp_path, kind):
    arch, sizes = KINDS[kind]
    expected, file = build_kind(kind), tmp_path / "file.safetensors"
    save_file({name: value.contiguous() for name, value in expected.state_dict().items()}, file)
    told = () if kind in UNTOLD else ("img_size", "patch_size", "global_pool")
    fitted = fit(arch, {key: value for key, value in sizes.items() if key not in told}, file)
    images = torch.randn(2, fitted.channels, IMAGE_SIZE, IMAGE_SIZE)
    with torch.no_grad():
        found = build_foreign(arch, file, fitted, IMAGE_SIZE).eval()(images)
        assert torch.allclose(found, expected(images), atol=1e-5)
    assert fitted.image_size == (IMAGE_SIZE if "img_size" in sizes else None)


@pytest.mark.slow
def test_fit__file_with_a_recorded_grid__has_its_height_and_width(tmp_path):
    file = written(tmp_path, metadata={"grid": "2x8"}, **SMALL, img_size=(32, 128))
    assert fit(ARCH, SMALL, file).image_size == (32, 128)


@pytest.mark.slow
def test_fit__file_of_the_architectures_own_sizes__adds_no_argument(tmp_path):
    """Names of results contain the arguments; they stay what they were."""
    fitted = fit("test_vit", {}, written(tmp_path, "test_vit"))
    assert (fitted.args, fitted.channels, fitted.num_classes, fitted.image_size) == ({}, 3, 1000, 160)


@pytest.mark.slow
def test_fit__arguments_that_contradict_the_file__are_refused_all_at_once(tmp_path):
    file = written(tmp_path, **SMALL, img_size=96, patch_size=8, num_classes=7)
    with pytest.raises(CheckpointError) as caught:
        fit(ARCH, {**SMALL, "img_size": 128, "patch_size": 16, "num_classes": 10}, file)
    said = str(caught.value)
    assert "patch_size: found 8, expected 16" in said and "num_classes: found 7, expected 10" in said
    assert "img_size: found 96, expected 128" in said and "--resample-positions" in said


@pytest.mark.slow
def test_fit__file_of_another_width_and_depth__says_which(tmp_path):
    with pytest.raises(CheckpointError, match="embed_dim: found 32, expected 192; depth: found 2, expected 12"):
        fit(ARCH, {}, written(tmp_path, **SMALL))


@pytest.mark.slow
def test_fit__another_image_size_when_resampling_is_asked_for__resamples_and_says_so(tmp_path):
    file, given = written(tmp_path, **SMALL, img_size=96, patch_size=8), {**SMALL, "img_size": 128}
    fitted = fit(ARCH, given, file, may_resample=True)
    assert (fitted.resampled, fitted.image_size) == ("12x12 -> 16x16", 128)
    assert build_foreign(ARCH, file, fitted, 128).pos_embed.shape == (1, 257, 32)


@pytest.mark.slow
def test_build_foreign__file_that_fits_only_when_resized__is_refused(tmp_path):
    given = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 8}
    file = written(tmp_path, "swin_tiny_patch4_window7_224", img_size=32, **given)  # windows no larger than its maps
    fitted = fit("swin_tiny_patch4_window7_224", given, file)
    with pytest.raises(CheckpointError, match="only when it is resized"):
        build_foreign("swin_tiny_patch4_window7_224", file, fitted, 64)


def test_fit__argument_that_timm_does_not_have__is_one_message(tmp_path):
    with pytest.raises(ConfigError, match=r"timm cannot build test_vit with widht 3 .*expected keywords"):
        fit("test_vit", {"widht": 3}, written(tmp_path, "test_vit"))
