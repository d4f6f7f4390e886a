"""Speech Commands in its published layout: which clips a split has, and what `prepare` refuses."""

import hashlib
import io
import json
import shutil
import wave
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from layouts import message_of
from tiny_sounds import OTHERS, SOUNDS, sound_config, write_sounds, write_wav

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.data.audio.clips import LENGTH, PackedRecordings, as_wav, decoded_wav
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.speech_commands import NOISE, RELEASED_WORDS, ClipLists, chosen, released_unknown
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

# Clips of each word in the published lists, as the files of TC-ResNet have them.
PUBLISHED = {
    "training": [1860, 1853, 1843, 1842, 1839, 1852, 1864, 1839, 1885, 1861],
    "validation": [261, 270, 260, 264, 247, 256, 257, 256, 246, 260],
    "testing": [256, 252, 272, 253, 267, 259, 246, 262, 249, 251],
}


@pytest.fixture
def sounds(tmp_path):
    return write_sounds(tmp_path / "sounds")


# Which clips


def packed(names):
    return PackedRecordings(dict.fromkeys(names, b""))


def published_names():
    """All names that count, with made-up speakers for the keywords and the released ones of other words."""
    found = ClipLists(noise=[f"{NOISE}/a.wav"])
    for part, counts in PUBLISHED.items():
        names = [
            f"{word}/{part[:2]}{number:06x}_nohash_0.wav"
            for word, count in zip(RELEASED_WORDS, counts, strict=True)
            for number in range(count)
        ]
        split = "train" if part == "training" else "val"
        names += released_unknown(split, "testing" if part == "testing" else "validation")
        names += [f"bed/{part[:2]}{number:06x}_nohash_9.wav" for number in range(50)]  # words that nobody asks for
        found.names += names
        if part != "training":
            found.lists[part] = names
    return found


