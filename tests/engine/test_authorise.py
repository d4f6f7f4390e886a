"""`key`, `lock`, `unlock`, `infer` by command, on checkpoints as timm and transformers write them."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pipeline.cli import main
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import read_key

TIMM = "test_vit"  # the smallest ViT of timm: width 64, 6 blocks, 2 heads


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    path = tmp_path / "site.yaml"
    path.write_text("device: cpu\nthreads: 1\n")
    monkeypatch.setenv("PATCHWORK_SITE", str(path))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Files as they are published, by family."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = timm.create_model(TIMM, num_classes=7)
    with torch.no_grad():
        model.head.weight.normal_(std=0.5)
    save_file(model.state_dict(), folder / "vit.safetensors", {"format": "pt", "author": "somebody"})
    return {"vit": folder / "vit.safetensors"} | written_by_transformers(folder)


def written_by_transformers(folder):
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 96}
    bert = BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=16)
    gpt2 = GPT2Config(vocab_size=60, n_embd=48, n_layer=3, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)
    BertForSequenceClassification(bert).save_pretrained(folder / "bert")
    GPT2LMHeadModel(gpt2).to(torch.bfloat16).save_pretrained(folder / "gpt2")
    return {name: folder / name / "model.safetensors" for name in ("bert", "gpt2")}


@pytest.fixture
def photograph(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (200, 180, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def make_key(model, path, *more):
    heads = ["--model", TIMM] if model.name == "vit.safetensors" else []
    assert main(["key", "new", "--like", str(model), "--out", str(path), *heads, *more]) == 0
    return path


def lock(model, key, out):
    return main(["lock", str(model), "--key", str(key), "--out", str(out)])


def unlock(model, key, out):
    return main(["unlock", str(model), "--key", str(key), "--out", str(out)])


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("kind", ["independent", "shared", "released"])
@pytest.mark.parametrize("family", ["vit", "bert", "gpt2"])
def test_model__locked_and_unlocked__is_the_same_file_byte_for_byte(checkpoints, tmp_path, family, kind):
    key = make_key(checkpoints[family], tmp_path / "mine.key", "--kind", kind)
    assert lock(checkpoints[family], key, tmp_path / "locked.safetensors") == 0
    assert unlock(tmp_path / "locked.safetensors", key, tmp_path / "back.safetensors") == 0
    assert (tmp_path / "back.safetensors").read_bytes() == checkpoints[family].read_bytes()
    there, before = load_file(tmp_path / "locked.safetensors"), load_file(checkpoints[family])
    assert {name: value.shape for name, value in there.items()} == {name: value.shape for name, value in before.items()}
    # Untrained vectors are zeros or ones, which no permutation changes.
    changed = {name for name in before if not torch.equal(there[name], before[name])}
    inside = (".blocks.", ".layer.", ".h.")
    assert changed == {
        name for name, value in before.items() if value.ndim == 2 and any(x in f".{name}" for x in inside)
    }


@pytest.fixture
def in_parts(tmp_path):
    """A model that transformers saves in several files, with their index."""
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 96}
    model = BertModel(BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=16))
    model.save_pretrained(tmp_path / "bert", max_shard_size="100KB")
    return tmp_path / "bert" / "model.safetensors.index.json"


def test_model__in_several_files__is_locked_and_unlocked_as_a_folder(in_parts, tmp_path):
    key = make_key(in_parts, tmp_path / "mine.key")
    assert lock(in_parts, key, tmp_path / "locked") == 0
    assert unlock(tmp_path / "locked" / in_parts.name, key, tmp_path / "back") == 0
    parts, locked = files_in(tmp_path / "back"), files_in(tmp_path / "locked")
    originals = {name: content for name, content in files_in(in_parts.parent).items() if name != "config.json"}
    assert len(parts) > 3 and parts == originals and locked.keys() == parts.keys()
    assert [name for name in parts if locked[name] == parts[name]] == [in_parts.name]


def test_model__of_which_one_file_is_damaged__is_not_unlocked(in_parts, tmp_path, capsys):
    key = make_key(in_parts, tmp_path / "mine.key")
    lock(in_parts, key, tmp_path / "locked")
    last = sorted((tmp_path / "locked").glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\xff")
    assert unlock(tmp_path / "locked" / in_parts.name, key, tmp_path / "back") == 1
    assert "damaged" in capsys.readouterr().err and not (tmp_path / "back").exists()


def test_index__that_leads_out_of_its_folder__is_refused(in_parts, tmp_path, capsys):
    index = json.loads(in_parts.read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "../secret.safetensors"
    in_parts.write_text(json.dumps(index))
    assert main(["key", "new", "--like", str(in_parts), "--out", str(tmp_path / "mine.key")]) == 1
    assert "own folder" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


def test_model__of_which_one_file_is_missing__is_refused(in_parts, tmp_path, capsys):
    key = make_key(in_parts, tmp_path / "mine.key")
    sorted(in_parts.parent.glob("*.safetensors"))[0].unlink()
    assert lock(in_parts, key, tmp_path / "locked") == 1
    assert "not found" in capsys.readouterr().err and not (tmp_path / "locked").exists()


def test_locked_vit__in_timm_with_its_key__answers_as_the_original(checkpoints, tmp_path):
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    lock(checkpoints["vit"], key, tmp_path / "locked.safetensors")
    images, found = torch.randn(2, 3, 160, 160), {}
    for name, path in (("plain", checkpoints["vit"]), ("locked", tmp_path / "locked.safetensors")):
        model = timm.create_model(TIMM, num_classes=7).eval()
        model.load_state_dict(load_file(path))
        with torch.no_grad():
            found[name] = model(images)
            if name == "locked":
                with permuted(model, read_key(key)):
                    found["with key"] = model(images)
    assert torch.allclose(found["with key"], found["plain"], atol=1e-5)
    assert not torch.allclose(found["locked"], found["plain"], atol=0.1)


def test_lock__when_it_is_done__says_fingerprint_key_space_and_limits_and_never_the_key(checkpoints, tmp_path, capsys):
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    lock(checkpoints["vit"], key, tmp_path / "locked.safetensors")
    said, found = capsys.readouterr(), read_key(key)
    text = said.out + said.err
    assert found.fingerprint() in text and f"2^{found.bits():,.0f}" in text and "does not protect" in text
    residual = ", ".join(map(str, found.residual[:6].tolist()))
    assert residual not in text
    with safe_open(tmp_path / "locked.safetensors", "pt") as file:
        assert file.metadata()["patchwork.lock.fingerprint"] == found.fingerprint()
        assert residual not in str(file.metadata())
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_infer__of_a_locked_vit__gives_the_probabilities_of_the_original(checkpoints, tmp_path, photograph, capsys):
    from timm.data import create_transform, resolve_data_config

    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    lock(checkpoints["vit"], key, tmp_path / "locked.safetensors")
    capsys.readouterr()
    command = ["infer", str(tmp_path / "locked.safetensors"), "--key", str(key), "--image", str(photograph)]
    assert main([*command, "--model", TIMM]) == 0
    said = capsys.readouterr().out.splitlines()
    model = timm.create_model(TIMM, num_classes=7).eval()
    model.load_state_dict(load_file(checkpoints["vit"]))
    view = create_transform(**resolve_data_config(model=model))
    with torch.no_grad():
        expected = model(view(Image.open(photograph))[None]).softmax(1)[0].sort(descending=True)
    lines = zip(expected.values[:5].tolist(), expected.indices[:5].tolist(), strict=True)
    assert said == [f"{value:8.2%}  class {label}" for value, label in lines]


def write_tokenizer(folder, **special):
    """One word for each number, as a tokenizer of transformers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {name: place for place, name in enumerate(["[UNK]", "[MASK]", "[PAD]", *(f"w{n}" for n in range(57))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def text_models():
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96}
    bert = BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=16, initializer_range=0.5)
    gpt2 = GPT2Config(vocab_size=60, n_embd=48, n_layer=2, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)
    gpt2.initializer_range = 0.5
    return {"mask": BertForMaskedLM(bert), "next": GPT2LMHeadModel(gpt2), "class": BertForSequenceClassification(bert)}


@pytest.mark.parametrize(("what", "place"), [("mask", 1), ("next", 3), ("class", None)])
def test_infer__of_a_locked_language_model__answers_as_the_original(tmp_path, capsys, what, place):
    torch.manual_seed(0)
    model = text_models()[what].eval()
    model.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model", mask_token="[MASK]", unk_token="[UNK]", pad_token="[PAD]")
    key, locked = (
        make_key(tmp_path / "model/model.safetensors", tmp_path / "mine.key"),
        tmp_path / "model/locked.safetensors",
    )
    assert lock(tmp_path / "model/model.safetensors", key, locked) == 0
    capsys.readouterr()
    assert main(["infer", str(locked), "--key", str(key), "--text", "w3 [MASK] w9 w14"]) == 0
    with torch.no_grad():
        logits = model(torch.tensor([[6, 1, 12, 17]])).logits[0]
    expected = (logits if place is None else logits[place]).softmax(0).sort(descending=True)
    said = capsys.readouterr().out.split("\n")[:-1]
    assert [line.split("%")[0].strip() for line in said] == [f"{100 * value:.2f}" for value in expected.values[:5]]
    words = ["[UNK]", "[MASK]", "[PAD]", *(f"w{n}" for n in range(57))]
    names = [f"LABEL_{n}" if place is None else repr(words[n]) for n in expected.indices[:5].tolist()]
    assert [line.split()[1] for line in said] == names


def test_infer__of_a_text_without_a_mask__says_what_it_needs(tmp_path, capsys):
    text_models()["mask"].save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model", mask_token="[MASK]", unk_token="[UNK]", pad_token="[PAD]")
    key, locked = (
        make_key(tmp_path / "model/model.safetensors", tmp_path / "mine.key"),
        tmp_path / "model/locked.safetensors",
    )
    lock(tmp_path / "model/model.safetensors", key, locked)
    assert main(["infer", str(locked), "--key", str(key), "--text", "w3 w4"]) == 1
    assert "[MASK]" in capsys.readouterr().err


def test_infer__of_a_text_beside_which_no_config_lies__is_refused(checkpoints, tmp_path, capsys):
    key = make_key(checkpoints["gpt2"], tmp_path / "mine.key")
    lock(checkpoints["gpt2"], key, tmp_path / "locked.safetensors")
    assert main(["infer", str(tmp_path / "locked.safetensors"), "--key", str(key), "--text", "w3"]) == 1
    assert "config.json" in capsys.readouterr().err


# What is refused, with one message and nothing written


@pytest.fixture
def ready(checkpoints, tmp_path):
    """A model, its key and its locked file."""
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    assert lock(checkpoints["vit"], key, tmp_path / "locked.safetensors") == 0
    return checkpoints["vit"], key, tmp_path / "locked.safetensors"


def wrong_key(model, key, locked, folder):
    return ["unlock", locked, "--key", make_key(model, folder / "other.key")], "was locked with the key"


def not_a_key(model, key, locked, folder):
    (folder / "other.key").write_bytes(b"nothing of the kind")
    (folder / "other.key").chmod(0o600)
    return ["unlock", locked, "--key", folder / "other.key"], "not a key"


def readable_key(model, key, locked, folder):
    key.chmod(0o644)
    return ["lock", model, "--key", key], "chmod 600"


def missing_key(model, key, locked, folder):
    return ["lock", model, "--key", folder / "none.key"], "not found"


def key_of_another_model(model, key, locked, folder):
    return ["lock", model.parent / "bert" / "model.safetensors", "--key", key], "use the key of this model"


def key_of_another_width(model, key, locked, folder):
    state = timm.create_model(TIMM, embed_dim=32, num_classes=7).state_dict()
    save_file(state, folder / "narrow.safetensors")
    return ["lock", folder / "narrow.safetensors", "--key", key], "width 32"


def damaged_data(model, key, locked, folder):
    content = bytearray(locked.read_bytes())
    content[-1] ^= 1
    locked.write_bytes(content)
    return ["unlock", locked, "--key", key], "damaged"


def cut_short(model, key, locked, folder):
    locked.write_bytes(locked.read_bytes()[:-100])
    return ["unlock", locked, "--key", key], "damaged"


def not_locked(model, key, locked, folder):
    return ["unlock", model, "--key", key], "is not locked"


def locked_twice(model, key, locked, folder):
    return ["lock", locked, "--key", key], "is locked already"


def a_pickle(model, key, locked, folder):
    torch.save({"blocks.0.attn.qkv.weight": torch.ones(3)}, folder / "model.pth")
    return ["lock", folder / "model.pth", "--key", key], "is a pickle"


def a_page(model, key, locked, folder):
    (folder / "page.safetensors").write_text("<html>not found</html>" * 10)
    return ["lock", folder / "page.safetensors", "--key", key], "not safetensors"


def an_empty_file(model, key, locked, folder):
    (folder / "empty.safetensors").touch()
    return ["lock", folder / "empty.safetensors", "--key", key], "not safetensors"


def a_foreign_model(model, key, locked, folder):
    save_file(timm.create_model("test_resnet").state_dict(), folder / "resnet.safetensors")
    return ["lock", folder / "resnet.safetensors", "--key", key], "expected the weights of a ViT"


def an_unknown_parameter(model, key, locked, folder):
    save_file(load_file(model) | {"blocks.0.attn.extra": torch.ones(64)}, folder / "extra.safetensors")
    return ["lock", folder / "extra.safetensors", "--key", key], "blocks.0.attn.extra"


def a_missing_block(model, key, locked, folder):
    state = {name: value for name, value in load_file(model).items() if not name.startswith("blocks.2.")}
    save_file(state, folder / "gap.safetensors")
    return ["lock", folder / "gap.safetensors", "--key", key], "no block 2"


def a_folder(model, key, locked, folder):
    return ["lock", model.parent, "--key", key], "is a folder"


REFUSED = [wrong_key, not_a_key, readable_key, missing_key, key_of_another_model, key_of_another_width, damaged_data]
REFUSED += [cut_short, not_locked, locked_twice, a_pickle, a_page, an_empty_file, a_foreign_model, a_missing_block]
REFUSED += [an_unknown_parameter, a_folder]


@pytest.mark.parametrize("case", REFUSED)
def test_locking__of_what_is_wrong__is_refused_with_one_message_and_nothing_is_written(ready, tmp_path, capsys, case):
    command, words = case(*ready, tmp_path)
    before = files_in(tmp_path)
    capsys.readouterr()
    assert main([*map(str, command), "--out", str(tmp_path / "out.safetensors")]) == 1
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out
    assert files_in(tmp_path) == before


def test_lock__over_an_existing_file__is_refused(ready, tmp_path, capsys):
    model, key, locked = ready
    before = files_in(tmp_path)
    assert lock(model, key, locked) == 1 and unlock(locked, key, locked) == 1
    assert "never overwritten" in capsys.readouterr().err and files_in(tmp_path) == before


def test_infer__with_a_wrong_key__is_refused(ready, tmp_path, photograph, capsys):
    model, _, locked = ready
    other = make_key(model, tmp_path / "other.key")
    assert main(["infer", str(locked), "--key", str(other), "--image", str(photograph), "--model", TIMM]) == 1
    assert "was locked with the key" in capsys.readouterr().err


def test_key__for_a_file_that_does_not_tell_its_heads__asks_for_them(checkpoints, tmp_path, capsys):
    assert main(["key", "new", "--like", str(checkpoints["vit"]), "--out", str(tmp_path / "mine.key")]) == 1
    assert "--heads" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


def test_key__with_a_number_of_heads_that_does_not_divide__is_refused(checkpoints, tmp_path, capsys):
    command = ["key", "new", "--like", str(checkpoints["vit"]), "--out", str(tmp_path / "mine.key"), "--heads", "5"]
    assert main(command) == 1
    assert "do not divide" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


def test_key__for_a_checkpoint_of_timms_hub__takes_the_heads_from_its_config(checkpoints, tmp_path):
    model = tmp_path / "model.safetensors"
    model.write_bytes(checkpoints["vit"].read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"architecture": TIMM, "num_classes": 7}))
    assert main(["key", "new", "--like", str(model), "--out", str(tmp_path / "mine.key")]) == 0
    assert read_key(tmp_path / "mine.key").shape.num_heads == 2


