"""Describing a folder in the layout of Speech Commands: the config that is written opens the set."""

import shutil

import pytest
import torch
from describing import described, reread
from layouts import message_of
from tiny_sounds import write_sounds

from pipeline.data.describe import sounds as describe_sounds
from pipeline.data.kind import kind_of
from pipeline.data.readers.speech_commands import NOISE
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare


@pytest.fixture
def sounds(tmp_path):
    return write_sounds(tmp_path / "sounds")


def test_describe__words__writes_a_config_that_prepares_them(sounds, configs, tmp_path):
    found = described(sounds)
    assert found.summary == "mine: 24 train and 12 val clips of 6 classes, 0.94 to 1.00 seconds"
    cfg = reread(configs, found)
    assert cfg == found.config and cfg.words == ("beep", "high", "hum", "low", "whistle")
    assert (cfg.num_train, cfg.num_val, cfg.num_classes) == (24, 12, 6)  # 22 and 11 of words, a tenth of silence
    prepare(cfg, sounds, tmp_path / "out", progress=False)
    assert "# Your own clips in the layout of Speech Commands" in (configs / "mine.yaml").read_text()
    assert (
        "# Clips of 0.94 to 1.00 seconds. Classes, from label 0 on: silence, beep"
        in (configs / "mine.yaml").read_text()
    )


def test_describe__words__are_seen_with_mean_0_and_deviation_1(sounds, monkeypatch):
    monkeypatch.setattr(describe_sounds, "AT_ONCE", 5)  # 22 recordings: the last part is shorter
    cfg = described(sounds).config
    samples = open_split(cfg, sounds, "train")
    waves = torch.stack([torch.from_numpy(samples.wave(index)) for index in range(len(samples.recorded))])
    seen = kind_of(cfg).batch_transform(0.0, torch.device("cpu")).normalise({"wave": waves})
    torch.testing.assert_close(seen.mean(dim=(0, 1, 3)), torch.zeros(40), atol=1e-3, rtol=0)
    torch.testing.assert_close(seen.std(dim=(0, 1, 3)), torch.ones(40), atol=1e-3, rtol=0)


def test_describe__folder_without_noise__asks_for_none(sounds, configs, tmp_path):
    shutil.rmtree(sounds / NOISE)
    cfg = reread(configs, described(sounds))
    assert cfg.augment.noise == 0
    prepare(cfg, sounds, tmp_path / "out", progress=False)


def test_describe__damaged_folder__lists_what_is_wrong(sounds):
    (sounds / "low/train0_nohash_0.wav").write_bytes(b"no sound")
    text = message_of(described, sounds)
    assert "cannot be described, number of problems: 1\n  - low/train0_nohash_0.wav: found no readable WAV file" in text
    (sounds / "testing_list.txt").unlink()
    assert "  - testing_list.txt: not found\n" in message_of(described, sounds)


def test_describe__choices_for_images__are_refused(sounds):
    text = message_of(described, sounds, val_share=0.2, channels=1, min_side=9)
    assert (
        text
        == "--channels, --val-share, --min-side: for images; clips are split by the lists in the folder; leave it out"
    )


@pytest.mark.slow
@pytest.mark.data
def test_describe__real_clips__are_as_many_words_as_have_clips_in_both_lists(real_clips, configs, tmp_path):
    text = message_of(described, real_clips)
    assert "number of problems: 1\n  - val: found no clips of cat\n" in text
    folder = tmp_path / "without_cat"
    folder.mkdir()
    for path in real_clips.iterdir():
        if path.is_dir() and path.name != "cat":
            (folder / path.name).symlink_to(path)
        elif path.name.endswith("_list.txt"):
            lines = path.read_text().splitlines(keepends=True)
            (folder / path.name).write_text("".join(line for line in lines if not line.startswith("cat/")))
    cfg = reread(configs, described(folder))
    assert len(cfg.words) == 29 and cfg.num_classes == 30
    prepare(cfg, folder, tmp_path / "out", progress=False)


def test_describe__clips_without_lists__are_not_taken_for_images(sounds):
    for name in ("validation_list.txt", "testing_list.txt"):
        (sounds / name).unlink()
    text = message_of(described, sounds)
    assert "found WAV files" in text and "validation_list.txt" in text and "image" not in text
