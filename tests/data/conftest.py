"""Real pictures with objects and with classes of pixels, and real clips, extracted once; a place for configs."""

import os
from pathlib import Path

import pytest

from pipeline.data.describe import describe
from pipeline.data.store.archives import extract


def extracted(name, tmp_path_factory, file=""):
    archive = Path(os.environ.get("PATCHWORK_DATA", "")) / name / (file or f"{name}.tar")
    if not archive.is_file():
        pytest.skip("PATCHWORK_DATA is not set: it names the folder of the development data sets")
    folder = tmp_path_factory.mktemp(name)
    extract(archive, folder)
    return folder


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """The folder that `describe` writes to."""
    monkeypatch.setattr(describe, "CONFIGS", tmp_path / "configs")
    return tmp_path / "configs" / "data"


@pytest.fixture(scope="session")
def coco_mini(tmp_path_factory):
    """114 + 60 images of COCO as published."""
    return extracted("coco-mini", tmp_path_factory) / "coco-mini"


@pytest.fixture(scope="session")
def coco_small(tmp_path_factory):
    """53 + 32 images of COCO with a longer side of 256 pixels; 3 of train have no objects."""
    return extracted("coco-ccby-85", tmp_path_factory) / "coco-ccby-85"


@pytest.fixture(scope="session")
def ade_mini(tmp_path_factory):
    """The first 12 + 8 pairs of a part of ADE20K as published; the folder is the one around ADEChallengeData2016."""
    folder = extracted("ade20k-mini", tmp_path_factory)
    for part, count in (("training", 12), ("validation", 8)):
        for kind in ("images", "annotations"):
            for path in sorted((folder / "ADEChallengeData2016" / kind / part).iterdir())[count:]:
                path.unlink()
    return folder


@pytest.fixture(scope="session")
def real_clips(tmp_path_factory):
    """1,077 clips of Speech Commands as published."""
    file = "speech_commands_v0.01-mini.tar.xz"
    return extracted("speech-commands-mini", tmp_path_factory, file) / "speech_commands_v0.01"
