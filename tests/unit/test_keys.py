"""Keys: how they are drawn, how many there are, what their files let through, and that nothing shows them."""

import logging
import math
import os
import stat
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.core.errors import CheckpointError
from pipeline.permutation.keys import Key, Shape, inverse, new_key, read_key, write_key
from pipeline.permutation.new_files import new_file
from pipeline.permutation.rules import FAMILIES, family_of, permute_state

VIT_B = Shape("vit", 768, 12, 12, 768)
SMALL = Shape("vit", 24, 3, 4, 24)


def log2_factorial(number):
    return sum(math.log2(each) for each in range(2, number + 1))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("independent", log2_factorial(768) + 12 * (log2_factorial(12) + 12 * log2_factorial(64))),
        ("shared", log2_factorial(768) + 12 * (log2_factorial(12) + log2_factorial(64))),
        ("released", log2_factorial(12) + log2_factorial(64)),
    ],
)
def test_bits__of_a_kind_of_key__are_those_of_its_factorials(kind, expected):
    key = new_key(VIT_B, kind)
    assert key.bits() == pytest.approx(expected)
    assert key.residual_bits() == pytest.approx(expected if kind == "released" else log2_factorial(768))


def test_keys__drawn_twice__differ_in_everything_and_in_their_fingerprints():
    keys = [new_key(VIT_B) for _ in range(2)]
    assert all(not torch.equal(*(getattr(key, name) for key in keys)) for name in ("residual", "heads", "inner"))
    assert keys[0].fingerprint() != keys[1].fingerprint()
    assert not torch.equal(keys[0].inner[0, 0], keys[0].inner[0, 1])


@pytest.mark.slow
def test_permutations__of_three__are_drawn_equally_often():
    draws = [tuple(new_key(Shape("vit", 3, 1, 1, 3)).residual.tolist()) for _ in range(3000)]
    counts = [draws.count(each) for each in set(draws)]
    assert len(counts) == 6 and max(abs(count - 500) for count in counts) < 120  # 5.9 standard deviations


def test_attention__of_a_released_key__is_the_permutation_of_the_residual_stream_by_whole_heads():
    key = new_key(SMALL, "released", Random(0))
    assert all(torch.equal(key.attention(block), key.residual) for block in range(3))
    places = key.residual.view(4, 6)
    assert (places // 6 == places[:, :1] // 6).all() and (places % 6 == places[:1] % 6).all()


def test_inverse__of_an_index__undoes_it():
    index, values = new_key(SMALL).residual, torch.randn(24)
    assert torch.equal(values[index][inverse(index)], values)


def test_key__written_and_read__is_the_same_and_its_owners_only(tmp_path):
    key, path = new_key(SMALL), tmp_path / "mine.key"
    umask = os.umask(0)
    try:
        write_key(key, path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_key(path)
    assert found.fingerprint() == key.fingerprint() and found.shape == SMALL
    assert [each.name for each in tmp_path.iterdir()] == ["mine.key"]


def test_new_file__of_a_key__has_its_mode_before_the_first_byte(tmp_path):
    umask = os.umask(0)
    try:
        with new_file(tmp_path / "mine.key", mode=0o600):
            (temporary,) = tmp_path.iterdir()
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600 and not temporary.stat().st_size
    finally:
        os.umask(umask)


def test_new_file__when_the_block_fails__leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "mine.key") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_new_file__whose_name_another_process_took_meanwhile__does_not_overwrite_it(tmp_path):
    path = tmp_path / "mine.key"
    with pytest.raises(CheckpointError, match="never overwritten"), new_file(path) as file:
        file.write(b"ours")
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs" and len(list(tmp_path.iterdir())) == 1


def test_key__over_an_existing_one__is_refused(tmp_path):
    path = tmp_path / "mine.key"
    write_key(new_key(SMALL), path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="never overwritten"):
        write_key(new_key(SMALL), path)
    assert path.read_bytes() == before


def test_key__under_a_name_that_git_would_track__is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"\.key"):
        write_key(new_key(SMALL), tmp_path / "key.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602, 0o610, 0o601])
def test_key__that_others_may_read_or_write__is_refused(tmp_path, mode):
    path = tmp_path / "mine.key"
    write_key(new_key(SMALL), path)
    path.chmod(mode)
    with pytest.raises(CheckpointError, match="chmod 600"):
        read_key(path)


def twice_the_same_column(tensors):
    tensors["residual"][0] = tensors["residual"][1]


def another_shape(tensors):
    tensors["heads"] = tensors["heads"][:2]


def heads_not_alike(tensors):
    tensors["inner"][0, 0] = tensors["inner"][0, 0].flip(0)


@pytest.mark.parametrize("damage", [twice_the_same_column, another_shape, heads_not_alike])
def test_key__whose_numbers_are_no_permutations_of_its_kind__is_refused(tmp_path, damage):
    path = tmp_path / "mine.key"
    write_key(new_key(SMALL, "shared"), path)
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path, {"format": "patchwork-key-1", "family": "vit", "kind": "shared"})
    path.chmod(0o600)
    with pytest.raises(CheckpointError, match="damaged"):
        read_key(path)


