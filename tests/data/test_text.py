"""Classified texts: IMDB, SNLI and the two novels; what a model sees, and every way in which a copy is incomplete."""

import gzip
import json
import shutil

import pytest
import torch
from layouts import message_of
from texts import (
    REVIEWS,
    development_set,
    imdb,
    seen,
    snli,
    text_config,
    write_imdb,
    write_snli,
    write_tokenizer,
)

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.loader import eval_loader
from pipeline.data.readers.imdb import read_imdb
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.data.text.text_samples import TextLines
from pipeline.site import Site, data_folder


def refusal(cfg, folder):
    return message_of(prepare, cfg, folder, folder / "out", progress=False)


# IMDB


@pytest.mark.parametrize("place", [".", "aclImdb"])
def test_imdb__published_layout__labels_are_folders_and_val_is_test(tmp_path, place):
    write_imdb(tmp_path, place)
    train, val = open_split(imdb(), tmp_path, "train"), open_split(imdb(), tmp_path, "val")
    assert (train.labels, val.labels) == ([0, 0, 1, 1], [0, 1])
    prefix = "" if place == "." else f"{place}/"
    assert [train.name(index) for index in range(4)] == [prefix + name for name in REVIEWS if name.startswith("train")]
    assert train.texts(0) == ("Bad. Very bad!\n\nI left.",)
    assert read_imdb(tmp_path, "val").classes == ["neg", "pos"]


def test_imdb__seen_by_a_model__is_padded_ids_mask_types_and_the_label(tmp_path):
    (first, label), (second, _) = seen(imdb(), write_imdb(tmp_path))
    assert label == 0
    assert {key: (value.dtype, tuple(value.shape)) for key, value in first.items()} == {
        "ids": (torch.int64, (12,)),
        "mask": (torch.bool, (12,)),
        "types": (torch.int64, (12,)),
    }
    ids = first["ids"].tolist()
    assert ids[0] == 2 and ids[4] == 3 and ids[1] == ids[2] == ids[3] > 4 and ids[5:] == [0] * 7
    assert first["mask"].tolist() == [True] * 5 + [False] * 7 and not first["types"].any()
    assert second["ids"].tolist()[2:5] == [1, 1, 1]  # "and unheard of": words of val alone are unknown


def test_imdb__through_a_loader__collates_into_batches(tmp_path):
    cfg = imdb()
    samples = open_split(cfg, write_imdb(tmp_path), "train")
    inputs, labels = next(iter(eval_loader(samples, kind_of(cfg).eval_view(), 3, 0, 1, 0)))
    assert {key: tuple(value.shape) for key, value in inputs.items()} == dict.fromkeys(
        ("ids", "mask", "types"), (3, 12)
    )
    assert labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: shutil.rmtree(folder / "test"), "val: folder test not found in ., aclImdb"),
        (lambda folder: shutil.rmtree(folder / "train" / "pos"), "train: no .txt files found in train/pos"),
        (lambda folder: (folder / "train/neg/0_1.txt").unlink(), "train: found 3 texts, expected 4"),
        (
            lambda folder: (folder / "test/pos/0_8.txt").write_bytes("good caf\u00e9".encode("latin-1")),
            "test/pos/0_8.txt: found a sample that cannot be read ('utf-8' codec can't decode byte 0xe9",
        ),
        (
            lambda folder: (folder / "train/neg/0_1.txt").write_bytes(b"bad \xff"),
            "train/neg/0_1.txt: found a sample that cannot be read ('utf-8' codec can't decode byte 0xff",
        ),
        (
            lambda folder: (folder / "train/pos/0_9.txt").write_text(" \n"),
            "train/pos/0_9.txt: found a sample that cannot be read (it is empty)",
        ),
    ],
    ids=["no test", "no pos", "one file less", "latin-1 in val", "latin-1 in train", "empty"],
)
def test_imdb__incomplete_or_damaged__is_named(tmp_path, damage, text):
    damage(write_imdb(tmp_path))
    message = refusal(imdb(), tmp_path)
    assert text in message
    assert "expected: 4 train and 2 val texts of 2 classes" in message
    assert "https://ai.stanford.edu/~amaas/data/sentiment/" in message


# SNLI


