"""Classified texts, the kind `text`: published sets in their published layouts, and the passages in `books/`.

A model sees {"ids", "mask", "types"}, each of them `length` long: token ids, which of them are no padding, and 1 for
the tokens of the second text of a pair. Texts that are too long lose their end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from pipeline.data.kind import KINDS, PublishedSet, View
from pipeline.data.readers.books import read_books
from pipeline.data.readers.imdb import read_imdb
from pipeline.data.readers.snli import read_snli
from pipeline.data.samples import Split, SplitName, label_problems
from pipeline.data.store.manifest import SplitSummary
from pipeline.data.text.text_samples import Texts
from pipeline.data.text.tokenised import TokenConfig, TokenKind
from pipeline.data.text.tokens import PAD, Tokenizer, Tokens

if TYPE_CHECKING:
    from torch import Tensor

Reader = Callable[[Path, str], Split]

SOURCES: dict[str, PublishedSet[Reader]] = {
    "books": PublishedSet(
        read=read_books,
        layout="train.txt.gz and val.txt.gz; in each line author, chapter and text, with a tab between them",
        obtained="it is part of this project: pipeline/data/books",
        embedded="books",
    ),
    "imdb": PublishedSet(
        read=read_imdb,
        layout="{train,test}/{neg,pos}/*.txt, in the folder or in aclImdb/ of it",
    ),
    "snli": PublishedSet(
        read=read_snli,
        layout="snli_1.0_train.jsonl and snli_1.0_test.jsonl, in the folder or in snli_1.0/ of it",
    ),
}


class TextConfig(TokenConfig):
    """A set of classified texts."""

    identity_fields: ClassVar[tuple[str, ...]] = ("source", "num_classes", "num_train", "num_val", "tokenizer")
    view_fields: ClassVar[tuple[str, ...]] = ("vocab_size", "length")
    cost_fields: ClassVar[tuple[str, ...]] = ("vocab_size", "length", "num_classes")
    tasks: ClassVar[tuple[str, ...]] = ("text_classify",)
    own_tasks: ClassVar[Mapping[str, str]] = {"classify": "text_classify"}
    sources: ClassVar[Mapping[str, PublishedSet]] = SOURCES

    kind: str = "text"
    num_classes: int = Field(gt=0)
    """Number of classes."""


@KINDS.register("text")
class ClassifiedTexts(TokenKind):
    Config: ClassVar[type[TextConfig]] = TextConfig
    unit = "texts"
    cfg: TextConfig

    def train_texts(self, folder: Path) -> Iterable[str]:
        return self.source.read(folder, "train").samples.all_texts()

    def tokenised(self, folder: Path, split: SplitName, tokenizer: Tokenizer | None) -> Split:
        found = self.source.read(folder, split)
        if tokenizer is not None:
            found.samples.tokenizer = tokenizer
        found.samples.length = self.cfg.length
        return found

    def train_view(self) -> View:
        return self.eval_view()

    def eval_view(self) -> View:
        return lambda sample: (padded(sample[0], self.cfg.length), sample[1])

    def expected(self) -> str:
        return f"{super().expected()} of {self.cfg.num_classes} classes"

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        return super().count_problems(split, found) + label_problems(split, found, self.cfg.num_classes, self.unit)

    def summary(self, samples: Texts, looks: Sequence[Any]) -> SplitSummary:
        per_class = Counter(samples.labels).values()
        more = {"classes": len(per_class), "per_class_min": min(per_class), "per_class_max": max(per_class)}
        return super().summary(samples, looks).model_copy(update=more)


def padded(tokens: Tokens, length: int) -> "dict[str, Tensor]":
    """Tensors of `length` each: int64 ids and types, bool mask."""
    import torch

    rest = length - len(tokens.ids)
    return {
        "ids": torch.tensor(tokens.ids + [PAD] * rest),
        "mask": torch.arange(length) < len(tokens.ids),
        "types": torch.tensor(tokens.types + [0] * rest),
    }
