"""From a folder of somebody's own images to a trained run: described, prepared, trained, and the classes told apart."""

import numpy as np
import pytest
from PIL import Image
from tiny_runs import PRETRAINING, fit, tiny_config, tiny_run

from pipeline.core.config import Layers, merge, read_yaml
from pipeline.data.describe import describe as describing
from pipeline.data.describe.describe import Choices, describe, write_config
from pipeline.engine.run import parse_run

pytestmark = pytest.mark.slow


def write_photographs(folder):
    """Two classes of noise, dark and light, in colour and in sizes of their own."""
    rng = np.random.default_rng(0)
    for number in range(60):
        name, size = ("dark", "light")[number % 2], rng.integers(28, 48, 2)
        pixels = rng.integers(0, 100, (*size, 3), dtype=np.uint8) + (150 if name == "light" else 0)
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.{('png', 'webp')[number % 3 == 0]}")
    return folder


def test_own_images__described_and_prepared__are_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(describing, "CONFIGS", tmp_path / "configs")
    folder = write_photographs(tmp_path / "mine")
    write_config(describe(folder, Choices(name="mine", image_size=28, val_share=0.2), progress=False), force=False)
    written = read_yaml(tmp_path / "configs/data/mine.yaml")
    assert (written["data"]["num_train"], written["data"]["num_val"]) == (48, 12)
    recipe = {"data": {"augment": {"crop": "none"}}, "optim": {"base_lr": 0.01, "epochs": 20}}
    trained = fit(tiny_run(written, recipe), tmp_path / "results", folder)
    assert trained.last_validation.metrics["top1"] == 100


@pytest.mark.parametrize("method", ["mp3", "droppos", "mae"])
def test_own_images__without_labels__are_pretrained_on_and_validated(tmp_path, monkeypatch, method):
    monkeypatch.setattr(describing, "CONFIGS", tmp_path / "configs")
    folder = write_photographs(tmp_path / "mine")
    choices = Choices(name="mine", image_size=28, val_share=0.2, unlabelled=True)
    write_config(describe(folder, choices, progress=False), force=False)
    written = read_yaml(tmp_path / "configs/data/mine.yaml")
    assert (written["data"]["num_train"], written["data"]["num_val"]) == (48, 12)
    content = merge(tiny_config(PRETRAINING[method]), {"optim": {"epochs": 1, "warmup_epochs": 0}})
    run = parse_run(Layers(("test", {**content, "data": written["data"]})))
    found = fit(run, tmp_path / "results", folder).last_validation.metrics
    assert np.isfinite(found["loss"]) and ("position_top1" in found) == (method != "mae")
