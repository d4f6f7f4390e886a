"""Passages of two novels, the text that is part of this project: which of their authors wrote it? `books/` has both.

Each line is an author, the number of a chapter, and 30 words. Passages of val are from other chapters than those of
train. In order, they are running text: the same files are a stream for language models, one line per chapter.
"""

import gzip
import zlib
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import DataError
from pipeline.data.samples import Split
from pipeline.data.text.text_samples import TextLines

AUTHORS = ["austen", "eliot"]


class Passage(NamedTuple):
    author: str
    chapter: str
    text: str


def read_books(folder: Path, split: str) -> Split:
    """Passages; the label is the author."""
    try:
        passages = _read(folder, split)
    except DataError as error:
        return Split(TextLines([], [], []), problems=[str(error)])
    names = [f"{split}/{number:05d}-{found.author}-{found.chapter}" for number, found in enumerate(passages)]
    labels = [AUTHORS.index(found.author) for found in passages]
    return Split(TextLines(names, [found.text for found in passages], labels), list(AUTHORS))


def read_chapters(folder: Path, split: str) -> list[str]:
    """The passages of each chapter as one line."""
    chapters = groupby(_read(folder, split), key=lambda found: (found.author, found.chapter))
    return [" ".join(found.text for found in passages) for _, passages in chapters]


def _read(folder: Path, split: str) -> list[Passage]:
    path = folder / f"{split}.txt.gz"
    if not path.is_file():
        raise DataError(f"{path.name}: not found")
    try:
        lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[:-1]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path.name}: truncated or damaged gzip file ({error})") from None
    rows = [line.split("\t") for line in lines]
    bad = [number for number, row in enumerate(rows, 1) if len(row) != 3 or row[0] not in AUTHORS]
    if bad:
        raise DataError(
            f"{path.name}: found {len(bad)} lines, the first of them line {bad[0]}, without author, chapter and text "
            f"with a tab between them; authors are {', '.join(AUTHORS)}"
        )
    return [Passage(*row) for row in rows]
