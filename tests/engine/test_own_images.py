"""From a folder of somebody's own images to a trained run: described, prepared, trained, and the classes told apart."""

import numpy as np
import pytest
from PIL import Image
from tiny_runs import fit, tiny_run

from pipeline.config import read_yaml
from pipeline.data import describe as describing
from pipeline.data.describe import Choices, describe, write_config

pytestmark = pytest.mark.slow


def write_photographs(folder):
    """Two classes of noise, one bright above and one bright below, in colour and in sizes of their own."""
    rng = np.random.default_rng(0)
    for number in range(60):
        name, height, width = ("above", "below")[number % 2], *rng.integers(28, 48, 2)
        pixels = rng.integers(0, 100, (height, width, 3), dtype=np.uint8)
        half = slice(0, height // 2) if name == "above" else slice(height // 2, height)
        pixels[half] += 150
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{number}.{('png', 'webp')[number % 3 == 0]}")
    return folder


def test_own_images__described_and_prepared__are_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(describing, "CONFIGS", tmp_path / "configs")
    folder = write_photographs(tmp_path / "mine")
    write_config(describe(folder, Choices(name="mine", image_size=28, val_share=0.2), progress=False), force=False)
    written = read_yaml(tmp_path / "configs/data/mine.yaml")
    assert (written["data"]["num_train"], written["data"]["num_val"]) == (48, 12)
    recipe = {"data": {"augment": {"crop": "none"}}, "optim": {"base_lr": 0.01, "epochs": 40}}
    trained = fit(tiny_run(written, recipe), tmp_path / "results", folder)
    assert trained.last_validation["top1"] == 100
