"""Every evaluation of runs on sounds: it is computed, or it says why not; and words put together from positions."""

import io
import math
import wave

import numpy as np
import pytest
import torch
from PIL import Image
from small_set import ALONE, config_of
from tiny_sounds import SOUNDS, sound_config, write_sounds

from pipeline.core.config import Layers, merge
from pipeline.core.errors import DataError
from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import build_method
from pipeline.engine.run import parse_run
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.positions.mp3_sounds import PAUSE_S
from pipeline.results import ScaleFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow

RATE, WINDOW, STEP, FRAMES = 16_000, 1600, 800, 19
MODEL = {"name": "ear", "arch": "vit_tiny_patch16_224", "patch_size": [10, 1], "embed_dim": 16, "depth": 2}
MODEL |= {"num_heads": 2, "mlp_ratio": 2.0}
OPTIM = {"epochs": 1, "global_batch": 8, "micro_batch": 8, "base_lr": 1e-3}
WITHOUT = {"model": {"pos_embed": "none"}}
RUNS = {
    "supervised": {"method": {"name": "supervised"}},
    "mp3": merge({"method": {"name": "mp3", "mask_ratio": 0.0}}, WITHOUT),
    "mp3 told": merge({"method": {"name": "mp3", "mask_ratio": 0.0, "known_ratio": 0.2}}, WITHOUT),
}
APPLY = {
    "supervised": {"classify", "classify_on", "calibration", "consistency", "shuffle_curve", "ensemble", "equivariance"}
    | {"training_equivariance", "position_embeddings", "embedding_pictures"},
    "mp3": {"mp3_positions", "mp3_sounds"},
}
FOR_ANY_ENCODER = {"knn", "linear_probe", "position_probe", "attention_maps", "local_heads", "correlation_maps"}


