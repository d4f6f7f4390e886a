"""Large Movie Review Dataset as published: aclImdb/{train,test}/{neg,pos}/*.txt (Maas et al., ACL 2011).

The published test set serves as val, as in ST. The unlabelled reviews of train/unsup are not read.
"""

import os
from pathlib import Path

from pipeline.data.samples import LabelledFiles, Split
from pipeline.data.text.text_samples import Texts

PARTS = {"train": "train", "val": "test"}
CLASSES = ["neg", "pos"]
PLACES = (".", "aclImdb")


class Reviews(LabelledFiles, Texts):
    """Files in UTF-8, in which `<br />` is a line break."""

    def texts(self, index: int, errors: str = "strict") -> tuple[str, ...]:
        return (self.content(index).decode("utf-8", errors).replace("<br />", "\n"),)


def read_imdb(folder: Path, split: str) -> Split:
    """The files of one split; none of them is opened. Label 0 is neg."""
    part = PARTS[split]
    place = next((place for place in PLACES if (folder / place / part).is_dir()), None)
    if place is None:
        where = ", ".join(PLACES)
        problem = f"{split}: folder {part} not found in {where}; expected that of aclImdb_v1.tar.gz in one of them"
        return Split(Reviews(folder, [], []), problems=[problem])
    files, labels, problems = [], [], []
    for label, name in enumerate(CLASSES):
        inside = (Path(place) / part / name).as_posix()
        found = _text_names(folder / inside)
        if not found:
            problems.append(f"{split}: no .txt files found in {inside}")
        files += [f"{inside}/{file}" for file in found]
        labels += [label] * len(found)
    return Split(Reviews(folder, files, labels), list(CLASSES), problems)


def _text_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.endswith(".txt") and entry.name[0] != ".")
