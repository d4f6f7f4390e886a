"""Locking every kind of timm model: with its key a locked model answers as the original, or it is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from foreign_encoders import IMAGE_SIZE, KINDS, build_kind
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform

from pipeline.cli import main
from pipeline.core.errors import CheckpointError, ConfigError, PatchworkError
from pipeline.permutation.authorise import lock, plan_key, unlock
from pipeline.permutation.infer import classify_image
from pipeline.permutation.keys import new_key, read_key

VIEW = {
    "input_size": [3, IMAGE_SIZE, IMAGE_SIZE],
    "mean": [0.1, 0.2, 0.3],
    "std": [0.9, 0.8, 0.7],
    "interpolation": "bilinear",
    "crop_pct": 0.6,
    "crop_mode": "center",
}
REFUSED = {
    "rotary": "gamma_1 is not a known parameter",
    "rotary, known names": "rotary positions",
    "two attentions in one": "lambda_k1 is not a known parameter",
    "relative, no position table": "mlp.fc1.bias is not a known parameter",
    "BEiT": "expected",
    "Swin": "expected",
    "ResNet": "expected",
    "ConvNeXt": "expected",
}
CPU = torch.device("cpu")


def write_kind(folder, kind, **config):
    """A model as timm's hub has it: weights, and a config.json beside them."""
    arch, sizes = KINDS[kind]
    folder.mkdir(exist_ok=True)
    encoder = build_kind(kind, channels=3, num_classes=7)
    save_file({name: value.contiguous() for name, value in encoder.state_dict().items()}, folder / "model.safetensors")
    said = {"architecture": arch, "num_classes": 7, "model_args": sizes, "pretrained_cfg": VIEW} | config
    (folder / "config.json").write_text(json.dumps({name: value for name, value in said.items() if value is not None}))
    return encoder, folder / "model.safetensors"


def key_of(model, arch=None, heads=None):
    plan = plan_key(model, heads, arch)
    drawn = new_key(plan.shape, "shared" if plan.are_alike else "independent")
    return replace(drawn, architecture=plan.architecture, names=plan.names)


def locked_beside(model, key, folder):
    """The locked file, with the config.json of the original."""
    folder.mkdir()
    (folder / "config.json").write_text((model.parent / "config.json").read_text())
    lock(model, key, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.fixture
def photograph(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def expected_guesses(encoder, photograph):
    view = create_transform(**VIEW | {"input_size": tuple(VIEW["input_size"])}, is_training=False)
    with torch.no_grad():
        found = encoder(view(Image.open(photograph))[None]).softmax(1)[0].sort(descending=True)
    return {f"class {label}": value for label, value in zip(found.indices.tolist(), found.values.tolist(), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_lock__of_a_kind_of_vit__answers_with_its_key_as_the_original_does(tmp_path, photograph, kind):
    encoder, model = write_kind(tmp_path / "original", kind)
    key = key_of(model)
    locked = locked_beside(model, key, tmp_path / "locked")
    found = {guess.name: guess.probability for guess in classify_image(locked, key, photograph, None, CPU).guesses}
    expected = expected_guesses(encoder, photograph)
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-5)
    assert not torch.equal(load_file(locked)["blocks.0.norm1.weight"], load_file(model)["blocks.0.norm1.weight"])
    unlock(locked, key, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("kind", REFUSED)
def test_key__of_a_model_that_no_permutation_leaves_exact__is_refused_with_the_reason(tmp_path, kind):
    _, model = write_kind(tmp_path / "original", kind)
    with pytest.raises(PatchworkError, match=REFUSED[kind]):
        key_of(model)


# Statements that contradict each other


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"heads": 4}, "number of heads.*4 by --heads, 2 by vit_tiny"),
        ({"arch": "vit_small_patch16_224"}, "architecture.*vit_small_patch16_224 by --model"),
    ],
)
def test_key__with_another_statement_than_the_config__is_refused(tmp_path, given, words):
    _, model = write_kind(tmp_path / "original", "class token")
    with pytest.raises(ConfigError, match=words):
        key_of(model, **given)


@pytest.mark.slow
def test_key__of_an_architecture_of_another_size__is_refused(tmp_path):
    _, model = write_kind(tmp_path / "original", "class token", model_args=None)
    with pytest.raises(PatchworkError, match="192 and 12 by vit_tiny_patch16_224, 32 and 2 by"):
        key_of(model)


def test_infer__with_a_tag_that_states_another_view__is_refused(tmp_path, photograph):
    _, model = write_kind(tmp_path / "original", "class token")
    key = key_of(model)
    locked = locked_beside(model, key, tmp_path / "locked")
    with pytest.raises(ConfigError, match=r"different views of images.*mean"):
        classify_image(locked, key, photograph, "vit_tiny_patch16_224.augreg_in21k_ft_in1k", CPU)


def test_infer__of_another_number_of_classes_than_the_config_says__is_refused(tmp_path, photograph):
    _, model = write_kind(tmp_path / "original", "class token", num_classes=9)
    key = key_of(model)
    locked = locked_beside(model, key, tmp_path / "locked")
    with pytest.raises(ConfigError, match=r"number of classes.*7 by its tensors, 9 by config\.json"):
        classify_image(locked, key, photograph, None, CPU)


# Files


def test_lock__of_a_file_that_lacks_a_norm__is_refused(tmp_path):
    _, model = write_kind(tmp_path / "original", "class token")
    key = key_of(model)
    for name in ("norm.weight", "blocks.1.norm2.bias"):
        save_file({each: value for each, value in load_file(model).items() if each != name}, tmp_path / "part")
        with pytest.raises(CheckpointError, match=f"has no {name}"):
            lock(tmp_path / "part", key, tmp_path / "locked")


def test_lock__of_another_architecture_than_the_keys__is_refused(tmp_path):
    _, model = write_kind(tmp_path / "original", "class token")
    key = replace(key_of(model), architecture="vit_small_patch16_224")
    with pytest.raises(ConfigError, match="vit_small_patch16_224 by the key"):
        lock(model, key, tmp_path / "locked")


def test_lock__with_a_key_from_before__asks_for_a_new_one(tmp_path):
    _, model = write_kind(tmp_path / "original", "class token")
    with pytest.raises(CheckpointError, match="make a new key"):
        lock(model, replace(key_of(model), architecture="", names=frozenset()), tmp_path / "locked")


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_unlock__of_a_private_model__is_as_private_as_the_original(tmp_path, mode):
    _, model = write_kind(tmp_path / "original", "class token")
    model.chmod(mode)
    key = key_of(model)
    lock(model, key, tmp_path / "locked")
    unlock(tmp_path / "locked", key, tmp_path / "back")
    assert (tmp_path / "back").stat().st_mode & 0o777 == mode


def test_key_command__of_a_model_with_a_config__keeps_its_architecture_and_names(tmp_path):
    _, model = write_kind(tmp_path / "original", "class token")
    assert main(["key", "new", "--like", str(model), "--out", str(tmp_path / "mine.key")]) == 0
    found = read_key(tmp_path / "mine.key")
    assert found.architecture == "vit_tiny_patch16_224" and found.names >= {"norm.weight", "blocks.1.norm2.bias"}