class Sounds:
    """A prepared set of tones, and evaluations of untrained methods on it."""

    def __init__(self, folder, results):
        self.results, self.data = ScaleFolder(results), sound_config()
        self.test = sound_config(
            name="small_sounds_test", part_of="small_sounds", val_list="testing", num_train=0, num_val=6
        )
        self.site = Site(device="cpu", data={"small_sounds": folder})
        for data in (self.data, self.test):
            prepare(data, folder, self.results.manifest(data.name).parent, progress=False)

    def run(self, kind):
        base = {"model": MODEL, "data": SOUNDS, "optim": OPTIM}
        return parse_run(Layers(("test", merge(base, RUNS[kind]))))

    def subject(self, kind):
        torch.manual_seed(0)
        return Subject(self.run(kind), build_method(self.run(kind)).eval())

    def evaluate(self, name, subject, **fields):
        kind = EVALS.get(name)
        data = dict.fromkeys(kind.data_roles, self.test)
        evaluation = kind(config_of(name, **fields), data, self.results, self.site, ALONE)
        return evaluation.compute(**dict.fromkeys(kind.roles(), subject))


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    return Sounds(write_sounds(tmp_path_factory.mktemp("sounds")), tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("kind", APPLY)
@pytest.mark.parametrize("name", [name for name in EVALS.names() if EVALS.get(name).roles()])
def test_evaluation__of_a_run_on_sounds__is_computed_or_says_why_not(sounds, name, kind):
    cfg, subject = config_of(name), sounds.subject(kind)
    reason = EVALS.get(name).refusal(cfg, dict.fromkeys(EVALS.get(name).roles(), subject.run))
    assert (reason == "") is (name in APPLY[kind] | FOR_ANY_ENCODER), reason
    if not reason and (kind == "mp3" or name not in FOR_ANY_ENCODER):
        outcome = sounds.evaluate(name, subject)
        assert sorted([*outcome.metrics, *outcome.reasons, *outcome.files]) == sorted([*cfg.metrics, *cfg.files])
        assert all(math.isfinite(value) for value in outcome.metrics.values())


def test_classify_on__clips_of_the_testing_list__are_those_that_are_classified(sounds):
    subject = sounds.subject("supervised")
    outcome = sounds.evaluate("classify_on", subject)
    evaluation = EVALS.get("classify_on")(config_of("classify_on"), {}, sounds.results, sounds.site, ALONE)
    (batch,) = evaluation.batches(sounds.test)
    with torch.no_grad():
        right = subject.method.predict(batch.images).logits.argmax(dim=1) == batch.targets
    assert outcome.count == 6 and outcome.metrics["top1"] == pytest.approx(100 * right.double().mean().item())
    assert outcome.images == evaluation.manifest(sounds.test).splits["val"].fingerprint


def test_classify_on__set_of_another_kind_than_the_model_knows__is_one_message(sounds, world):
    kind, roles = EVALS.get("classify_on"), {"test": world.data}
    evaluation = kind(config_of("classify_on"), roles, sounds.results, sounds.site, ALONE)
    with pytest.raises(DataError, match=r"fashion is of kind images and has no features; .* which is of kind audio"):
        evaluation.compute(Subject(sounds.run("supervised"), None))


def test_refusal__of_what_needs_pixels__names_the_set_and_its_kind(sounds):
    reason = EVALS.get("mp3_pictures").refusal(config_of("mp3_pictures"), {"model": sounds.run("mp3")})
    assert reason == "it needs images, and data set small_sounds is of kind audio"


# Words put together from predicted positions


def samples_of(content):
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(int)


def naming(sounds, kind, positions):
    """A subject whose model names positions that a function of the order gives."""
    subject = sounds.subject(kind)
    subject.method.position_logits = lambda images, order, num_context, known: torch.nn.functional.one_hot(
        positions(order), FRAMES
    ).float()
    return subject


def clips_of(sound):
    """Two words of a second each, with a pause after each."""
    pause = round(PAUSE_S * RATE)
    assert len(sound) == 2 * (RATE + pause)
    first, second = sound.reshape(2, RATE + pause)
    assert not first[RATE:].any() and not second[RATE:].any()
    return first[:RATE], second[:RATE]


def test_mp3_sounds__of_a_model_that_names_every_position__are_the_words(sounds):
    outcome = sounds.evaluate("mp3_sounds", naming(sounds, "mp3", lambda order: order), clips=2)
    found = {name: samples_of(content) for name, content in outcome.files.items() if name.endswith(".wav")}
    assert np.abs(found["rebuilt.wav"] - found["original.wav"]).max() <= 1
    assert np.abs(found["shuffled.wav"] - found["original.wav"]).max() > 500  # they are tones, much like themselves
    low, high = (np.abs(np.fft.rfft(clip)).argmax() for clip in clips_of(found["original.wav"]))
    assert (low, high) == (pytest.approx(300, abs=2), pytest.approx(1500, abs=2))  # the two words, none of the others


def test_mp3_sounds__frames_in_random_order__are_heard_one_after_the_other(sounds):
    subject = sounds.subject("mp3")
    outcome = sounds.evaluate("mp3_sounds", subject, clips=2, seed=3)
    evaluation = EVALS.get("mp3_sounds")(config_of("mp3_sounds", seed=3), {}, sounds.results, sounds.site, ALONE)
    batch = next(evaluation.batches(sounds.data, indices=[0, 1]))
    order = subject.method.draw(batch, 0.0)["order"]
    words = zip(clips_of(samples_of(outcome.files["original.wav"])), order.tolist(), strict=True)
    for heard, (clip, slots) in zip(clips_of(samples_of(outcome.files["shuffled.wav"])), words, strict=True):
        # Where two frames overlap by half, the weights of both sum to 1.
        window = np.sin(np.pi * np.arange(WINDOW) / WINDOW) ** 2
        expected = np.zeros(RATE)
        for slot, frame in enumerate(slots):
            expected[slot * STEP :][:WINDOW] += window * clip[frame * STEP :][:WINDOW]
        np.testing.assert_allclose(heard[STEP:-STEP], expected[STEP:-STEP], atol=1)


def test_mp3_sounds__frames_whose_position_is_given__are_put_there(sounds):
    """All others are named 0, so that the rest of a word is silent but for the frames that are given."""
    outcome = sounds.evaluate("mp3_sounds", naming(sounds, "mp3 told", torch.zeros_like), clips=2)
    original, rebuilt = (samples_of(outcome.files[name]) for name in ("original.wav", "rebuilt.wav"))
    for clip, heard in zip(clips_of(original), clips_of(rebuilt), strict=True):
        places = [place for place in range(1, FRAMES) if np.abs(heard[place * STEP :][: STEP // 8]).max() > 1000]
        assert 1 <= len(places) <= 2 * 4  # 4 of 19 are given, and each is heard in its place and a half before or after
        assert all(np.abs(clip[place * STEP :][:STEP]).any() for place in places)


def spectrograms_of(png, columns):
    """The first row of the grid: images of 16 bands and 19 frames, ten pixels a side."""
    page = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    width, height, gap, top = 10 * FRAMES, 10 * 16, 6, 30
    left = page.shape[1] - columns * (width + gap)
    cells = [page[top : top + height, left + column * (width + gap) :][:, :width] for column in range(columns)]
    return [cell[::10, ::10] for cell in cells]


def test_mp3_sounds__spectrograms__are_the_frames_at_their_places_in_one_scale(sounds):
    """A model that names one place to the right of the true one, and 0 for the last."""
    subject = naming(sounds, "mp3", lambda order: (order + 1) % FRAMES)
    picture = sounds.evaluate("mp3_sounds", subject, clips=2, etas=(0, 50)).files["rebuilt.png"]
    original, shuffled, *rebuilt = spectrograms_of(picture, 4)
    for cell in rebuilt:
        np.testing.assert_array_equal(cell, np.roll(original, 1, axis=1))
    assert sorted(map(bytes, shuffled.astype(np.uint8).transpose(1, 0, 2))) == sorted(
        map(bytes, original.astype(np.uint8).transpose(1, 0, 2))
    )
    assert not np.array_equal(shuffled, original)
    assert original.sum(axis=(1, 2)).argmax() >= 12  # a tone of 300 Hz, at the bottom


def test_mp3_sounds__place_that_no_frame_is_named__is_pale_blue(sounds):
    subject = naming(sounds, "mp3", torch.zeros_like)
    picture = sounds.evaluate("mp3_sounds", subject, clips=1, etas=(0,)).files["rebuilt.png"]
    original, _, rebuilt = spectrograms_of(picture, 3)
    assert (rebuilt[:, 1:] == (214, 224, 242)).all()
    np.testing.assert_allclose(rebuilt[:, 0], original.mean(axis=1), atol=1)
