"""Samples of one split, whatever they are: images, sounds, sentences. In a fixed order, each with a name of its own."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pipeline.core.errors import DataError

SplitName = Literal["train", "val"]
IN_MEMORY_BYTES = 512 * 1024**2


class Samples(ABC):
    """Large sets keep their data in a few large buffers instead of a million small objects.

    Loader workers are forked, and touching an object's reference count copies its memory page into every worker.
    """

    # Each sample is one file: `path` says which.
    has_files: ClassVar[bool] = False
    # In words, what there is of a sample that is no file.
    contents: ClassVar[str] = "contents"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The decoded sample, as the views of its kind take it."""

    @abstractmethod
    def name(self, index: int) -> str:
        """A name that is unique in the data set and does not depend on where the set is stored."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes as published: the file, or what stands for it where there are no files."""

    @abstractmethod
    def identity(self) -> Iterable[bytes | memoryview]:
        """What is known of all samples without opening a file of one: names or contents, and labels."""

    def line(self, index: int) -> str:
        """What a fingerprint takes of a sample beside its content."""
        return self.name(index)

    def look(self, index: int) -> Any:
        """Decode a sample and say what was seen: an Inspection, or what has its fields and more."""
        try:
            content = self.content(index)
            self[index]
        except Exception as error:  # decoders raise almost any kind for a damaged file
            return Inspection(0, "", f"found a sample that cannot be read ({error})")
        return Inspection(len(content), hashlib.sha256(content).hexdigest())

    def path(self, index: int) -> Path:
        raise NotImplementedError("these samples are not files")

    def paths(self, index: int) -> tuple[Path, ...]:
        """All files of a sample; of most it is one."""
        return (self.path(index),)

    def first_of_folders(self) -> list[int]:
        """The first file of each folder, where samples are files."""
        return []

    def preload(self) -> None:  # noqa: B027 - most have nothing to do
        """Read small sets into memory; to be called before loader workers are forked."""


class Labelled(Samples):
    """Samples with one label each."""

    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def listing(self) -> bytes | memoryview:
        """What is known of all samples without opening a file: their names, or their contents."""

    def identity(self) -> Iterable[bytes | memoryview]:
        return np.asarray(self.labels, dtype="<i8").tobytes(), self.listing()

    def line(self, index: int) -> str:
        return f"{self.name(index)}\t{self.labels[index]}"


class Files(Samples):
    """Files below a folder; their bytes are kept in memory when the whole set is small."""

    has_files = True
    upright: bool = False  # images are turned by their EXIF orientation

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.folder = folder
        self._files = np.array([os.fsencode(file) for file in files], dtype=np.bytes_)
        self._contents: bytes | None = None
        self._offsets = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return os.fsdecode(self._files[index])

    def listing(self) -> bytes:
        return b"\n".join(self._files.tolist())

    def path(self, index: int) -> Path:
        return self.folder / self.name(index)

    def first_of_folders(self) -> list[int]:
        found: dict[bytes, int] = {}
        for index, file in enumerate(self._files.tolist()):
            found.setdefault(file.rpartition(b"/")[0], index)
        return [*found.values()]

    def content(self, index: int) -> bytes:
        if self._contents is not None:
            return self._contents[self._offsets[index] : self._offsets[index + 1]]
        return self.path(index).read_bytes()

    def preload(self) -> None:
        try:
            if not self._is_small():
                return
            contents = [self.path(index).read_bytes() for index in range(len(self))]
        except OSError as error:
            raise DataError(
                f"found {error}, expected every listed file in {self.folder}; "
                "run `python -m pipeline prepare` on the data set again: it lists every missing file"
            ) from error
        self._offsets = np.cumsum([0, *map(len, contents)], dtype=np.int64)
        self._contents = b"".join(contents)

    def _is_small(self) -> bool:
        total = 0
        for index in range(len(self)):
            total += self.path(index).stat().st_size
            # Stops early: asking a network disk for a million sizes takes minutes.
            if total >= IN_MEMORY_BYTES:
                return False
        return True


class LabelledFiles(Files, Labelled):
    """Files with one label each. A kind adds `__getitem__`."""

    def __init__(self, folder: Path, files: Sequence[str], labels: Sequence[int]) -> None:
        super().__init__(folder, files)
        self.labels = list(labels)


class Inspection(NamedTuple):
    """What opening one sample showed; `problem` is empty for a good one. A kind may see more."""

    num_bytes: int
    digest: str
    problem: str = ""


@dataclass
class Split:
    """One split as found: samples, names of classes in the order of labels, and all that is wrong with it."""

    samples: Any  # Samples of a kind
    classes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def label_problems(split: SplitName, found: Split, num_classes: int, unit: str) -> list[str]:
    """How the labels of a split differ from those of `num_classes` classes."""
    labels, problems = set(found.samples.labels), []
    # A split that could not be read has reported that already.
    if found.problems and not labels:
        return []
    if len(labels) != num_classes:
        problems.append(f"{split}: found {unit} of {len(labels)} classes, expected {num_classes}")
    outside = sorted(label for label in labels if not 0 <= label < num_classes)
    if outside:
        problems.append(f"{split}: found labels {shortened(outside)}, expected 0 to {num_classes - 1}")
    return problems


def one_line(text: str) -> str:
    """A text with names from outside: a line break in one must not end the line."""
    return text.encode("unicode_escape").decode()


def shortened(names: Sequence[object], limit: int = 5) -> str:
    """The first few names and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + rest
