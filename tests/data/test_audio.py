"""The kind `audio`: its config, what its views draw, and what a batch of them becomes."""

import numpy as np
import pytest
import torch
from tiny_sounds import SOUNDS, sound_config, write_sounds

from pipeline.core.config import CONFIGS, Layers, merge, names, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.seeds import seed_everything
from pipeline.data.audio.audio import SpeechAugment
from pipeline.data.audio.audio_views import ClipBatches, eval_view, shifted, train_view
from pipeline.data.audio.clips import LENGTH, Clip
from pipeline.data.audio.mfcc import mfcc
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.loader import BatchPlan, train_loader
from pipeline.data.store.opening import open_split
from pipeline.engine.run import parse_run

CPU = torch.device("cpu")
MODEL = {"name": "m", "arch": "vit_tiny_patch16_224", "patch_size": [10, 1], "embed_dim": 16, "num_heads": 2}
OPTIM = {"epochs": 1, "global_batch": 4, "micro_batch": 4, "base_lr": 0.1, "lr_batch": 4, "warmup_epochs": 0}


def run_of(*changes):
    content = {"method": {"name": "supervised"}, "model": MODEL, "data": SOUNDS, "optim": OPTIM}
    return parse_run(Layers(("test", merge(content, *changes))))


# Config


def test_config__published__has_twelve_classes_and_frames_of_forty_coefficients():
    cfg = parse_data(Layers(("test", read_yaml(CONFIGS / "data/speech_commands.yaml")["data"])))
    assert cfg.num_classes == 12 and cfg.input_size == (40, 98) and cfg.channels == 1
    assert cfg.choice.classes[:4] == ["silence", "unknown", "yes", "no"]
    assert (cfg.mean, cfg.std, cfg.augment) == ((0.0,), (1.0,), SpeechAugment(shift=0.1, noise=0.8, volume=0.1))


@pytest.mark.parametrize(
    ("changes", "classes"),
    [({}, 4), ({"unknown": 0}, 3), ({"silence": 0}, 3), ({"unknown": 0.0, "silence": 0, "words": ["low"]}, 1)],
)
def test_config__share_of_nothing__is_no_class(changes, classes):
    assert sound_config(**changes).num_classes == classes


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"source": "speech"}, "unknown source; did you mean 'speech_commands'?"),
        ({"words": []}, "words"),
        ({"words": ["low", "low"]}, "words has low; expected each once"),
        ({"words": ["low", "unknown"]}, "words has unknown; expected each once, none silence or unknown"),
        ({"words": ["../low"]}, "words.0"),
        ({"unknown": "released"}, "unknown is released, which is for words yes, no, up"),
        ({"unknown": -0.1}, "unknown"),
        ({"mean": [0.0] * 3}, "mean has 3 values, expected 1 or one for each of the 10 features.coefficients"),
        ({"std": [0.0]}, "each must be above 0"),
        ({"features": {"coefficients": 17}}, "coefficients 17 are more than mels 16"),
        ({"features": {"low_hz": 7600}}, "low_hz 7600 is not below high_hz 7600"),
        ({"features": {"high_hz": 9000}}, "high_hz"),
        ({"augment": {"nois": 1}}, "did you mean 'noise'?"),
    ],
)
def test_config__wrong_value__says_so(changes, text):
    with pytest.raises(ConfigError) as caught:
        sound_config(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"patch_size": 10}, "a frame of small_sounds is a patch: expected model.patch_size [10, 1], found [10, 10]"),
        ({"patch_size": None}, "expected model.patch_size [10, 1], found None"),
        ({"arch": "bert", "patch_size": None, "act_layer": None}, "has sounds, found model.arch bert"),
        ({"window_size": 3}, "expected a plain ViT"),
    ],
)
def test_config__model_that_does_not_see_frames__is_refused(model, text):
    with pytest.raises(ConfigError) as caught:
        run_of({"model": model})
    assert text in str(caught.value)


def test_config__of_a_run__is_read_back_from_its_dump():
    run = run_of({"data": {"unknown": 0.5, "mean": [0.5] * 10}})
    assert parse_run(Layers(("dump", run.model_dump(mode="json")))).name == run.name


TESTS = [name for name in names(CONFIGS / "data") if name.startswith(("speech", "spoken")) and name.endswith("_test")]


