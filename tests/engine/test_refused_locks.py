"""What `key`, `lock` and `unlock` refuse, with one message and nothing written."""

import json

import pytest
import timm
import torch
from locked_models import TIMM, files_in, lock, make_key, unlock
from safetensors.torch import load_file, save_file

from pipeline.cli import main
from pipeline.permutation.keys import read_key

pytestmark = pytest.mark.usefixtures("cpu_site")


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


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_locking__of_what_is_wrong__is_refused_with_one_message_and_nothing_is_written(ready, tmp_path, capsys, case):
    command, words = case(*ready, tmp_path)
    before = files_in(tmp_path)
    capsys.readouterr()
    assert main([*map(str, command), "--out", str(tmp_path / "out.safetensors")]) == 1
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out
    assert files_in(tmp_path) == before


@pytest.mark.slow
def test_lock__over_an_existing_file__is_refused(ready, tmp_path, capsys):
    model, key, locked = ready
    before = files_in(tmp_path)
    assert lock(model, key, locked) == 1 and unlock(locked, key, locked) == 1
    assert "never overwritten" in capsys.readouterr().err and files_in(tmp_path) == before


def test_key__for_a_vit_whose_architecture_is_not_stated__asks_for_it(checkpoints, tmp_path, capsys):
    command = ["key", "new", "--like", str(checkpoints["vit"]), "--out", str(tmp_path / "mine.key"), "--heads", "2"]
    assert main(command) == 1
    assert "--model" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


def test_key__with_a_number_of_heads_that_does_not_divide__is_refused(checkpoints, tmp_path, capsys):
    model = tmp_path / "model.safetensors"
    model.write_bytes(checkpoints["gpt2"].read_bytes())  # without its config.json
    command = ["key", "new", "--like", str(model), "--out", str(tmp_path / "mine.key"), "--heads", "5"]
    assert main(command) == 1
    assert "do not divide" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


@pytest.mark.slow
def test_key__for_a_checkpoint_of_timms_hub__takes_the_heads_from_its_config(checkpoints, tmp_path):
    model = tmp_path / "model.safetensors"
    model.write_bytes(checkpoints["vit"].read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"architecture": TIMM, "num_classes": 7}))
    assert main(["key", "new", "--like", str(model), "--out", str(tmp_path / "mine.key")]) == 0
    assert read_key(tmp_path / "mine.key").shape.num_heads == 2


def test_key__with_other_heads_than_the_config_says__is_refused(checkpoints, tmp_path, capsys):
    command = ["key", "new", "--like", str(checkpoints["bert"]), "--out", str(tmp_path / "mine.key"), "--heads", "8"]
    assert main(command) == 1
    assert "8 by --heads, 4 by config.json" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


def test_key__of_other_heads_than_the_config_says__does_not_lock(checkpoints, tmp_path, capsys):
    model = tmp_path / "model.safetensors"
    model.write_bytes(checkpoints["bert"].read_bytes())  # without its config.json
    key = make_key(model, tmp_path / "mine.key", "--heads", "8")
    assert lock(checkpoints["bert"], key, tmp_path / "locked.safetensors") == 1
    assert "has 4 heads" in capsys.readouterr().err


def test_key__for_a_bert_that_lacks_a_norm__is_refused(checkpoints, tmp_path, capsys):
    name = "bert.encoder.layer.1.output.LayerNorm.bias"
    weights = {each: value for each, value in load_file(checkpoints["bert"]).items() if each != name}
    save_file(weights, tmp_path / "part.safetensors")
    command = ["key", "new", "--like", str(tmp_path / "part.safetensors"), "--heads", "4"]
    assert main([*command, "--out", str(tmp_path / "mine.key")]) == 1
    assert "has no output.LayerNorm.bias in block 1" in capsys.readouterr().err


@pytest.mark.slow
def test_lock__killed_while_it_writes__leaves_no_file_of_that_name(ready, tmp_path, monkeypatch):
    from pipeline.permutation import weight_files

    model, key, _ = ready
    monkeypatch.setattr(weight_files.WeightFile, "pieces", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = files_in(tmp_path)
    assert lock(model, key, tmp_path / "out.safetensors") == 75
    assert files_in(tmp_path) == before
