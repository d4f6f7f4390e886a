"""Running text, the kind `language`: one stream of tokens per split, seen in windows of `length` tokens.

Every line of the text ends in one token (`<eos>`; of a tokenizer file, its line break): so WikiText-2 has the published
numbers of tokens. There are no other special tokens. Windows of train do not overlap, and what remains is left out.
Windows of val begin every `stride` tokens, and in each of them only those tokens count that no earlier one has scored.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field, model_validator

from pipeline.core.errors import DataError
from pipeline.data.kind import KINDS, PublishedSet, View
from pipeline.data.readers.books import read_chapters
from pipeline.data.readers.wikitext import read_wikitext
from pipeline.data.samples import Samples, Split, SplitName
from pipeline.data.text.tokenised import TokenConfig, TokenKind
from pipeline.data.text.tokens import MASK, PAD, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

LineReader = Callable[[Path, str], list[str]]  # (folder, split); DataError where there is no such text

SOURCES: dict[str, PublishedSet[LineReader]] = {
    "books": PublishedSet(
        read=read_chapters,
        layout="train.txt.gz and val.txt.gz; in each line author, chapter and text, with a tab between them",
        obtained="it is part of this project: pipeline/data/books",
        embedded="books",
    ),
    "wikitext2": PublishedSet(
        read=read_wikitext,
        layout="wiki.train.tokens and wiki.test.tokens, in the folder or in wikitext-2/ of it",
    ),
}


class LanguageConfig(TokenConfig):
    """A stream of tokens; `num_train` and `num_val` count windows."""

    identity_fields: ClassVar[tuple[str, ...]] = (
        *("source", "num_train", "num_val"),
        *("tokenizer", "vocab_size", "length", "stride"),
    )
    view_fields: ClassVar[tuple[str, ...]] = ("mask_token",)
    cost_fields: ClassVar[tuple[str, ...]] = ("vocab_size", "length")
    tasks: ClassVar[tuple[str, ...]] = ("language",)
    sources: ClassVar[Mapping[str, PublishedSet]] = SOURCES

    kind: str = "language"
    stride: int = Field(gt=0, description="tokens between the beginnings of two windows of val; length: no overlap")
    mask_token: int = Field(MASK, ge=0, description="id of the masked token; 103 in bert-base-uncased")

    @model_validator(mode="after")
    def _fits(self) -> "LanguageConfig":
        if self.stride > self.length:
            raise ValueError(f"stride {self.stride} is more than length {self.length}: tokens would be left out")
        if self.mask_token >= self.vocab_size:
            raise ValueError(f"mask_token {self.mask_token} is no id below vocab_size {self.vocab_size}")
        return self


class Windows(Samples):
    """Windows of a stream: (ids, which of them are scored), the last one of val may be shorter."""

    contents = "tokens"

    def __init__(self, split: str, ids: np.ndarray, length: int, stride: int, tokenizer: Tokenizer | None) -> None:
        self.split, self.ids, self.length, self.tokenizer = split, ids, length, tokenizer
        self.step = length if split == "train" else stride
        self._count = len(ids) // length
        if split == "val" and len(ids) > 1:
            # One more where tokens remain, so that the last window reaches the end of the stream.
            self._count = 1 + max(0, -((length - len(ids)) // stride))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        ids = self._window(index)
        # What the window before has seen is context; the first token of a window has nothing before it.
        known = self.length - self.step if index and self.split == "val" else 0
        return ids, np.arange(len(ids)) >= max(known, 1)

    def name(self, index: int) -> str:
        return f"{self.split}/{index * self.step:08d}"

    def content(self, index: int) -> bytes:
        return self._window(index).tobytes()

    def identity(self) -> Iterable[bytes | memoryview]:
        yield f"{self.length} {self.step}\n".encode()
        yield self.ids.data

    def _window(self, index: int) -> np.ndarray:
        return self.ids[index * self.step : index * self.step + self.length]


@KINDS.register("language")
class Language(TokenKind):
    Config: ClassVar[type[LanguageConfig]] = LanguageConfig
    unit = "windows"
    cfg: LanguageConfig

    def train_texts(self, folder: Path) -> Iterable[str]:
        return self.source.read(folder, "train")

    def tokenised(self, folder: Path, split: SplitName, tokenizer: Tokenizer | None) -> Split:
        problems, ids = [], []
        try:
            lines = self.source.read(folder, split)
            if tokenizer is not None:
                ids = [number for line in lines for number in tokenizer.encode_line(line)]
        except DataError as error:
            problems.append(str(error))
        stream = np.asarray(ids, dtype="<i4")
        return Split(Windows(split, stream, self.cfg.length, self.cfg.stride, tokenizer), problems=problems)

    def train_view(self) -> View:
        return self.eval_view()

    def eval_view(self) -> View:
        return lambda sample: padded_window(sample[0], sample[1], self.cfg.length)

    def expected(self) -> str:
        return f"{super().expected()} of {self.cfg.length} tokens"


def padded_window(ids: np.ndarray, scored: np.ndarray, length: int) -> "tuple[dict[str, Tensor], dict[str, Tensor]]":
    """Tensors of `length` each: int64 ids, bool mask; bool scored."""
    import torch

    rest = (0, length - len(ids))
    tokens = torch.from_numpy(np.pad(ids.astype(np.int64), rest, constant_values=PAD))
    return (
        {"ids": tokens, "mask": torch.arange(length) < len(ids)},
        {"scored": torch.from_numpy(np.pad(scored, rest))},
    )