@pytest.mark.parametrize("place", [".", "snli_1.0"])
def test_snli__published_layout__leaves_out_pairs_without_a_label(tmp_path, place):
    write_snli(tmp_path, place)
    train, val = open_split(snli(), tmp_path, "train"), open_split(snli(), tmp_path, "val")
    assert (train.labels, val.labels) == ([2, 0, 1], [1, 0, 2])
    assert [train.name(index) for index in range(3)] == [f"snli_1.0_train.jsonl:{line}" for line in (1, 2, 3)]
    assert train.texts(2) == ("A dog runs", "A dog is late")


def test_snli__seen_by_a_model__is_a_pair_with_types(tmp_path):
    inputs, label = seen(snli(), write_snli(tmp_path), "train")[1]  # A dog runs / An animal runs
    assert label == 0
    assert [place for place, number in enumerate(inputs["ids"].tolist()) if number == 3] == [4, 8]
    assert inputs["types"].tolist() == [0] * 5 + [1] * 4 + [0] * 3
    assert inputs["mask"].sum() == 9


def write_lines(path, *changes):
    lines = path.read_text().splitlines()
    for number, line in changes:
        lines[number - 1] = line if isinstance(line, str) else line(lines[number - 1])
    path.write_text("\n".join(lines) + "\n")


def test_snli__lines_that_are_no_pairs__are_counted_and_named(tmp_path):
    write_lines(
        write_snli(tmp_path) / "snli_1.0_train.jsonl",
        (1, lambda line: line[:40]),
        (2, lambda line: line.replace("entailment", "entails")),
        (3, '{"gold_label": "neutral", "sentence1": "one alone"}'),
        (4, '{"gold_label": "neutral", "sentence1": "a", "sentence2": null}'),
    )
    message = refusal(snli(), tmp_path)
    assert "snli_1.0_train.jsonl: found 4 lines without gold_label" in message
    assert "as JSON: line 1, 2, 3, 4\n" in message
    assert "expected: 3 train and 3 val texts of 3 classes" in message


def test_snli__other_encoding__is_named(tmp_path):
    path = write_snli(tmp_path) / "snli_1.0_test.jsonl"
    row = {"gold_label": "neutral", "sentence1": "caf\u00e9", "sentence2": "b"}
    path.write_bytes(path.read_bytes() + json.dumps(row, ensure_ascii=False).encode("latin-1"))
    assert "snli_1.0_test.jsonl: found 1 lines without" in refusal(snli(), tmp_path)
    write_snli(tmp_path)
    path.write_bytes(path.read_text().encode("utf-16"))
    assert "snli_1.0_test.jsonl: found" in refusal(snli(), tmp_path)


def test_snli__missing_file_or_class__is_named(tmp_path):
    (write_snli(tmp_path) / "snli_1.0_train.jsonl").unlink()
    write_lines(tmp_path / "snli_1.0_test.jsonl", (1, lambda line: line.replace("neutral", "entailment")))
    message = refusal(snli(), tmp_path)
    assert message.count("snli_1.0_train.jsonl not found in ., snli_1.0; expected the files of snli_1.0.zip") == 1
    assert "val: found texts of 2 classes, expected 3" in message


# What all of them have


SETS = {"imdb": (imdb, write_imdb), "snli": (snli, write_snli)}


@pytest.fixture(params=SETS)
def small(request, tmp_path):
    config, write = SETS[request.param]
    return config, write(tmp_path / "data")


@pytest.mark.slow
def test_prepare__texts__keeps_a_vocabulary_and_opens_what_was_verified(small, tmp_path):
    config, folder = small
    manifest = prepare(config(), folder, tmp_path / "out", workers=2, progress=False)
    assert manifest == read_manifest(tmp_path / "out" / "manifest.json")
    assert manifest.splits["train"].count == config().num_train
    assert manifest.splits["train"].model_extra["classes"] == config().num_classes
    for split in ("train", "val"):
        counted, listed = seen(config(), folder, split), seen(config(), folder, split, tmp_path / "out")
        for (first, label), (second, same) in zip(counted, listed, strict=True):
            assert label == same and all(torch.equal(first[key], second[key]) for key in first)


def test_prepare__same_texts_elsewhere__has_the_same_fingerprint(small, tmp_path):
    config, folder = small
    first = prepare(config(), folder, tmp_path / "out", progress=False)
    second = prepare(config(), folder.rename(tmp_path / "moved"), tmp_path / "again", progress=False)
    assert first.fingerprint == second.fingerprint