@pytest.mark.parametrize("block", range(3))
def test_key__released__with_one_block_of_another_permutation__is_refused(tmp_path, block):
    key, path = new_key(SMALL, "released", Random(0)), tmp_path / "mine.key"
    key.heads[block] = key.heads[block].roll(1)
    write_key(key, path)
    with pytest.raises(CheckpointError, match="damaged"):
        read_key(path)


@pytest.mark.parametrize("content", [b"", b"no key at all", b"\x80\x04N."])
def test_key__from_a_file_of_something_else__is_refused(tmp_path, content):
    path = tmp_path / "mine.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(CheckpointError, match="not a key"):
        read_key(path)


def test_key__cut_short__is_refused(tmp_path):
    path = tmp_path / "mine.key"
    write_key(new_key(SMALL), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="not a key, or is damaged"):
        read_key(path)


def test_key__printed_or_logged__shows_its_fingerprint_only(caplog):
    key = new_key(SMALL)
    with caplog.at_level(logging.INFO):
        logging.info("%s %r", key, {"key": key})
    assert key.fingerprint() in caplog.text and "tensor" not in caplog.text
    assert not any(str(list(row))[1:-1] in caplog.text for row in key.heads.tolist())


def test_key__of_a_kind_that_does_not_fit__is_refused():
    with pytest.raises(CheckpointError, match="do not divide"):
        new_key(Shape("vit", 24, 1, 5, 24))
    with pytest.raises(CheckpointError, match="as wide"):
        new_key(Shape("vit", 24, 1, 4, 12), "released")


# Rules


def state_of(family):
    if family == "vit":
        return {"blocks.0.attn.qkv.weight": torch.randn(72, 24), "head.weight": torch.randn(2, 24)}
    return {"bert.encoder.layer.0.attention.self.query.weight": torch.randn(24, 24)}


@pytest.mark.parametrize(
    "name", ["blocks.0.attn.rope.freqs", "blocks.0.mixer.weight", "decoder.weight", "norms.weight"]
)
def test_rules__of_a_name_they_do_not_know__refuse_it(name):
    with pytest.raises(CheckpointError, match=name):
        permute_state(state_of("vit") | {name: torch.ones(24)}, new_key(SMALL))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape("vit", 32, 3, 4, 24), "the key fits"),
        (Shape("vit", 24, 3, 4, 32), "the key fits"),
    ],
)
def test_rules__with_a_key_of_another_width__refuse_it(shape, words):
    with pytest.raises(CheckpointError, match=words):
        permute_state(state_of("vit"), new_key(shape))


def test_rules__with_a_key_of_fewer_blocks__refuse_it():
    with pytest.raises(CheckpointError, match="for 3 blocks"):
        permute_state({"blocks.3.norm1.weight": torch.ones(24)}, new_key(SMALL))


def test_rules__where_heads_share_a_norm_of_queries__refuse_heads_that_are_not_alike():
    with pytest.raises(CheckpointError, match="kind shared"):
        permute_state({"blocks.0.attn.q_norm.weight": torch.ones(6)}, new_key(SMALL))


@pytest.mark.parametrize("family", ["vit", "bert"])
def test_family__of_the_names_of_a_model__is_told(family):
    assert family_of(state_of(family)) == family


def test_family__of_something_else__is_refused():
    with pytest.raises(CheckpointError, match="expected the weights of a ViT"):
        family_of(["layers.0.blocks.0.attn.qkv.weight", "fc.weight"])


def test_rules__of_every_family__have_one_entry_per_side():
    for known in FAMILIES.values():
        assert all(len(rule) == 1 for name, rule in known.rules.items() if name.endswith(".bias") and rule)


def test_rules__of_buffers_in_old_files_of_gpt2__leave_them_as_they_are():
    key = new_key(Shape("gpt2", 24, 1, 4, 24), source=Random(0))
    buffers = {
        "h.0.attn.bias": torch.ones(24, 24).tril()[None, None],
        "h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    found = permute_state(buffers, key)
    assert all(torch.equal(found[name], value) for name, value in buffers.items())


@pytest.mark.parametrize("name", ["residual", "heads", "inner"])
def test_fingerprint__of_a_key_with_one_permutation_changed__is_another(name):
    key = new_key(SMALL, source=Random(0))
    parts = {each: getattr(key, each) for each in ("residual", "heads", "inner")}
    parts[name] = parts[name].flip(-1)
    assert Key("vit", "independent", **parts).fingerprint() != key.fingerprint()


def test_key__compared_with_another__is_told_apart_by_fingerprint_of_its_kind():
    one = new_key(SMALL, "shared", Random(0))
    assert Key("vit", "independent", one.residual, one.heads, one.inner).fingerprint() != one.fingerprint()
