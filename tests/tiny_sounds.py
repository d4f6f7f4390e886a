"""Small sets of sounds for tests, in the layout of Speech Commands: each word is a tone of its own."""

import numpy as np

from pipeline.core.config import Layers, merge
from pipeline.data.audio.clips import LENGTH, RATE, as_wav
from pipeline.data.kind import parse_data

WORDS = {"low": 300, "high": 1500}  # hertz
OTHERS = {"hum": 120, "whistle": 3000, "beep": 800}
NUM_TRAIN, NUM_VAL = 24, 12
# Ten coefficients in nineteen frames.
SOUNDS = {
    "name": "small_sounds",
    "kind": "audio",
    "source": "speech_commands",
    "words": ["low", "high"],
    "unknown": 0.25,
    "silence": 0.25,
    "num_train": NUM_TRAIN,
    "num_val": NUM_VAL,
    "features": {"coefficients": 10, "mels": 16, "window_ms": 100, "step_ms": 50},
    "std": [10.0],
}
# Clips of each word, keywords and others, in train, validation and testing.
COUNTS = {"train": (8, 2), "validation": (4, 1), "testing": (2, 1)}


def sound_config(**changes):
    return parse_data(Layers(("test", merge(SOUNDS, changes))))


def tone(hertz, length, rng):
    """int16: a tone with some noise."""
    times = np.arange(length) / RATE
    found = 0.3 * np.sin(2 * np.pi * (hertz * times + rng.random())) + 0.01 * rng.standard_normal(length)
    return (32767 * found).astype(np.int16)


def write_sounds(folder):
    """The last clips of each word are those of the lists; some clips are shorter than a second."""
    rng, lists = np.random.default_rng(0), {"validation": [], "testing": []}
    for word, hertz in (WORDS | OTHERS).items():
        for split, counts in COUNTS.items():
            for number in range(counts[word in OTHERS]):
                name = f"{word}/{split[:5]}{number}_nohash_0.wav"
                write_wav(folder / name, tone(hertz, LENGTH - 500 * (number % 3), rng))
                lists.get(split, []).append(name)
    for name, names in lists.items():
        (folder / f"{name}_list.txt").write_text("".join(f"{each}\n" for each in names))
    for name, length in (("white.wav", 2 * RATE), ("pink.wav", LENGTH + 8)):
        write_wav(folder / "_background_noise_" / name, (3000 * rng.standard_normal(length)).astype(np.int16))
    (folder / "_background_noise_" / "README.md").write_text("where the noise is from")
    return folder


def write_wav(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_wav(samples))
