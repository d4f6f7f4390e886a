"""Running text: the windows of a stream, which tokens are scored, WikiText-2 as published, and damaged copies of it."""

import numpy as np
import pytest
import torch
from layouts import message_of
from texts import WIKITEXT_COUNTS, development_set, text_config, write_tokenizer, write_wikitext

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.loader import eval_loader
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.data.text.language import Windows
from pipeline.data.text.tokens import EOS
from pipeline.site import Site, data_folder


def wikitext(**changes):
    return text_config("wikitext2", **WIKITEXT_COUNTS | changes)


def refusal(cfg, folder):
    return message_of(prepare, cfg, folder, folder / "out", progress=False)


# Windows


def windows(split, count, length, stride):
    return Windows(split, np.arange(100, 100 + count, dtype="<i4"), length, stride, None)


def by_the_usual_rule(count, length, stride):
    """(begin, end, first scored token) of each window, as perplexities of fixed-length models are usually computed."""
    found, known = [], 0
    for begin in range(0, count, stride):
        end = min(begin + length, count)
        found.append((begin, end, known))
        known = end
        if end == count:
            break
    return found


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("count", [2, 5, 8, 9, 10, 16, 17, 23, 24, 25, 64])
def test_windows__of_validation__are_those_of_the_usual_rule(count, stride):
    found, expected = windows("val", count, 8, stride), by_the_usual_rule(count, 8, stride)
    assert len(found) == len(expected)
    for index, (begin, end, known) in enumerate(expected):
        ids, scored = found[index]
        assert ids.tolist() == [*range(100 + begin, 100 + end)]
        # The first token of a window is predicted from nothing.
        assert scored.tolist() == [place >= known and place > begin for place in range(begin, end)]
        assert found.name(index) == f"val/{begin:08d}"


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_windows__that_overlap__score_every_token_but_the_first_once(stride):
    found = windows("val", 61, 8, stride)
    scored = np.concatenate([ids[is_scored] for ids, is_scored in (found[index] for index in range(len(found)))])
    assert scored.tolist() == [*range(101, 161)]


@pytest.mark.parametrize("count", [0, 7, 8, 15, 16, 31])
def test_windows__of_training__do_not_overlap_and_leave_out_the_rest(count):
    found = windows("train", count, 8, 2)
    assert len(found) == count // 8
    for index in range(len(found)):
        ids, scored = found[index]
        assert ids.tolist() == [*range(100 + 8 * index, 108 + 8 * index)]
        assert scored.tolist() == [False] + [True] * 7


@pytest.mark.parametrize("count", [0, 1])
def test_windows__of_a_stream_in_which_nothing_can_be_predicted__are_none(count):
    assert len(windows("val", count, 8, 2)) == 0


# WikiText-2


@pytest.mark.parametrize("place", [".", "wikitext-2"])
def test_wikitext__published_layout__is_a_stream_with_an_end_per_line(tmp_path, place):
    cfg = wikitext()
    write_wikitext(tmp_path, place)
    train, val = open_split(cfg, tmp_path, "train"), open_split(cfg, tmp_path, "val")
    assert (len(train.ids), len(val.ids)) == (18, 9)
    # The ends are the most frequent word, then = , a and cat, which occur twice; <unk> is the unknown word.
    end, equals, a, cat = 5, 6, 7, 8
    assert train.ids[:5].tolist()[:2] == [end, equals] and train.ids[5:9].tolist() == [end, a, 1, cat]
    assert val.ids.tolist() == [end, equals, 1, equals, end, a, cat, val.ids[7], end]


def test_wikitext__seen_by_a_model__is_padded_and_says_what_is_scored(tmp_path):
    cfg = wikitext()
    samples = open_split(cfg, write_wikitext(tmp_path), "val")
    inputs, targets = next(iter(eval_loader(samples, kind_of(cfg).eval_view(), 8, 0, 1, 0)))
    assert (inputs["ids"].dtype, inputs["mask"].dtype, targets["scored"].dtype) == (torch.int64, torch.bool, torch.bool)
    assert sorted(inputs) == ["ids", "mask"] and inputs["ids"].shape == (4, 4)
    assert inputs["ids"][3].tolist() == [*samples.ids[6:], 0]
    assert inputs["mask"].tolist() == [[True] * 4] * 3 + [[True] * 3 + [False]]
    assert targets["scored"].tolist() == [
        [False, True, True, True],
        [False, False, True, True],
        [False, False, True, True],
        [False, False, True, False],
    ]


def test_wikitext__with_a_tokenizer_file__is_encoded_line_by_line(tmp_path):
    write_wikitext(tmp_path)
    write_tokenizer(tmp_path / "tokenizer.json", ["=", "a", "cat", ","])
    cfg = wikitext(tokenizer="tokenizer.json", num_train=4, num_val=2)
    val = open_split(cfg, tmp_path, "val")
    assert val.ids.tolist() == [6, 1, 6, 7, 8, 9]  # this file knows no line breaks


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("wiki.train.tokens", None, "wiki.train.tokens not found in ., wikitext-2; expected it, of wikitext-2-v1.zip"),
        ("wiki.test.tokens", None, "wiki.test.tokens not found in ., wikitext-2"),
        (
            "wiki.test.tokens",
            b" = Other = \n a ca",
            "wiki.test.tokens: found no line break at its end: the file is cut off",
        ),
        ("wiki.test.tokens", b" caf\xe9 \n", "wiki.test.tokens: found bytes that are not UTF-8"),
        ("wiki.train.tokens", b" caf\xe9 \n", "wiki.train.tokens: found bytes that are not UTF-8"),
        ("wiki.test.tokens", b" a cat , \n", "val: found 1 windows, expected 4"),
        ("wiki.test.tokens", b"", "val: found 0 windows, expected 4"),
    ],
)
def test_wikitext__incomplete_or_damaged__is_named(tmp_path, name, content, text):
    path = write_wikitext(tmp_path) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    message = refusal(wikitext(), tmp_path)
    assert message.count(text) == 1
    assert "expected: 4 train and 4 val windows of 4 tokens" in message


