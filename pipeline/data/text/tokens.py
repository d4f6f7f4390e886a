"""From text to token ids: the frequent words of a train split, or a file of the tokenizers library.

`words` makes everything lower case and splits punctuation off; `spaces` splits at white space alone, for text that is
split already, as WikiText is. Both know the words of the train split, the most frequent ones first. With a file such as
bert-base-uncased's tokenizer.json, special tokens are what that file says.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import DataError

PAD, UNK, CLS, SEP, MASK, EOS = range(6)
# The end of a line is one of them also where there are no lines: a stream and its texts have the same ids.
SPECIAL = ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<eos>")
# WikiText writes <unk> for its rare words: that is one word, and this project's unknown one.
_WORD = re.compile(r"<unk>|<eos>|\w+|[^\w\s]")


class Tokens(NamedTuple):
    """A text, or a pair of texts: `types` is 1 for the tokens of the second one."""

    ids: list[int]
    types: list[int]


class Tokenizer(ABC):
    """Text -> ids below `size`. `digest` says what it was made from: other words or another file have another one."""

    size: int
    digest: str

    @abstractmethod
    def encode(self, texts: Sequence[str], length: int) -> Tokens:
        """One text or two, with special tokens, at most `length` ids; the longest text is cut first."""

    @abstractmethod
    def encode_line(self, line: str) -> list[int]:
        """A line of a stream and its end, without other special tokens."""


class Vocabulary(NamedTuple):
    """Every word of a train split and how often it occurs, the most frequent first."""

    counts: tuple[tuple[str, int], ...]

    def written(self) -> str:
        return "".join(f"{word}\t{count}\n" for word, count in self.counts)


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


SPLITTERS: dict[str, Callable[[str], list[str]]] = {"words": split_words, "spaces": str.split}


def count_words(splitter: str, texts: Iterable[str]) -> Vocabulary:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(SPLITTERS[splitter](text))
    for special in SPECIAL:
        del counts[special]
    # Words that occur equally often are in the order of the alphabet, so that every machine has the same ids.
    return Vocabulary(tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))


def read_vocabulary(path: Path) -> Vocabulary:
    """What `Vocabulary.written` wrote; words may hold characters that `splitlines` takes for line ends."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return Vocabulary(tuple((word, int(count)) for word, count in rows))


class Words(Tokenizer):
    """The first words of a vocabulary, after six special tokens; every other word is UNK."""

    def __init__(self, splitter: str, vocabulary: Vocabulary, size: int) -> None:
        known = [word for word, _ in vocabulary.counts[: size - len(SPECIAL)]]
        self.split = SPLITTERS[splitter]
        self.size = len(SPECIAL) + len(known)
        self.digest = hashlib.sha256(f"{splitter}\n{vocabulary.written()}".encode()).hexdigest()
        self._ids = {word: number for number, word in enumerate(known, len(SPECIAL))}

    def encode(self, texts: Sequence[str], length: int) -> Tokens:
        parts = [self._known(text) for text in texts]
        _cut(parts, length - 1 - len(texts))
        ids, types = [CLS], [0]
        for number, part in enumerate(parts):
            ids += [*part, SEP]
            types += [number] * (len(part) + 1)
        return Tokens(ids, types)

    def encode_line(self, line: str) -> list[int]:
        return [*self._known(line), EOS]

    def _known(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in self.split(text)]


def _cut(parts: list[list[int]], room: int) -> None:
    """Take tokens off the end of the longest part until all fit; an odd one stays where there were most."""
    by_length = sorted(parts, key=len)
    for part in parts:
        del part[room:]
    while sum(map(len, parts)) > room:
        max(by_length, key=len).pop()


class TokenizerFile(Tokenizer):
    """A file of the tokenizers library; in a stream, the end of a line is its line break."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Library

        name = f"{path.parent.name}/{path.name}"  # all these files have one name
        try:
            content = path.read_bytes()
            self._library = Library.from_buffer(content)
        except FileNotFoundError:
            raise DataError(
                f"{name}: not found in {path.parents[1]}; expected the file of the tokenizers library that the config "
                "names under `tokenizer`"
            ) from None
        except Exception as error:  # the library raises its own kinds, and plain Exception
            raise DataError(f"{name}: found {error}, expected a file of the tokenizers library") from None
        self._library.no_padding()
        self.size = self._library.get_vocab_size()
        self.digest = hashlib.sha256(content).hexdigest()

    def encode(self, texts: Sequence[str], length: int) -> Tokens:
        if (self._library.truncation or {}).get("max_length") != length:
            self._library.enable_truncation(length, strategy="longest_first")
        first, *second = texts
        found = self._library.encode(first, second[0] if second else None)
        return Tokens(found.ids, found.type_ids)

    def encode_line(self, line: str) -> list[int]:
        self._library.no_truncation()
        return self._library.encode(f"{line}\n", add_special_tokens=False).ids