def test_key__with_other_heads_than_the_config_says__does_not_lock(checkpoints, tmp_path, capsys):
    key = make_key(checkpoints["bert"], tmp_path / "mine.key", "--heads", "8")
    assert lock(checkpoints["bert"], key, tmp_path / "locked.safetensors") == 1
    assert "has 4 heads" in capsys.readouterr().err


def test_lock__killed_while_it_writes__leaves_no_file_of_that_name(ready, tmp_path, monkeypatch):
    from pipeline.permutation import weight_files

    model, key, _ = ready
    monkeypatch.setattr(weight_files.WeightFile, "pieces", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = files_in(tmp_path)
    assert lock(model, key, tmp_path / "out.safetensors") == 75
    assert files_in(tmp_path) == before


# The attack


@pytest.mark.parametrize("kind", ["independent", "shared", "released"])
@pytest.mark.parametrize("family", ["vit", "bert", "gpt2"])
def test_recover__with_the_original_weights__finds_the_key(checkpoints, tmp_path, capsys, family, kind):
    key = make_key(checkpoints[family], tmp_path / "mine.key", "--kind", kind)
    lock(checkpoints[family], key, tmp_path / "locked.safetensors")
    heads = ["--model", TIMM] if family == "vit" else []
    command = ["key", "recover", "--like", str(checkpoints[family]), "--locked", str(tmp_path / "locked.safetensors")]
    assert main([*command, *heads, "--out", str(tmp_path / "found.key")]) == 0
    assert read_key(tmp_path / "found.key").fingerprint() == read_key(key).fingerprint()
    said = capsys.readouterr().out
    assert "bit for bit" in said and "it is the key that the file names" in said
    assert unlock(tmp_path / "locked.safetensors", tmp_path / "found.key", tmp_path / "back.safetensors") == 0


def test_recover__from_a_locked_model_that_was_trained_further__finds_the_key_nevertheless(
    checkpoints, tmp_path, capsys
):
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    lock(checkpoints["vit"], key, tmp_path / "locked.safetensors")
    generator = torch.Generator().manual_seed(0)
    weights = load_file(tmp_path / "locked.safetensors")
    moved = {
        name: value + 0.5 * value.std() * torch.randn(value.shape, generator=generator)
        for name, value in weights.items()
    }
    save_file(moved, tmp_path / "tuned.safetensors")
    command = ["key", "recover", "--like", str(checkpoints["vit"]), "--locked", str(tmp_path / "tuned.safetensors")]
    assert main([*command, "--model", TIMM, "--out", str(tmp_path / "found.key")]) == 0
    assert "only nearly" in capsys.readouterr().out
    assert read_key(tmp_path / "found.key").fingerprint() == read_key(key).fingerprint()


def test_recover__with_another_original__does_not_find_the_key(checkpoints, tmp_path, capsys):
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    lock(checkpoints["vit"], key, tmp_path / "locked.safetensors")
    torch.manual_seed(1)
    save_file(timm.create_model(TIMM, num_classes=7).state_dict(), tmp_path / "other.safetensors")
    command = ["key", "recover", "--like", str(tmp_path / "other.safetensors"), "--locked"]
    assert main([*command, str(tmp_path / "locked.safetensors"), "--model", TIMM]) == 0
    assert "it is not the key" in capsys.readouterr().out


# Size


MEASURED = """
import resource, sys
from pathlib import Path
from pipeline.permutation.authorise import lock
from pipeline.permutation.keys import read_key
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lock(Path(sys.argv[1]), read_key(Path(sys.argv[2])), Path(sys.argv[3]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
def test_lock__of_a_large_file__takes_the_memory_of_a_few_tensors(tmp_path):
    model = tmp_path / "large.safetensors"
    state = timm.create_model("vit_small_patch16_224", depth=24).state_dict()
    save_file(state, model)
    key = tmp_path / "mine.key"
    assert main(["key", "new", "--like", str(model), "--heads", "6", "--out", str(key)]) == 0
    command = [sys.executable, "-c", MEASURED, str(model), str(key), str(tmp_path / "locked.safetensors")]
    used = int(subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout)
    assert model.stat().st_size > 160e6 and used < 40e6