def test_prepare__shorter_texts_or_fewer_words__are_the_same_set(small, tmp_path):
    """Runs that differ in them share the manifest."""
    config, folder = small
    prepare(config(), folder, tmp_path / "out", progress=False)
    inputs, _ = seen(config(length=6, vocab_size=8), folder, "val", tmp_path / "out")[0]
    assert inputs["ids"].shape == (6,) and inputs["ids"].max() < 8


def test_open__vocabulary_of_prepare_changed_or_missing__is_refused(small, tmp_path):
    config, folder = small
    prepare(config(), folder, tmp_path / "out", progress=False)
    vocabulary = tmp_path / "out" / "vocabulary.txt"
    vocabulary.write_text(vocabulary.read_text() + "stranger\t1\n")
    message = message_of(open_split, config(), folder, "val", tmp_path / "out")
    assert "does not hold the val texts that were verified" in message
    vocabulary.write_text("stranger\n")
    message = message_of(open_split, config(), folder, "val", tmp_path / "out")
    assert "expected a list of words and counts; run `python -m pipeline prepare" in message
    vocabulary.unlink()
    assert "vocabulary.txt" in message_of(open_split, config(), folder, "val", tmp_path / "out")


def test_identity__same_characters_in_other_texts__is_another():
    one, other = (TextLines(["1", "2"], texts, [0, 1]) for texts in (["ab", "c"], ["a", "bc"]))
    assert [*map(bytes, one.identity())] != [*map(bytes, other.identity())]


def test_open__texts_changed_after_prepare__are_refused(tmp_path):
    write_snli(tmp_path / "data")
    prepare(snli(), tmp_path / "data", tmp_path / "out", progress=False)
    path = tmp_path / "data" / "snli_1.0_test.jsonl"
    path.write_text(path.read_text().replace("No cat", "No dog"))
    message = message_of(open_split, snli(), tmp_path / "data", "val", tmp_path / "out")
    assert "val: found other texts or labels than were verified" in message


@pytest.mark.slow
def test_tokenizer_file__in_the_folder__is_used_and_part_of_the_fingerprint(small, tmp_path):
    config, folder = small
    cfg = config(tokenizer="bert/tokenizer.json")
    write_tokenizer(folder / "bert" / "tokenizer.json", ["a", "cat", "bad"])
    first = prepare(cfg, folder, tmp_path / "out", workers=2, progress=False)
    assert not (tmp_path / "out" / "vocabulary.txt").exists()
    assert {
        number for inputs, _ in seen(cfg, folder, "val", tmp_path / "out") for number in inputs["ids"].tolist()
    } <= {*range(9)}
    write_tokenizer(folder / "bert" / "tokenizer.json", ["cat", "a", "bad"])
    message = message_of(open_split, cfg, folder, "val", tmp_path / "out")
    assert "does not hold the val texts that were verified" in message
    assert prepare(cfg, folder, tmp_path / "out", progress=False).fingerprint != first.fingerprint


def test_refusal__set_in_the_folder_of_another__names_the_key_of_that_one(small):
    config, folder = small
    assert "set its folder under `data: reviews:`" in refusal(config(part_of="reviews", num_val=5), folder)


def test_tokenizer_file__missing_or_too_large__is_one_of_several_problems(small, tmp_path):
    config, folder = small
    message = refusal(config(tokenizer="tokenizer.json", num_val=5), folder)
    assert message.count("tokenizer.json: not found in") == 1 and ", expected 5" in message
    write_tokenizer(folder / "tokenizer.json", ["a", "cat", "bad"])
    message = refusal(config(tokenizer="tokenizer.json", vocab_size=8), folder)
    assert message.count("tokenizer.json: found 9 tokens, expected at most vocab_size 8") == 1


# The novels in this project


def books():
    return parse_data(Layers(("books", read_yaml(CONFIGS / "data" / "books.yaml")["data"])))


def rows(split):
    content = (kind_of(books()).default_folder() / f"{split}.txt.gz").read_bytes()
    assert content[4:8] == bytes(4) and not content[3]  # no time, no name: the same text gives the same bytes
    return [line.split("\t") for line in gzip.decompress(content).decode("ascii").splitlines()]


