"""Small sets of texts in exactly the published layouts, a tokenizer file, and configs that fit them."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.store.archives import extract
from pipeline.data.store.opening import open_split
from pipeline.data.text.tokens import SPECIAL


def text_config(name, /, **changes):
    """A published config with `words` and the counts of a small set."""
    published = read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"]
    return parse_data(Layers(("test", merge(published, {"tokenizer": "words", "vocab_size": 50}, changes))))


def write_tokenizer(path, words):
    """A file of the tokenizers library that knows what `Words` with these words knows."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>",
        pair="<cls> $A <sep> $B:1 <sep>:1",
        special_tokens=[("<cls>", 2), ("<sep>", 3)],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


REVIEWS = {
    "train/neg/0_1.txt": "Bad. Very bad!<br /><br />I left.",
    "train/neg/10_4.txt": "A bad film",
    "train/pos/0_9.txt": "Good, very good",
    "train/pos/1_10.txt": "Caf\u00e9 scenes: good",
    "test/neg/0_2.txt": "bad bad bad",
    "test/pos/0_8.txt": "good and unheard of",
}
IMDB_COUNTS = {"num_train": 4, "num_val": 2, "length": 12}


def write_imdb(folder, place="."):
    for name, text in REVIEWS.items():
        path = folder / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / place / "train" / "unsup").mkdir()
    (folder / place / "train" / "unsup" / "0_0.txt").write_text("no label")
    (folder / place / "train" / "urls_neg.txt").write_text("http://example.org")
    return folder


PAIRS = {
    "train": [
        ("A man sleeps.", "A man is awake.", "contradiction"),
        ("A dog runs", "An animal runs", "entailment"),
        ("A dog\truns", " A  dog is late ", "neutral"),
        ("Two men", "Two friends", "-"),
    ],
    "test": [("A cat", "n/a", "neutral"), ("A cat", "An animal", "entailment"), ("A cat", "No cat", "contradiction")],
}
SNLI_COUNTS = {"num_train": 3, "num_val": 3, "length": 12}


def write_snli(folder, place="."):
    (folder / place).mkdir(parents=True, exist_ok=True)
    for part, pairs in PAIRS.items():
        rows = [
            {"annotator_labels": [label], "gold_label": label, "pairID": "1.jpg#0r1n", "sentence1": a, "sentence2": b}
            for a, b, label in pairs
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / place / f"snli_1.0_{part}.jsonl").write_text(text, encoding="utf-8")
    return folder


WIKITEXT = {
    "train": " \n = Title = \n \n a <unk> cat @-@ like animal , and a cat . \n",
    "valid": " \n not read \n",
    "test": " \n = Other = \n a cat , \n",
}
# With `spaces`: 4 + 12 words and 4 ends of lines; 3 + 3 words and 3 ends of lines.
WIKITEXT_COUNTS = {"num_train": 4, "num_val": 4, "length": 4, "stride": 2, "tokenizer": "spaces"}


def write_wikitext(folder, place="."):
    (folder / place).mkdir(parents=True, exist_ok=True)
    for part, text in WIKITEXT.items():
        (folder / place / f"wiki.{part}.tokens").write_text(text, encoding="utf-8")
    return folder


def development_set(name, target):
    """The folder of a development set, extracted; the test is skipped where there is none."""
    source = Path(os.environ.get("PATCHWORK_DATA", "")) / name
    if "PATCHWORK_DATA" not in os.environ or not source.is_dir():
        pytest.skip("PATCHWORK_DATA does not name the development data")
    (archive,) = source.glob("*.tar")
    extract(archive, target)
    (folder,) = target.iterdir()
    return folder


def imdb(**changes):
    return text_config("imdb", **IMDB_COUNTS | changes)


def snli(**changes):
    return text_config("snli", **SNLI_COUNTS | changes)


def seen(cfg, folder, split="val", index=None):
    """What a model sees of a split."""
    samples, view = open_split(cfg, folder, split, index), kind_of(cfg).eval_view()
    return [view(samples[number]) for number in range(len(samples))]
