"""Speech Commands v0.01 as published (Warden, 2017): a folder of WAV files for each word, and two lists of names.

validation_list.txt and testing_list.txt name the clips of these splits; those in neither are train. They were made
so that a speaker is in one split. _background_noise_ has longer files, which training views are mixed with.

Beside the keywords there may be a class of other words, `unknown`. The clips that TC-ResNet released as such, which MP3
trains with, are in unknown_words.txt.gz; else those whose names have the smallest SHA-256 are taken, so that the choice
is the same on every machine.
"""

import gzip
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Literal

from pipeline.data.audio.clips import ClipFiles, Clips, RecordedFiles, Recordings
from pipeline.data.samples import Split, SplitName, shortened

ListName = Literal["validation", "testing"]
NOISE = "_background_noise_"
PLACES = (".", "speech_commands_v0.01")
RELEASED = Path(__file__).parent / "unknown_words.txt.gz"
# Those of the released list, and of the papers that use it.
RELEASED_WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
Unknown = Literal["released"] | float


@dataclass
class ClipLists:
    """What there is in the published layout; nothing is decoded."""

    names: list[str] = field(default_factory=list)  # <word>/<file>.wav
    lists: dict[str, list[str]] = field(default_factory=dict)
    noise: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Choice:
    """Which clips a split has."""

    words: tuple[str, ...]
    unknown: Unknown
    silence: float
    val_list: ListName
    with_noise: bool  # a train split without any is a problem
    per_word: Mapping[SplitName, int] = field(default_factory=dict)

    @property
    def classes(self) -> list[str]:
        others = [("silence", self.silence), ("unknown", self.unknown)]
        return [name for name, share in others if share] + [*self.words]


def read_speech_commands(folder: Path, split: SplitName, choice: Choice) -> Split:
    inside = folder / place_of(folder)
    return chosen(_look_into(inside), split, choice, lambda names: RecordedFiles(inside, names), ClipFiles)


def place_of(folder: Path) -> str:
    """Where in a folder the set lies: the archive may have been extracted into it."""
    return next((place for place in PLACES if (folder / place / "validation_list.txt").is_file()), ".")


def chosen(
    found: ClipLists,
    split: SplitName,
    choice: Choice,
    recordings: Callable[[Sequence[str]], Recordings],
    samples: type[Clips] = Clips,
) -> Split:
    """The clips of a split, and all that is wrong with what was found."""
    keywords, others = _of_split(found, split, choice)
    problems = [*found.problems, *_list_problems(found), *_word_problems(found, keywords, split, choice)]
    unknown, wrong = _unknown(others, len(keywords), split, choice)
    words = [_word_of(name) for name in keywords]
    words += ["unknown"] * len(unknown) + ["silence"] * round(choice.silence * len(keywords))
    labels = [choice.classes.index(word) for word in words]
    noise = found.noise if split == "train" else []
    if split == "train" and choice.with_noise and not noise:
        wrong.append(f"{NOISE}: no .wav files found; training views are mixed with them")
    return Split(samples(recordings(keywords + unknown), labels, recordings(noise)), choice.classes, problems + wrong)


def released_unknown(split: SplitName, val_list: ListName) -> list[str]:
    """Names of the clips that TC-ResNet released as unknown."""
    part = "training" if split == "train" else val_list
    lines = gzip.decompress(RELEASED.read_bytes()).decode("ascii").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [name for found, name in rows if found == part]


def _look_into(folder: Path) -> ClipLists:
    found = ClipLists()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name == NOISE:
            found.noise = _wav_names(folder, NOISE)
        elif entry.is_dir() and entry.name[0] not in "._":
            found.names += _wav_names(folder, entry.name)
    for name in ("validation", "testing"):
        path = folder / f"{name}_list.txt"
        try:
            found.lists[name] = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            reason = "not found" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
            found.problems.append(f"{path.name}: {reason}")
    return found


def _wav_names(folder: Path, inside: str) -> list[str]:
    names = (entry.name for entry in os.scandir(folder / inside))
    return sorted(f"{inside}/{name}" for name in names if name.lower().endswith(".wav") and name[0] != ".")


def _of_split(found: ClipLists, split: SplitName, choice: Choice) -> tuple[list[str], list[str]]:
    """Names of its keywords and of its other words; none where a list is missing."""
    if found.problems:
        return [], []
    if split == "val":
        listed = {*found.lists[choice.val_list]}
        names = [name for name in found.names if name in listed]
    else:
        listed = {name for names in found.lists.values() for name in names}
        names = [name for name in found.names if name not in listed]
    words = {*choice.words}
    keywords = [name for name in names if _word_of(name) in words]
    return _first(keywords, choice.per_word.get(split)), [name for name in names if _word_of(name) not in words]


def _first(names: list[str], per_word: int | None) -> list[str]:
    """At most so many of each word, the first by name, in the order of `names`; None: all of them."""
    by_word = groupby(sorted(names), _word_of)
    kept = {name for _, clips in by_word for name in islice(clips, per_word)}
    return [name for name in names if name in kept]


def _word_of(name: str) -> str:
    return name.split("/")[0]


def _unknown(others: list[str], num_keywords: int, split: SplitName, choice: Choice) -> tuple[list[str], list[str]]:
    """The clips of other words, sorted, and what is wrong with them."""
    if not num_keywords or not choice.unknown:
        return [], []
    if choice.unknown == "released":
        wanted, there = released_unknown(split, choice.val_list), {*others}
        missing = [name for name in wanted if name not in there]
        number = f"{len(missing)} of the {len(wanted)} released clips of other words"
        lines = [f"{split}: {number} not found: {shortened(missing)}"]
        return sorted({*wanted} & there), lines if missing else []
    count = round(choice.unknown * num_keywords)
    ranked = sorted(others, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
    lines = [f"{split}: found {len(others)} clips of other words, expected {count} (unknown x keywords) or more"]
    return sorted(ranked[:count]), lines if len(others) < count else []


def _word_problems(found: ClipLists, keywords: list[str], split: SplitName, choice: Choice) -> list[str]:
    there, here = ({_word_of(name) for name in names} for names in (found.names, keywords))
    missing = [word for word in choice.words if word not in there]
    elsewhere = [word for word in choice.words if word in there - here and not found.problems]
    problems = [f"found no .wav files in the folders of {shortened(missing)}"] if missing else []
    return problems + ([f"{split}: found no clips of {shortened(elsewhere)}"] if elsewhere else [])


def _list_problems(found: ClipLists) -> list[str]:
    there, problems = {*found.names}, []
    for part, names in found.lists.items():
        if missing := [name for name in names if name not in there]:
            problems.append(f"{part}_list.txt: found {len(missing)} names without a file: {shortened(missing)}")
    if len(found.lists) == 2 and (both := {*found.lists["validation"]} & {*found.lists["testing"]}):
        problems.append(f"found {len(both)} names in both lists: {shortened(sorted(both))}")
    return problems