@pytest.mark.parametrize(
    ("name", "split", "words", "others"),
    [
        ("speech_commands", "train", 18538, 1854),
        ("speech_commands", "val", 2577, 258),
        ("speech_commands_test", "val", 2567, 257),
    ],
)
def test_choice__of_the_published_names__has_the_published_counts(name, split, words, others):
    cfg = parse_data(Layers((name, read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"])))
    found = chosen(published_names(), split, cfg.choice, packed)
    assert found.problems == [] and len(found.samples) == cfg.count(split) == words + 2 * others
    part = {"train": "training", "val": cfg.val_list}[split]
    assert [count for _, count in sorted(Counter(found.samples.labels).items())] == [others, others, *PUBLISHED[part]]
    assert len({found.samples.name(index) for index in range(len(found.samples))}) == len(found.samples)


@pytest.mark.parametrize(("split", "per_word", "kept"), [("train", 3, 3), ("train", 9, 5), ("val", 2, 2)])
def test_choice__of_the_first_clips_of_each_word__is_by_name_and_in_the_order_of_the_names(split, per_word, kept):
    cfg = sound_config(per_word={split: per_word}, unknown=0, silence=0.5)
    numbers = (4, 0, 3, 1, 2)  # as a packed set may have them
    found = ClipLists(names=[f"{word}/{number}.wav" for word in reversed(cfg.words) for number in numbers])
    found.lists = {"validation": found.names if split == "val" else [], "testing": []}
    found.noise = [f"{NOISE}/a.wav"]
    samples = chosen(found, split, cfg.choice, packed).samples
    names = [samples.name(index) for index in range(kept * len(cfg.words))]
    assert names == [f"{word}/{number}.wav" for word in reversed(cfg.words) for number in numbers if number < per_word]
    assert len(samples) == len(names) * 1.5, "silence is a share of the clips that are used"
    everything = chosen(found, split, sound_config(unknown=0, silence=0).choice, packed).samples
    assert len(everything) == 5 * len(cfg.words)


def test_released_list__each_name__is_of_another_word_and_in_one_split():
    parts = [released_unknown("train", "validation"), *(released_unknown("val", p) for p in ("validation", "testing"))]
    assert [len(part) for part in parts] == [1854, 258, 257]
    names = [name for part in parts for name in part]
    assert len({*names}) == len(names)
    assert len({name.split("/")[0] for name in names}) == 20
    assert not {name.split("/")[0] for name in names} & {*RELEASED_WORDS}
    speakers = [{name.split("/")[1].split("_")[0] for name in part} for part in parts]
    assert not speakers[0] & speakers[1] and not speakers[0] & speakers[2] and not speakers[1] & speakers[2]


def test_read__small_set__has_words_other_words_and_silence(sounds):
    cfg = sound_config()
    kind = kind_of(cfg)
    for split, words, others in (("train", 16, 4), ("val", 8, 2)):
        found = kind.read(sounds, split)
        assert found.problems == [] and found.classes == ["silence", "unknown", "low", "high"]
        labels = found.samples.labels
        assert Counter(labels) == {0: others, 1: others, 2: words // 2, 3: words // 2}
        names = [found.samples.name(index) for index in range(len(found.samples))]
        for name, label in zip(names, labels, strict=True):
            word = name.split("/")[0]
            expected = {"_silence_": "silence", "low": "low", "high": "high"}.get(word, "unknown")
            assert found.classes[label] == expected
        listed = (sounds / "validation_list.txt").read_text().split()
        assert all((name in listed) == (split == "val") for name in names if "_silence_" not in name)
        assert len(found.samples.noises) == (2 if split == "train" else 0)


def test_read__share_of_other_words__is_chosen_by_the_hashes_of_their_names(sounds):
    cfg = sound_config(unknown=0.125)
    samples = kind_of(cfg).read(sounds, "train").samples
    paths = [path for word in OTHERS for path in (sounds / word).glob("train*")]
    others = [path.relative_to(sounds).as_posix() for path in paths]
    ranked = sorted(others, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    found = [samples.name(index) for index, label in enumerate(samples.labels) if label == 1]
    assert len(others) == 6 and found == sorted(ranked[:2])


@pytest.mark.parametrize(("left_out", "rest"), [("unknown", "silence"), ("silence", "unknown")])
def test_read__no_unknown_or_no_silence__is_no_class(sounds, left_out, rest):
    found = kind_of(sound_config(**{left_out: 0})).read(sounds, "train")
    assert found.problems == [] and found.classes == [rest, "low", "high"]
    assert Counter(found.samples.labels) == {0: 4, 1: 8, 2: 8}


def test_read__testing_list__is_val(sounds):
    cfg = sound_config(val_list="testing", num_train=0, num_val=6)
    samples = open_split(cfg, sounds, "val")
    names = [samples.name(index) for index in range(4)]
    assert all("/testi" in name for name in names) and samples.labels[-1] == 0
    # Train is in neither list, whichever of them is val.
    assert len(kind_of(sound_config(val_list="testing")).read(sounds, "train").samples) == 24


def test_read__archive_extracted_into_the_folder__is_found(sounds, tmp_path):
    (tmp_path / "outer").mkdir()
    sounds.rename(tmp_path / "outer" / "speech_commands_v0.01")
    assert len(open_split(sound_config(), tmp_path / "outer", "train")) == 24


# What a clip is


def test_clips__short_and_silent_ones__are_a_second_long(sounds):
    samples = open_split(sound_config(), sounds, "train")
    by_name = {samples.name(index): samples.wave(index) for index in range(len(samples))}
    path = sounds / "low/train1_nohash_0.wav"
    with wave.open(str(path)) as file:
        expected = np.frombuffer(file.readframes(20000), dtype="<i2")
    found = by_name["low/train1_nohash_0.wav"]
    assert len(expected) == LENGTH - 500 and found.dtype == np.int16
    assert np.array_equal(found, [*expected, *[0] * 500])
    assert not by_name["_silence_/00000"].any() and len(by_name["_silence_/00000"]) == LENGTH
    clip = samples[0]
    assert np.array_equal(clip.wave, samples.wave(0)) and clip.label == samples.labels[0] and len(clip.noise) == 2


def test_as_wav__of_samples__is_read_by_others():
    samples = np.array([0, 1, -1, 32767, -32768], dtype=np.int16)
    from scipy.io import wavfile

    rate, found = wavfile.read(io.BytesIO(as_wav(samples)))
    assert rate == 16000 and np.array_equal(found, samples)


# Prepare


def prepared(folder, out, **changes):
    return prepare(sound_config(**changes), folder, out, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_prepare__good_set__says_what_there_is_and_opens_it(sounds, tmp_path, workers):
    manifest = prepare(sound_config(), sounds, tmp_path / "out", workers, progress=False)
    assert manifest == read_manifest(tmp_path / "out/manifest.json")
    assert manifest.classes == ["silence", "unknown", "low", "high"]
    train = json.loads(manifest.model_dump_json())["splits"]["train"]
    keys = ("count", "classes", "per_class_min", "per_class_max", "shortest_s", "longest_s", "noise_s")
    assert [train[key] for key in keys] == [24, 4, 4, 8, 0.9375, 1.0, 3.0005]
    assert train["bytes"] == sum(44 + 2 * length for length in lengths_of(sounds, "train"))
    assert len(open_split(sound_config(), sounds, "train", tmp_path / "out")) == 24


def lengths_of(sounds, split):
    samples = kind_of(sound_config()).read(sounds, split).samples
    names = [samples.name(index) for index, label in enumerate(samples.labels) if label != 0]
    with_header = [(sounds / name).stat().st_size for name in names]
    return [(size - 44) // 2 for size in with_header]


def test_prepare__set_elsewhere__has_the_same_fingerprint(sounds, tmp_path):
    first = prepared(sounds, tmp_path / "first")
    moved = shutil.copytree(sounds, tmp_path / "moved")
    (moved / NOISE / "README.md").unlink()  # nobody reads it
    assert prepared(moved, tmp_path / "second").fingerprint == first.fingerprint


@pytest.mark.parametrize("changed", ["low/train0_nohash_0.wav", f"{NOISE}/pink.wav"])
def test_prepare__other_clip_or_other_noise__is_another_set(sounds, tmp_path, changed):
    first = prepared(sounds, tmp_path / "out")
    write_wav(sounds / changed, np.full(LENGTH + 8 * (NOISE in changed), 5, dtype=np.int16))
    text = message_of(open_split, sound_config(), sounds, "train", tmp_path / "out")
    assert "does not hold the train clips that were verified" in text
    again = prepared(sounds, tmp_path / "out")
    assert again.fingerprint != first.fingerprint
    assert again.splits["train"].fingerprint != first.splits["train"].fingerprint
    assert again.splits["val"].fingerprint == first.splits["val"].fingerprint


def test_open__other_number_of_silent_clips__is_refused(sounds, tmp_path):
    prepared(sounds, tmp_path / "out")
    cfg = sound_config(silence=0.5, num_train=28)
    text = message_of(open_split, cfg, sounds, "train", tmp_path / "out")
    assert "found other file names or labels than were verified" in text


def wav_bytes(rate=16000, channels=1, width=2, frames=LENGTH):
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(b"\0" * channels * width * frames)
    return buffer.getvalue()


EXPECTED = ", expected 16000 Hz, 1 channel, 16 bits"
DAMAGE = {
    "rate": (wav_bytes(rate=8000), "found 8000 Hz, 1 channels, 16 bits" + EXPECTED),
    "stereo": (wav_bytes(channels=2), "found 16000 Hz, 2 channels, 16 bits" + EXPECTED),
    "width": (wav_bytes(width=1), "found 16000 Hz, 1 channels, 8 bits" + EXPECTED),
    "truncated": (wav_bytes()[:-1000], "found 15500 samples, its header promises 16000: the file is truncated"),
    "header": (wav_bytes()[:30], "found no readable WAV file (it ends too early)"),
    "text": (b"this is no sound", "found no readable WAV file (file does not start with RIFF id)"),
    "nothing": (b"", "found no readable WAV file (it ends too early)"),
    "empty": (wav_bytes(frames=0), "found no samples in it"),
    "long": (wav_bytes(frames=LENGTH + 800), "found 1.05 s, expected 1 s at most; cut it"),
}


def test_decoded__any_damage_to_a_header__is_a_value_error_or_sound():
    rng, whole = np.random.default_rng(0), wav_bytes(frames=50)
    for _ in range(3000):
        damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        damaged[rng.integers(min(44, len(damaged)))] = rng.integers(256)
        with suppress(ValueError):
            assert decoded_wav(bytes(damaged)).dtype == np.int16


def test_prepare__damaged_clips__are_listed_all_at_once(sounds, tmp_path):
    names = [f"low/train{number}_nohash_0.wav" for number in range(8)] + ["high/valid0_nohash_0.wav"]
    for name, (content, _) in zip(names, DAMAGE.values(), strict=True):
        (sounds / name).write_bytes(content)
    write_wav(sounds / NOISE / "short.wav", np.zeros(LENGTH - 1600, dtype=np.int16))
    (sounds / NOISE / "stereo.wav").write_bytes(DAMAGE["stereo"][0])
    text = message_of(prepared, sounds, tmp_path / "out")
    for name, (_, problem) in zip(names, DAMAGE.values(), strict=True):
        assert f"  - {name}: {problem}\n" in text
    assert f"  - {NOISE}/short.wav: found 0.9 s, expected 1 s or more\n" in text
    assert f"  - {NOISE}/stereo.wav: {DAMAGE['stereo'][1]}\n" in text
    assert "number of problems: 11\n" in text and "expected: 24 train and 12 val clips of 4 classes\n" in text
    assert "in this layout: <word>/*.wav, _background_noise_/*.wav, validation_list.txt" in text
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_prepare__missing_files_words_and_noise__are_listed_all_at_once(sounds, tmp_path):
    (sounds / "low/valid0_nohash_0.wav").unlink()
    (sounds / "hum/testi0_nohash_0.wav").unlink()
    shutil.rmtree(sounds / NOISE)
    shutil.rmtree(sounds / "beep")
    text = message_of(prepared, sounds, tmp_path / "out", words=["low", "high", "middle"], unknown=1.0)
    for line in (
        "validation_list.txt: found 2 names without a file: low/valid0_nohash_0.wav, beep/valid0_nohash_0.wav",
        "testing_list.txt: found 2 names without a file: hum/testi0_nohash_0.wav, beep/testi0_nohash_0.wav",
        "found no .wav files in the folders of middle",
        f"{NOISE}: no .wav files found; training views are mixed with them",
        "train: found 4 clips of other words, expected 16 (unknown x keywords) or more",
        "val: found 2 clips of other words, expected 7 (unknown x keywords) or more",
        "val: found 11 clips, expected 12",
        "train: found clips of 4 classes, expected 5",
    ):
        assert f"  - {line}\n" in text


def test_prepare__list_missing_or_damaged__says_which(sounds, tmp_path):
    (sounds / "testing_list.txt").unlink()
    (sounds / "validation_list.txt").write_bytes(b"\xff\xfe")
    text = message_of(prepared, sounds, tmp_path / "out")
    assert "  - testing_list.txt: not found\n" in text and "  - validation_list.txt: cannot be read (" in text
    assert "number of problems: 2\n" in text


def test_prepare__name_in_both_lists__is_refused(sounds, tmp_path):
    with (sounds / "testing_list.txt").open("a") as file:
        file.write("low/valid0_nohash_0.wav\n")
    text = message_of(prepared, sounds, tmp_path / "out")
    assert "  - found 1 names in both lists: low/valid0_nohash_0.wav\n" in text


def test_prepare__released_clips_absent__says_how_many(sounds, tmp_path):
    for word in RELEASED_WORDS:
        for split in ("train", "valid"):
            write_wav(sounds / word / f"{split}0_nohash_0.wav", np.zeros(9, dtype=np.int16))
    with (sounds / "validation_list.txt").open("a") as file:
        file.writelines(f"{word}/valid0_nohash_0.wav\n" for word in RELEASED_WORDS)
    text = message_of(prepared, sounds, tmp_path / "out", words=[*RELEASED_WORDS], unknown="released")
    assert "  - train: 1854 of the 1854 released clips of other words not found: " in text
    assert "  - val: 258 of the 258 released clips of other words not found: " in text


def test_prepare__set_without_noise__is_good_where_views_have_none(sounds, tmp_path):
    shutil.rmtree(sounds / NOISE)
    manifest = prepared(sounds, tmp_path / "out", augment={"noise": 0.0})
    assert json.loads(manifest.model_dump_json())["splits"]["train"]["noise_s"] == 0
    text = message_of(open_split, sound_config(), sounds, "train", tmp_path / "out")
    assert f"{NOISE}: no .wav files found" in text


# Real clips


REAL = {"name": "few_commands", "words": ["down", "go", "left", "right", "up"], "features": {}, "mean": [0.0]}


def real_config(**changes):
    given = {key: value for key, value in SOUNDS.items() if key not in ("features", "mean", "std")}
    return parse_data(Layers(("test", merge(given, REAL, {"unknown": 0.1, "silence": 0.1}, changes))))


@pytest.mark.slow
def test_prepare__real_clips__are_those_of_the_lists(real_clips, tmp_path):
    cfg = real_config(num_train=360 + 2 * 36, num_val=110 + 2 * 11)
    manifest = prepare(cfg, real_clips, tmp_path, progress=False)
    train = json.loads(manifest.model_dump_json())["splits"]["train"]
    assert (train["per_class_min"], train["per_class_max"], train["longest_s"], train["noise_s"]) == (36, 72, 1.0, 60.0)
    samples = open_split(cfg, real_clips, "val", tmp_path)
    assert len(samples) == 132 and samples.wave(0).any()


@pytest.mark.slow
def test_prepare__real_clips_without_the_released_ones__are_refused(real_clips, tmp_path):
    cfg = parse_data(Layers(("test", read_yaml(CONFIGS / "data/speech_commands.yaml")["data"])))
    text = message_of(prepare, cfg, real_clips, tmp_path, progress=False)
    assert "expected: 22246 train and 3093 val clips of 12 classes" in text
    assert " of the 1854 released clips of other words not found: " in text
