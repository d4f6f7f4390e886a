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
