"""Tokenizers: words of a train split, files of the tokenizers library, special tokens, and how long texts are cut."""

import hashlib
import random

import pytest
from texts import write_tokenizer

from pipeline.core.errors import DataError
from pipeline.data.text.tokens import (
    CLS,
    EOS,
    MASK,
    PAD,
    SEP,
    UNK,
    TokenizerFile,
    Vocabulary,
    Words,
    count_words,
    read_vocabulary,
    split_words,
)

TEXTS = ["The cat sat.", "the CAT; a dog", "a cat?"]
ORDER = ["cat", "a", "the", ".", ";", "?", "dog", "sat"]  # 3, 2, 2, then 1 each: punctuation is before letters


def words(size=100):
    return Words("words", count_words("words", TEXTS), size)


def test_special_ids__are_the_documented_ones():
    assert (PAD, UNK, CLS, SEP, MASK, EOS) == (0, 1, 2, 3, 4, 5)


def test_words__of_a_text__are_lower_case_with_punctuation_split_off():
    assert " ".join(split_words("It's Mr. O'Brien--at 5 o'clock!")) == "it ' s mr . o ' brien - - at 5 o ' clock !"
    assert split_words("Caf\u00e9\n na\u00efve") == ["caf\u00e9", "na\u00efve"]


def test_vocabulary__of_texts__has_the_most_frequent_words_first_and_equal_ones_by_alphabet():
    assert [word for word, _ in count_words("words", TEXTS).counts] == ORDER
    assert count_words("words", reversed(TEXTS)) == count_words("words", TEXTS)
    assert dict(count_words("spaces", TEXTS).counts) == {
        **{"The": 1, "cat": 1, "sat.": 1, "the": 1, "CAT;": 1},
        **{"a": 2, "dog": 1, "cat?": 1},
    }


def test_encode__one_text__is_cls_words_sep():
    ids = {word: 6 + number for number, word in enumerate(ORDER)}
    found = words().encode(["A bird sat"], 16)
    assert found.ids == [CLS, ids["a"], UNK, ids["sat"], SEP]
    assert found.types == [0] * 5


def test_encode__pair__has_types_one_for_the_second_text_and_its_sep():
    found = words().encode(["the cat", "a dog ?"], 16)
    assert [found.ids[0], found.ids[3], found.ids[7]] == [CLS, SEP, SEP]
    assert found.types == [0, 0, 0, 0, 1, 1, 1, 1]


def test_encode__words_beyond_the_vocabulary__are_unknown():
    tokenizer = words(size=8)
    assert tokenizer.size == 8
    assert tokenizer.encode(["cat a the"], 16).ids == [CLS, 6, 7, UNK, SEP]


def test_encode__names_of_special_tokens_in_a_text__are_no_special_tokens():
    tokenizer = Words("spaces", count_words("spaces", ["<pad> <cls> <sep> <mask> <unk> <eos>"]), 20)
    assert tokenizer.encode(["<pad> <cls> <sep> <mask> <unk>"], 16).ids == [CLS, UNK, UNK, UNK, UNK, UNK, SEP]
    assert split_words("a <unk> <eos> <pad>") == ["a", "<unk>", "<eos>", "<", "pad", ">"]


def test_encode_line__ends_in_its_end_and_has_no_other_special_tokens():
    tokenizer = Words("spaces", count_words("spaces", ["a b <eos>", " <eos>"]), 20)
    assert tokenizer.encode_line("a c b") == [6, UNK, 7, 5]
    assert tokenizer.encode_line("") == [5]


def test_vocabulary__written_and_read__is_the_same_and_so_is_its_digest(tmp_path):
    odd = "a\u2028b\x0cc caf\u00e9 \u0085x"  # some of them end a line for `splitlines`
    vocabulary = count_words("words", [*TEXTS, odd])
    (tmp_path / "list").write_text(vocabulary.written(), encoding="utf-8")
    assert read_vocabulary(tmp_path / "list") == vocabulary
    assert Words("words", vocabulary, 9).digest == Words("words", vocabulary, 12).digest
    assert Words("words", vocabulary, 9).digest != words().digest
    assert Words("words", Vocabulary(()), 9).digest != Words("spaces", Vocabulary(()), 9).digest


@pytest.mark.parametrize("length", [4, 5, 6, 9, 12, 30])
def test_encode__texts_of_any_lengths__are_cut_as_the_library_cuts_them(tmp_path, length):
    """The same words in a file of the library: an independent way to the same ids."""
    ours, library = words(), TokenizerFile(write_tokenizer(tmp_path / "tokenizer.json", ORDER))
    rng = random.Random(0)
    for _ in range(200):
        texts = [" ".join(rng.choices(["cat", "a", "the", "bird"], k=rng.randint(0, 12))) for _ in range(2)]
        pair = texts[: rng.randint(1, 2)]
        found = ours.encode(pair, length)
        assert found == library.encode(pair, length), pair
        assert len(found.ids) <= length and found.ids[-1] == SEP


def test_tokenizer_file__after_it_has_cut_texts__does_not_cut_lines(tmp_path):
    tokenizer = TokenizerFile(write_tokenizer(tmp_path / "tokenizer.json", ORDER))
    assert len(tokenizer.encode(["a cat " * 20], 6).ids) == 6
    assert tokenizer.encode_line("a cat " * 20) == [7, 6] * 20
    assert len(tokenizer.encode(["a cat " * 20], 6).ids) == 6


def test_tokenizer_file__knows_its_size_and_its_content(tmp_path):
    path = write_tokenizer(tmp_path / "tokenizer.json", ORDER)
    tokenizer = TokenizerFile(path)
    assert tokenizer.size == 6 + len(ORDER)
    assert tokenizer.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe\x00", b"[1, 2]", b'{"version": "1.0"'], ids=str)
def test_tokenizer_file__that_is_none__is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: found .*expected a file of the tokenizers library"):
        TokenizerFile(tmp_path / "tokenizer.json")


def test_tokenizer_file__missing__is_named(tmp_path):
    with pytest.raises(DataError, match=rf"^gpt2/tokenizer\.json: not found in {tmp_path};"):
        TokenizerFile(tmp_path / "gpt2" / "tokenizer.json")
