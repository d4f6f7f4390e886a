"""The spoken words that are part of this project."""

import json
import lzma
import shutil

import numpy as np
import pytest
import torch
from layouts import message_of

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.data.audio.clips import decoded_clip
from pipeline.data.audio.mfcc import mfcc
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.spoken_words import FILE
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

LIMIT = 3_000_000  # bytes in git


@pytest.fixture(scope="module")
def cfg():
    return parse_data(Layers(("test", read_yaml(CONFIGS / "data" / "spoken_words.yaml")["data"])))


@pytest.fixture(scope="module")
def folder(cfg):
    return kind_of(cfg).default_folder()


@pytest.mark.slow
@pytest.mark.parametrize(("split", "each"), [("train", 72), ("val", 22)])
def test_embedded_set__each_split__has_as_many_clips_of_each_class(cfg, folder, split, each):
    samples = open_split(cfg, folder, split)
    assert np.bincount(samples.labels).tolist() == [each] * 7
    loudest = [np.abs(samples.wave(index)).max() for index in range(len(samples)) if samples.labels[index] != 0]
    assert min(loudest) > 100
    assert [len(noise) for noise in samples.noises] == ([32000] * 6 if split == "train" else [])


def test_embedded_set__in_git__is_small_and_names_its_licence(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) < LIMIT
    text = (folder / "README.md").read_text()
    assert "CC BY 4.0" in text and "Google" in text and "What was changed" in text


@pytest.mark.slow
def test_embedded_set__statistics__are_those_of_the_train_clips(cfg, folder):
    samples = open_split(cfg, folder, "train")
    waves = np.stack([samples.wave(index) for index in range(len(samples.recorded))])
    found = mfcc(torch.from_numpy(waves).float() / 32768, cfg.features).double()
    torch.testing.assert_close(found.mean(dim=(0, 2)), torch.tensor(cfg.mean).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.std(dim=(0, 2)), torch.tensor(cfg.std).double(), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_embedded_set__prepared__has_a_manifest_that_opens_it(cfg, folder, tmp_path):
    manifest = prepare(cfg, folder, tmp_path, progress=False)
    assert manifest.classes == ["silence", "unknown", "down", "go", "left", "right", "up"]
    assert len(open_split(cfg, folder, "val", tmp_path)) == 154


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "header", "missing", "samples"])
def test_prepare__embedded_file_damaged__says_so(cfg, folder, tmp_path, damage):
    content = (folder / FILE).read_bytes()
    (tmp_path / "set").mkdir()
    if damage != "missing":
        header, _, samples = lzma.decompress(content).partition(b"\n")
        fewer = lzma.compress(header + b"\n" + samples[:1000], preset=0)
        made = {"truncated": content[:50000], "header": lzma.compress(b"no JSON\n", preset=0), "samples": fewer}
        (tmp_path / "set" / FILE).write_bytes(made[damage])
    text = message_of(prepare, cfg, tmp_path / "set", tmp_path / "out", progress=False)
    expected = {
        "truncated": "clips.xz: truncated or damaged (Compressed data ended before",
        "header": "clips.xz: truncated or damaged (Expecting value",
        "missing": "clips.xz: not found",
        "samples": "clips.xz: truncated or damaged (found 1000 samples, its header promises",
    }
    assert f"  - {expected[damage]}" in text and "number of problems: 1\n" in text


@pytest.mark.slow
def test_open__embedded_file_changed__is_refused(cfg, folder, tmp_path):
    """One sample of the noise is another."""
    prepare(cfg, folder, tmp_path / "out", progress=False)
    shutil.copytree(folder, tmp_path / "set")
    content = lzma.decompress((folder / FILE).read_bytes())
    (tmp_path / "set" / FILE).write_bytes(lzma.compress(content[:-1] + b"\1", preset=0))
    open_split(cfg, tmp_path / "set", "val", tmp_path / "out")
    text = message_of(open_split, cfg, tmp_path / "set", "train", tmp_path / "out")
    assert "found other sounds or labels than were verified" in text


@pytest.mark.slow
def test_embedded_clips__real_ones_at_hand__are_theirs_to_a_level_of_8_bits(cfg, folder, real_clips):
    rows = json.loads(lzma.decompress((folder / FILE).read_bytes()).partition(b"\n")[0])
    lists = {part: (real_clips / f"{part}_list.txt").read_text().split() for part in ("validation", "testing")}
    samples = open_split(cfg, folder, "train")
    peaks = {name: peak for name, _, peak, _ in rows}
    assert all((name in lists[part]) == (listed == part) for name, _, _, listed in rows for part in lists)
    for index in range(0, len(samples.recorded), 40):
        name = samples.name(index)
        expected = decoded_clip((real_clips / name).read_bytes()).astype(int)
        error = np.abs(samples.wave(index)[: len(expected)] - expected).max()
        assert error <= peaks[name] / 254 + 1