@pytest.mark.parametrize("name", TESTS)
def test_configs__of_tests__see_what_their_whole_set_sees(name):
    cfg = parse_data(Layers((name, read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"])))
    whole = parse_data(Layers((name, read_yaml(CONFIGS / "data" / f"{cfg.part_of}.yaml")["data"])))
    own = {"name", "part_of", "num_train", "num_val", "val_list"}
    assert cfg.model_dump(exclude=own) == whole.model_dump(exclude=own)
    assert cfg.choice.classes == whole.choice.classes and cfg.folder_name == whole.name


# Views


def clip_of(rng, noise=True):
    wave = rng.integers(-3000, 3000, LENGTH).astype(np.int16)
    noises = tuple(rng.integers(-3000, 3000, LENGTH + more).astype(np.int16) for more in (0, 4000))
    return Clip(wave, 1, noises if noise else ())


def views_of(augment, count=200, **options):
    clip, found = clip_of(np.random.default_rng(0), **options), []
    for number in range(count):
        seed_everything("view", number)
        found.append(train_view(augment)(clip)[0])
    return clip, found


@pytest.mark.slow
def test_train_view__many_draws__have_the_published_distribution():
    clip, views = views_of(SpeechAugment(), 2000)
    shifts = torch.stack([view["shift"] for view in views])
    assert shifts.dtype == torch.int64 and -1600 <= shifts.min() < -1550 and 1550 < shifts.max() < 1600
    assert abs(shifts.float().mean()) < 60  # of a uniform one the error is 21
    volumes = torch.stack([view["volume"] for view in views])
    assert volumes.dtype == torch.float32 and (volumes > 0).float().mean() == pytest.approx(0.8, abs=0.03)
    assert volumes.max() < 0.1 and volumes[volumes > 0].mean() == pytest.approx(0.05, abs=0.003)
    is_first = [np.array_equal(view["noise"], clip.noise[0]) for view in views]  # it is a second long: one place
    assert np.mean(is_first) == pytest.approx(0.5, abs=0.04)
    starts = [int(np.flatnonzero(clip.noise[1] == int(view["noise"][0]))[-1]) for view in views[:50]]
    assert len(set(starts)) > 15
    assert all(torch.equal(view["wave"], torch.from_numpy(clip.wave)) for view in views)


def test_train_view__of_a_short_shift_and_noise__draws_every_place_and_no_other():
    wave, noise = np.zeros(LENGTH, dtype=np.int16), np.arange(LENGTH + 2, dtype=np.int16)
    view, clip, found = train_view(SpeechAugment(shift=3 / LENGTH)), Clip(wave, 1, (noise,)), []
    for number in range(100):
        seed_everything("view", number)
        found.append(view(clip)[0])
    assert {int(each["shift"]) for each in found} == {-3, -2, -1, 0, 1, 2}  # the upper end is left out
    assert {int(each["noise"][0]) for each in found} == {0, 1, 2}


def test_train_view__same_seed__is_the_same_view():
    _, first = views_of(SpeechAugment(), 3)
    _, again = views_of(SpeechAugment(), 3)
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_train_view__augmentation_switched_off__is_the_clip():
    clip, views = views_of(SpeechAugment(shift=0, noise=0), 5)
    seen = ClipBatches(sound_config(), 0.0, CPU)
    batch = torch.utils.data.default_collate([(view, 1) for view in views])
    images, _ = seen(*batch)
    expected = seen.normalise({"wave": torch.from_numpy(np.stack([clip.wave] * 5))})
    torch.testing.assert_close(images, expected, atol=0, rtol=0)


def test_train_view__set_without_noise__adds_none():
    _, views = views_of(SpeechAugment(), 3, noise=False)
    assert all(not view["noise"].any() for view in views)


def test_eval_view__draws_nothing():
    clip = clip_of(np.random.default_rng(0))
    state = torch.get_rng_state()
    inputs, label = eval_view(clip)
    assert torch.equal(torch.get_rng_state(), state) and label == 1 and list(inputs) == ["wave"]
    assert torch.equal(inputs["wave"], torch.from_numpy(clip.wave))


@pytest.mark.slow
def test_loader__any_number_of_workers__gives_the_same_views(tmp_path):
    cfg = sound_config()
    samples = open_split(cfg, write_sounds(tmp_path), "train")
    plan = BatchPlan(seed=3, num_images=len(samples), repeats=1, epochs=1, global_batch=8, num_micro=2)

    def drawn(workers):
        loader = train_loader(plan, samples, kind_of(cfg).train_view(), 0, 0, 1, workers)
        return [(views["volume"].tolist(), views["shift"].tolist(), views["noise"].sum().item()) for views, _ in loader]

    alone = drawn(0)
    assert drawn(2) == alone
    assert len({tuple(volumes) for volumes, _, _ in alone}) == len(alone) == 6


# Batches


def reference_wave(view):
    """One clip: moved, with noise, clipped."""
    wave, shift = view["wave"].double() / 32768, int(view["shift"])
    moved = torch.zeros(LENGTH, dtype=torch.float64)
    for place in range(LENGTH):
        if 0 <= place - shift < LENGTH:
            moved[place] = wave[place - shift]
    return (moved + float(view["volume"]) * view["noise"].double() / 32768).clamp(-1, 1)


@pytest.mark.slow
def test_batches__of_views__are_the_coefficients_of_each_clip_moved_and_mixed():
    cfg = sound_config(mean=[float(row) for row in range(10)], std=[1.0 + row for row in range(10)])
    _, views = views_of(SpeechAugment(volume=1), 4)
    views[0]["wave"] = views[0]["wave"].clone().fill_(32000)  # the sum is clipped
    views[0]["noise"] = views[0]["noise"].clone().fill_(32000)
    views[0]["volume"] = torch.tensor(0.9)
    labels = torch.tensor([0, 3, 1, 2])
    inputs, _ = torch.utils.data.default_collate([(view, 0) for view in views])
    images, targets = ClipBatches(cfg, 0.1, CPU)(inputs, labels)
    waves = torch.stack([reference_wave(view) for view in views])
    assert waves[0].max() == 1
    expected = mfcc(waves.float(), cfg.features)
    rows = torch.arange(10.0)[:, None]
    torch.testing.assert_close(images, ((expected - rows) / (1 + rows))[:, None], atol=1e-3, rtol=0)
    assert images.shape == (4, 1, *cfg.input_size) and images.dtype == torch.float32
    expected = torch.full((4, 4), 0.1 / 4)
    expected[torch.arange(4), labels] = 1 - 0.1 + 0.1 / 4
    torch.testing.assert_close(targets, expected)


def test_shifted__each_by_its_own__leaves_zeros():
    waves = torch.arange(1.0, 6).repeat(5, 1)
    found = shifted(waves, torch.tensor([0, 1, -2, 5, -5]))
    assert found.tolist() == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [3, 4, 5, 0, 0], [0] * 5, [0] * 5]


def test_normalise__of_a_silent_clip__is_finite():
    seen = ClipBatches(sound_config(), 0.0, CPU).normalise({"wave": torch.zeros(2, LENGTH, dtype=torch.int16)})
    assert seen.shape == (2, 1, 10, 19) and torch.isfinite(seen).all()
