"""`key`, `lock` and `unlock` by command, on checkpoints as timm and transformers write them."""

import json
import os
import stat

import pytest
import timm
import torch
from locked_models import TIMM, files_in, lock, make_key, unlock
from patience import PATIENCE_S
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from warm_python import run_module

from pipeline.cli import main
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import read_key

pytestmark = pytest.mark.usefixtures("cpu_site")


@pytest.mark.slow
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


@pytest.mark.slow
def test_model__in_several_files__is_locked_and_unlocked_as_a_folder(in_parts, tmp_path):
    key = make_key(in_parts, tmp_path / "mine.key")
    assert lock(in_parts, key, tmp_path / "locked") == 0
    assert unlock(tmp_path / "locked" / in_parts.name, key, tmp_path / "back") == 0
    parts, locked = files_in(tmp_path / "back"), files_in(tmp_path / "locked")
    originals = {name: content for name, content in files_in(in_parts.parent).items() if name != "config.json"}
    assert len(parts) > 3 and parts == originals and locked.keys() == parts.keys()
    assert [name for name in parts if locked[name] == parts[name]] == [in_parts.name]


@pytest.mark.slow
def test_model__of_which_one_file_is_damaged__is_not_unlocked(in_parts, tmp_path, capsys):
    key = make_key(in_parts, tmp_path / "mine.key")
    lock(in_parts, key, tmp_path / "locked")
    last = sorted((tmp_path / "locked").glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\xff")
    assert unlock(tmp_path / "locked" / in_parts.name, key, tmp_path / "back") == 1
    assert "damaged" in capsys.readouterr().err and not (tmp_path / "back").exists()


@pytest.mark.slow
def test_index__that_leads_out_of_its_folder__is_refused(in_parts, tmp_path, capsys):
    index = json.loads(in_parts.read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "../secret.safetensors"
    in_parts.write_text(json.dumps(index))
    assert main(["key", "new", "--like", str(in_parts), "--out", str(tmp_path / "mine.key")]) == 1
    assert "own folder" in capsys.readouterr().err and not (tmp_path / "mine.key").exists()


@pytest.mark.slow
def test_model__of_which_one_file_is_missing__is_refused(in_parts, tmp_path, capsys):
    key = make_key(in_parts, tmp_path / "mine.key")
    sorted(in_parts.parent.glob("*.safetensors"))[0].unlink()
    assert lock(in_parts, key, tmp_path / "locked") == 1
    assert "not found" in capsys.readouterr().err and not (tmp_path / "locked").exists()


@pytest.mark.slow
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


@pytest.mark.slow
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


# The attack


@pytest.mark.slow
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
    assert "bit for bit" in said and "the locked file names this key" in said
    assert unlock(tmp_path / "locked.safetensors", tmp_path / "found.key", tmp_path / "back.safetensors") == 0


@pytest.mark.slow
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
    assert "gives the locked file, approximately" in capsys.readouterr().out
    assert read_key(tmp_path / "found.key").fingerprint() == read_key(key).fingerprint()


@pytest.mark.slow
def test_recover__with_another_original__does_not_find_the_key(checkpoints, tmp_path, capsys):
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    lock(checkpoints["vit"], key, tmp_path / "locked.safetensors")
    torch.manual_seed(1)
    save_file(timm.create_model(TIMM, num_classes=7).state_dict(), tmp_path / "other.safetensors")
    command = ["key", "recover", "--like", str(tmp_path / "other.safetensors"), "--locked"]
    command += [str(tmp_path / "locked.safetensors"), "--model", TIMM, "--out", str(tmp_path / "found.key")]
    capsys.readouterr()
    assert main(command) == 1
    said = capsys.readouterr()
    assert "was not found" in said.err and not said.out and not (tmp_path / "found.key").exists()


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
    with torch.device("meta"):  # of a drawn one, the values would take most of the time
        shapes = timm.create_model("vit_small_patch16_224", depth=24).state_dict()
    save_file({name: torch.zeros(value.shape) for name, value in shapes.items()}, model)
    key, config = tmp_path / "mine.key", {"architecture": "vit_small_patch16_224", "model_args": {"depth": 24}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["key", "new", "--like", str(model), "--out", str(key)]) == 0
    (tmp_path / "measured.py").write_text(MEASURED)
    command = "measured", [str(model), str(key), str(tmp_path / "locked.safetensors")]
    code, used, said = run_module(command, tmp_path, dict(os.environ), PATIENCE_S)
    assert code == 0, said
    assert int(used) < model.stat().st_size / 3