@pytest.mark.slow
def test_books__embedded__are_prepared_without_a_site(tmp_path):
    cfg = books()
    manifest = prepare(cfg, data_folder(Site(), cfg), tmp_path / "out", progress=False)
    assert manifest.classes == ["austen", "eliot"]
    for split, each in (("train", 2000), ("val", 500)):
        found = manifest.splits[split]
        assert (found.count, found.model_extra["per_class_min"], found.model_extra["per_class_max"]) == (
            2 * each,
            each,
            each,
        )
    inputs, label = seen(cfg, data_folder(Site(), cfg), "val", tmp_path / "out")[0]
    assert inputs["ids"].shape == (32,) and inputs["ids"].max() < 2000 and label == 0
    assert open_split(cfg, data_folder(Site(), cfg), "val").name(999) == "val/00999-eliot-23"


def test_books__passages__are_30_words_of_chapters_that_are_in_one_split():
    train, val = rows("train"), rows("val")
    assert {len(text.split()) for *_, text in train + val} == {30}
    chapters = [{(author, chapter) for author, chapter, _ in part} for part in (train, val)]
    assert not chapters[0] & chapters[1]
    assert len({text for *_, text in train + val}) == 5000
    words = " ".join(text for *_, text in train + val)
    for word in ("Gutenberg", "CHAPTER", "VOLUME", "eBook", "BOOK"):
        assert word not in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (gzip.compress(b"austen\t1\tone\neliot\t1\n"), "found 1 lines, the first of them line 2"),
        (gzip.compress(b"bronte\t1\tone\n"), "authors are austen, eliot"),
        (gzip.compress(b"austen\t1\tone\n" * 99)[:-9], "val.txt.gz: truncated or damaged gzip file"),
        (b"austen\t1\tone\n", "val.txt.gz: truncated or damaged gzip file"),
        (gzip.compress("austen\t1\tcaf\u00e9\n".encode("latin-1")), "val.txt.gz: "),
        (None, "val.txt.gz: not found"),
    ],
    ids=["short line", "another author", "truncated", "not compressed", "latin-1", "missing"],
)
def test_books__damaged__are_named(tmp_path, content, text):
    folder = shutil.copytree(kind_of(books()).default_folder(), tmp_path / "books")
    (folder / "val.txt.gz").unlink()
    if content is not None:
        (folder / "val.txt.gz").write_bytes(content)
    assert text in refusal(books(), folder)


# Development data


@pytest.mark.slow
@pytest.mark.data
def test_imdb__development_set__labels_agree_with_the_ratings_in_the_file_names(tmp_path):
    folder = development_set("imdb-3k", tmp_path / "data")
    cfg = text_config("imdb", num_train=2000, num_val=1000, vocab_size=5000, length=128)
    manifest = prepare(cfg, folder, tmp_path / "out", progress=False)
    assert manifest.splits["val"].model_extra["per_class_min"] == 500
    for split in ("train", "val"):
        samples = open_split(cfg, folder, split, tmp_path / "out")
        ratings = [int(samples.name(index).split("_")[-1].removesuffix(".txt")) for index in range(len(samples))]
        assert [int(rating >= 7) for rating in ratings] == samples.labels
        assert set(ratings) <= {1, 2, 3, 4, 7, 8, 9, 10}
    inputs = [inputs for inputs, _ in seen(cfg, folder, "val", tmp_path / "out")]
    ids, mask = (torch.stack([each[key] for each in inputs]) for key in ("ids", "mask"))
    assert 0.9 < (ids[mask] != 1).float().mean() < 1  # few of their words are not among the 5,000


@pytest.mark.slow
@pytest.mark.data
def test_snli__development_set__is_read_as_published(tmp_path):
    """The test file is a part of the published one: 1,277 lines, 23 of them without a label. Its dev is train here."""
    folder = development_set("snli-sample", tmp_path / "data")
    folder.chmod(0o755)
    (folder / "snli_1.0_dev.jsonl").rename(folder / "snli_1.0_train.jsonl")
    lines = [json.loads(line) for line in (folder / "snli_1.0_test.jsonl").open(encoding="utf-8")]
    labels = [line["gold_label"] for line in lines]
    assert (len(labels), labels.count("-")) == (1277, 23)
    cfg = text_config("snli", num_train=1273, num_val=1254, vocab_size=3000, length=64)
    manifest = prepare(cfg, folder, tmp_path / "out", progress=False)
    assert manifest.classes == ["entailment", "neutral", "contradiction"]
    val = open_split(cfg, folder, "val", tmp_path / "out")
    assert [manifest.classes[label] for label in val.labels] == [label for label in labels if label != "-"]
