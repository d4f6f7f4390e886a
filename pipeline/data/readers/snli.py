"""SNLI 1.0 as published: snli_1.0_train.jsonl and snli_1.0_test.jsonl (Bowman et al., EMNLP 2015).

A sample is a pair, premise and hypothesis. Pairs on which the annotators did not agree (gold label `-`) are left out,
as usual. val is the published test set, on which ST reports; the dev set is not read.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import DataError
from pipeline.data.samples import Split, shortened
from pipeline.data.text.text_samples import TextLines

FILES = {"train": "snli_1.0_train.jsonl", "val": "snli_1.0_test.jsonl"}
CLASSES = ["entailment", "neutral", "contradiction"]
NO_LABEL = "-"
PLACES = (".", "snli_1.0")


class Pair(NamedTuple):
    line: int
    text: str  # both sentences, with a tab between them
    label: int


def read_snli(folder: Path, split: str) -> Split:
    """The pairs of one split that have a label."""
    name, bad = FILES[split], []
    pairs: list[Pair] = []
    try:
        for number, line in _lines(folder, name):
            try:
                pairs += _pair(number, line)
            except (ValueError, TypeError, KeyError, AttributeError):
                bad.append(number)
    except DataError as error:
        return Split(TextLines([], [], []), problems=[str(error)])
    problems = [
        f"{name}: found {len(bad)} lines without gold_label ({', '.join(CLASSES)} or {NO_LABEL}), sentence1 and "
        f"sentence2 as JSON: line {shortened(bad)}"
    ]
    names = [f"{name}:{pair.line}" for pair in pairs]
    samples = TextLines(names, [pair.text for pair in pairs], [pair.label for pair in pairs])
    return Split(samples, list(CLASSES), problems if bad else [])


def _lines(folder: Path, name: str) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1; empty ones are left out."""
    for place in PLACES:
        if (folder / place / name).is_file():
            with (folder / place / name).open("rb") as file:
                yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
            return
    raise DataError(f"{name} not found in {', '.join(PLACES)}; expected the files of snli_1.0.zip in one of them")


def _pair(number: int, line: bytes) -> list[Pair]:
    """None where there is no label; any error where it is no pair."""
    row = json.loads(line.decode("utf-8"))
    # White space is no part of a sentence, and the tab is needed to tell the two apart.
    text = "\t".join(" ".join(row[key].split()) for key in ("sentence1", "sentence2"))
    return [] if row["gold_label"] == NO_LABEL else [Pair(number, text, CLASSES.index(row["gold_label"]))]
