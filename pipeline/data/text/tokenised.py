"""What the kinds `text` and `language` share: a tokenizer, and the vocabulary that `prepare` keeps for it."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from pipeline.core.config import nearest
from pipeline.core.errors import DataError
from pipeline.core.sizes import Size
from pipeline.data.kind import BaseDataConfig, PublishedKind, PublishedSet, common_summary
from pipeline.data.samples import Split, SplitName
from pipeline.data.store.manifest import SplitSummary
from pipeline.data.text.tokens import (
    SPLITTERS,
    Tokenizer,
    TokenizerFile,
    Vocabulary,
    Words,
    count_words,
    read_vocabulary,
)
from pipeline.models.architectures import TEXT
from pipeline.results import prepare_command

if TYPE_CHECKING:
    from pipeline.models.encoder import ModelConfig

VOCABULARY = "vocabulary.txt"


class TokenConfig(BaseDataConfig):
    """A set of texts, seen as token ids."""

    sources: ClassVar[Mapping[str, PublishedSet]] = {}

    source: str
    """Published layout in which the set is read, such as imdb or wikitext2."""
    tokenizer: str = Field(
        "words",
        description="words: the most frequent words of the train split, in lower case; spaces: the same, as white "
        "space separates them; else a file of the tokenizers library in the set's folder, such as tokenizer.json",
    )
    vocab_size: int = Field(gt=6, description="ids, special tokens included")
    length: int = Field(ge=4, description="tokens that a model sees at most; shorter texts are padded with 0")
    part_of: str | None = Field(None, description="the set whose folder holds these texts; null: its own")

    @field_validator("source")
    @classmethod
    def _is_known(cls, source: str) -> str:
        if source not in cls.sources:
            raise ValueError(f"unknown source; {nearest(source, cls.sources)}")
        return source

    @field_validator("tokenizer")
    @classmethod
    def _is_inside(cls, tokenizer: str) -> str:
        path = PurePosixPath(tokenizer)
        if tokenizer not in SPLITTERS and (path.suffix != ".json" or path.is_absolute() or ".." in path.parts):
            raise ValueError(f"expected {', '.join(SPLITTERS)}, or a .json file inside the set's folder")
        return tokenizer

    @model_validator(mode="after")
    def _has_words(self) -> "TokenConfig":
        if self.tokenizer in SPLITTERS and not self.num_train:
            raise ValueError(
                f"tokenizer is {self.tokenizer}, words of the train split, but num_train is 0; name a tokenizer file"
            )
        return self

    def check(self, model: "ModelConfig", micro_batch: int) -> None:
        if model.family not in TEXT:
            raise ValueError(
                f"data set {self.name} has texts, model.arch {model.arch} is for images; expected {' or '.join(TEXT)}"
            )

    @property
    def input_size(self) -> Size:
        return 1, self.length


class TokenKind(PublishedKind):
    """A kind whose samples are token ids."""

    cfg: Any  # TokenConfig of the kind

    def __init__(self, cfg: TokenConfig) -> None:
        super().__init__(cfg, cfg.sources[cfg.source])
        self._vocabulary: Vocabulary | None = None

    @abstractmethod
    def train_texts(self, folder: Path) -> Iterable[str]:
        """The texts whose words are counted."""

    @abstractmethod
    def tokenised(self, folder: Path, split: SplitName, tokenizer: Tokenizer | None) -> Split:
        """The samples of a split; without a tokenizer, what else is wrong with it."""

    def read(self, folder: Path, split: SplitName) -> Split:
        return self._find_samples(folder, split, None)

    def find(self, folder: Path, split: SplitName, index: Path) -> Split:
        return self._find_samples(folder, split, index)

    def summary(self, samples: Any, looks: Sequence[Any]) -> SplitSummary:
        found = common_summary(samples, looks)
        # The same texts are other samples to a model with another tokenizer.
        both = f"{found['fingerprint']}\n{samples.tokenizer.digest}\n"
        return SplitSummary(**found | {"fingerprint": hashlib.sha256(both.encode()).hexdigest()})

    def lists(self, splits: Mapping[SplitName, Split]) -> dict[str, str]:
        return {VOCABULARY: self._vocabulary.written()} if self._vocabulary else {}

    def _find_samples(self, folder: Path, split: SplitName, index: Path | None) -> Split:
        try:
            tokenizer = self._tokenizer(folder, index)
        except DataError as error:
            without = self.tokenised(folder, split, None)
            return Split(without.samples, without.classes, [*without.problems, str(error)])
        return self.tokenised(folder, split, tokenizer)

    def _tokenizer(self, folder: Path, index: Path | None) -> Tokenizer:
        name, size = self.cfg.tokenizer, self.cfg.vocab_size
        if name in SPLITTERS:
            return Words(name, self._words(folder, index), size)
        found = TokenizerFile(folder / name)
        if found.size > size:
            raise DataError(f"{name}: found {found.size} tokens, expected at most vocab_size {size}; give its number")
        return found

    def _words(self, folder: Path, index: Path | None) -> Vocabulary:
        """From the list that `prepare` wrote, or counted."""
        if self._vocabulary is None:
            self._vocabulary = (
                _listed(index / VOCABULARY) if index else count_words(self.cfg.tokenizer, self.train_texts(folder))
            )
        return self._vocabulary


def _listed(path: Path) -> Vocabulary:
    try:
        return read_vocabulary(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: found {error}, expected a list of words and counts; run `{prepare_command(path)}` again"
        ) from None
