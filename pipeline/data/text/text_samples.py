"""Classified texts of one split, each of them one string or a pair."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from pipeline.data.samples import Labelled
from pipeline.data.text.tokens import Tokenizer, Tokens, Vocabulary, Words


class Texts(Labelled):
    """Texts and their labels; `tokenizer` and `length` say what a sample is."""

    contents = "texts"
    tokenizer: Tokenizer = Words("words", Vocabulary(()), 5)
    length: int = 512

    @abstractmethod
    def texts(self, index: int, errors: str = "strict") -> tuple[str, ...]:
        """One text or a pair; `errors` is what to do with bytes that are not UTF-8, as in `bytes.decode`."""

    def __getitem__(self, index: int) -> tuple[Tokens, int]:
        texts = self.texts(index)
        if not any(text.strip() for text in texts):
            raise ValueError("it is empty")
        return self.tokenizer.encode(texts, self.length), self.labels[index]

    def all_texts(self) -> Iterable[str]:
        """Every text that can be read; the others are reported when samples are decoded."""
        for index in range(len(self)):
            with suppress(OSError):
                yield from self.texts(index, "replace")

    def identity(self) -> Iterable[bytes | memoryview]:
        yield from super().identity()
        yield self.tokenizer.digest.encode()


class TextLines(Texts):
    """Texts in memory, each with a name; the two of a pair have a tab between them."""

    def __init__(self, names: Sequence[str], texts: Sequence[str], labels: Sequence[int]) -> None:
        encoded = [text.encode() for text in texts]
        self.labels = list(labels)
        self._names = np.array([name.encode() for name in names], dtype=np.bytes_)
        self._contents = b"".join(encoded)
        self._offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def name(self, index: int) -> str:
        return self._names[index].decode()

    def content(self, index: int) -> bytes:
        return self._contents[self._offsets[index] : self._offsets[index + 1]]

    def listing(self) -> bytes:
        return self._contents

    def identity(self) -> Iterable[bytes | memoryview]:
        yield from super().identity()
        yield from (self._names.data, self._offsets.data)

    def texts(self, index: int, errors: str = "strict") -> tuple[str, ...]:
        return tuple(self.content(index).decode("utf-8", errors).split("\t"))
