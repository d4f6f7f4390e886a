"""Describing a folder in the layout of Speech Commands: every word that it has a folder for is a class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipeline.core.config import Layers, parse
from pipeline.core.errors import DataError
from pipeline.data.audio.audio import AudioConfig, SpokenWords
from pipeline.data.audio.clips import FULL_SCALE, RATE, ClipInspection, Clips
from pipeline.data.describe.description import Choices, Description, cannot_describe
from pipeline.data.readers.speech_commands import NOISE, PLACES, place_of
from pipeline.data.samples import SplitName
from pipeline.data.store.inspection import inspect_samples

SILENCE = 0.1
AT_ONCE = 256  # clips whose coefficients are computed together


def has_sounds(folder: Path) -> bool:
    """Whether one of the published lists is there."""
    return any((folder / place / "validation_list.txt").is_file() for place in PLACES)


def refuse_sounds_without_lists(folder: Path) -> None:
    """For a folder that is not one of images: it may be one of clips that lacks the lists by which they are told."""
    first = next(folder.rglob("*.[wW][aA][vV]"), None)
    if first is not None:
        raise DataError(
            f"{folder}: found WAV files, such as {first.relative_to(folder)}, and no validation_list.txt; expected the "
            "layout of Speech Commands: a folder for each word, and validation_list.txt and testing_list.txt beside "
            "them, with lines such as word/file.wav; write these lists, and describe the folder again"
        )


def describe_sounds(folder: Path, choices: Choices, workers: int, progress: bool) -> Description:
    """Describe spoken words."""
    _refuse_choices(choices)
    inside = folder / place_of(folder)
    words = sorted(path.name for path in inside.iterdir() if path.is_dir() and path.name[0] not in "._")
    noise = {} if any((inside / NOISE).glob("*.wav")) else {"augment": {"noise": 0.0}}
    given = {"name": choices.name, "source": "speech_commands", "words": words, "unknown": 0.0, "silence": SILENCE}
    kind = SpokenWords(_config({**given, **noise, "num_train": 1, "num_val": 1}))
    splits = {split: kind.read(folder, split) for split in get_args(SplitName)}
    problems = [problem for found in splits.values() for problem in found.problems]
    looks: dict[SplitName, list[Any]] = inspect_samples(choices.name, splits, workers, progress) if not problems else {}
    for split, found in looks.items():
        problems += kind.sample_problems(splits[split].samples, found)
    if problems:
        raise cannot_describe(folder, problems, kind.layout)
    counts = {f"num_{split}": len(found.samples) for split, found in splits.items()}
    mean, std = _statistics(splits["train"].samples, kind.cfg)
    content = {**given, **counts, "mean": mean, "std": std, **noise}
    config = _config(content)
    seconds = _shown_seconds([look for found in looks.values() for look in found])
    clips = f"{config.num_train} train and {config.num_val} val clips of {config.num_classes} classes"
    return Description(
        config=config,
        content={"kind": "audio", **content},
        sizes=seconds,
        classes=splits["train"].classes,
        what="Your own clips in the layout of Speech Commands",
        summary=f"{config.name}: {clips}, {seconds}",
        contents="clips",
    )


def _config(content: dict[str, Any]) -> AudioConfig:
    return parse(AudioConfig, Layers(("the folder", content)))


def _refuse_choices(choices: Choices) -> None:
    given = [key for key in ("image_size", "channels", "val_share", "min_side") if getattr(choices, key) is not None]
    if given:
        keys = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise DataError(f"{keys}: for images; clips are split by the lists in the folder; leave it out")


def _statistics(samples: Clips, cfg: AudioConfig) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each coefficient over the frames of all recordings."""
    import torch

    from pipeline.data.audio.mfcc import mfcc

    total, squares, count = np.zeros(cfg.features.coefficients), np.zeros(cfg.features.coefficients), 0
    for start in range(0, len(samples.recorded), AT_ONCE):
        indices = range(start, min(start + AT_ONCE, len(samples.recorded)))
        waves = torch.from_numpy(np.stack([samples.wave(index) for index in indices]))
        found = mfcc(waves.float() / FULL_SCALE, cfg.features).double().numpy()
        total, squares = total + found.sum(axis=(0, 2)), squares + np.square(found).sum(axis=(0, 2))
        count += len(found) * found.shape[2]
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return [round(value, 4) for value in mean.tolist()], [round(value, 4) for value in std.tolist()]


def _shown_seconds(looks: Sequence[ClipInspection]) -> str:
    lengths = [look.length / RATE for look in looks if look.length]
    return f"{min(lengths):.2f} to {max(lengths):.2f} seconds"
