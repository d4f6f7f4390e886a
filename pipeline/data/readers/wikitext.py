"""WikiText-2 as published, the version of tokens: wiki.train.tokens and wiki.test.tokens (Merity et al., ICLR 2017).

val is the published test set, on which perplexities are reported; wiki.valid.tokens is not read. The text stays as it
is, with `<unk>` for rare words and ` @-@ ` in compounds, also for tokenizers that know better.
"""

from pathlib import Path

from pipeline.core.errors import DataError

FILES = {"train": "wiki.train.tokens", "val": "wiki.test.tokens"}
PLACES = (".", "wikitext-2")


def read_wikitext(folder: Path, split: str) -> list[str]:
    """The lines of a split, empty ones too."""
    name = FILES[split]
    path = next((folder / place / name for place in PLACES if (folder / place / name).is_file()), None)
    if path is None:
        raise DataError(f"{name} not found in {', '.join(PLACES)}; expected it, of wikitext-2-v1.zip, in one of them")
    try:
        *lines, rest = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: found bytes that are not UTF-8 ({error}), expected the published file") from None
    if rest:
        raise DataError(f"{name}: found no line break at its end: the file is cut off after {rest[-40:]!r}")
    return lines