@pytest.mark.slow
def test_prepare__of_a_stream__is_bound_to_its_windows_and_words(tmp_path):
    cfg, folder = wikitext(), write_wikitext(tmp_path / "data")
    first = prepare(cfg, folder, tmp_path / "out", workers=2, progress=False)
    opened = open_split(cfg, folder, "val", tmp_path / "out")
    assert [opened[index][0].tolist() for index in range(2)] == [opened.ids[:4].tolist(), opened.ids[2:6].tolist()]
    moved = prepare(cfg, write_wikitext(tmp_path / "moved"), tmp_path / "moved_out", progress=False)
    assert moved.fingerprint == first.fingerprint
    for changes in ({"vocab_size": 8}, {"length": 5, "stride": 2, "num_train": 3, "num_val": 3}):
        message = message_of(open_split, wikitext(**changes), folder, "val", tmp_path / "out")
        assert "val: found other tokens or labels than were verified" in message
    path = folder / "wiki.test.tokens"
    path.write_text(path.read_text().replace("a cat", "cat a"))
    message = message_of(open_split, cfg, folder, "val", tmp_path / "out")
    assert "does not hold the val windows that were verified" in message


# Configs


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stride": 5}, "stride 5 is more than length 4: tokens would be left out"),
        ({"mask_token": 50}, "mask_token 50 is no id below vocab_size 50"),
        ({"source": "imdb"}, "unknown source; valid: books, wikitext2"),
        ({"num_classes": 2}, "num_classes: unknown key"),
    ],
    ids=str,
)
def test_config__of_a_stream__says_what_is_wrong(changes, text):
    with pytest.raises(ConfigError) as caught:
        wikitext(**changes)
    assert text in str(caught.value)


# Field of a stream -> another value that changes its windows; the others are those of texts.
BITES = {
    "stride": {"stride": 4, "num_val": 3},
    "length": {"length": 5, "num_train": 3, "num_val": 3},
    "vocab_size": {"vocab_size": 8},
}


@pytest.mark.parametrize("field", BITES)
def test_config__field_of_a_stream_changed__changes_its_windows(tmp_path, field):
    write_wikitext(tmp_path)

    def windows_seen(cfg):
        samples = open_split(cfg, tmp_path, "val")
        return [tuple(map(tuple, samples[index])) for index in range(len(samples))]

    assert windows_seen(wikitext()) != windows_seen(wikitext(**BITES[field]))


@pytest.mark.slow
def test_books_stream__embedded__is_the_text_of_the_passages(tmp_path):
    configs = [read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"] for name in ("books", "books_stream")]
    passages, stream = (parse_data(Layers(("test", merge(content, {"vocab_size": 20_000})))) for content in configs)
    folder = data_folder(Site(), stream)
    prepare(stream, folder, tmp_path / "out", progress=False)
    text = open_split(passages, folder, "val")
    of_passages = [word for number in range(len(text)) for word in text.tokenizer.split(*text.texts(number))]
    val = open_split(stream, folder, "val", tmp_path / "out")
    ends = [number for number in val.ids.tolist() if number == val.tokenizer.encode_line("")[0]]
    assert len(ends) == 10  # chapters
    assert len(val.ids) == len(of_passages) + len(ends)
    # A classifier that starts from a language model finds each word where it was.
    assert [number for number in val.ids.tolist() if number != EOS] == [
        number for index in range(len(text)) for number in text.tokenizer.encode_line(*text.texts(index))[:-1]
    ]


# Development data


@pytest.mark.slow
@pytest.mark.data
def test_wikitext__whole__has_the_published_numbers_of_tokens_and_words(tmp_path):
    folder = development_set("wikitext-2", tmp_path / "data")
    words = 33_278  # the published vocabulary, with <unk> and <eos>
    cfg = text_config(
        "wikitext2",
        **{"tokenizer": "spaces", "vocab_size": words + 4, "length": 1024, "stride": 512},
        **{"num_train": 2_088_628 // 1024, "num_val": 1 + -(-(245_569 - 1024) // 512)},
    )
    prepare(cfg, folder, tmp_path / "out", progress=False)
    train, val = (open_split(cfg, folder, split, tmp_path / "out") for split in ("train", "val"))
    assert (len(train.ids), len(val.ids)) == (2_088_628, 245_569)
    assert train.tokenizer.size == words + 4  # <unk> is one of the six special tokens, and so is <eos>
    assert (train.ids == 1).sum() == 54_625
    text = (folder / "wiki.test.tokens").read_text(encoding="utf-8")
    assert (val.ids == 1).sum() == text.split().count("<unk>")  # every other word of val occurs in train
