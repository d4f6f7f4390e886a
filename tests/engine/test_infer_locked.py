"""`infer` by command: a locked model and its key answer as the original does."""

import numpy as np
import pytest
import timm
import torch
from locked_models import TIMM, lock, make_key
from PIL import Image
from safetensors.torch import load_file

from pipeline.cli import main
from pipeline.permutation.infer import names_of_classes
from pipeline.permutation.stated_model import StatedModel

pytestmark = pytest.mark.usefixtures("cpu_site")


@pytest.fixture
def photograph(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (200, 180, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.slow
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


@pytest.mark.slow
def test_infer__of_a_locked_vit_without_its_key__labels_answers_that_differ(ready, photograph, capsys):
    model, _, locked = ready
    capsys.readouterr()
    answers = {}
    for file in (model, locked):
        assert main(["infer", str(file), "--image", str(photograph), "--model", TIMM]) == 0
        answers[file] = capsys.readouterr().out.splitlines()
    assert len(answers[model]) == 5 and answers[model][0].split()[1] == "class"  # not locked: nothing but answers
    assert answers[locked][0].startswith("WITHOUT THE KEY") and "1 of 7 (14.29%)" in answers[locked][0]
    assert len(answers[locked]) == 6 and answers[locked][1:] != answers[model]


@pytest.mark.parametrize(
    ("config", "count", "name"),
    [({"label_names": ["cat", "dog"]}, 2, "dog"), ({"label_names": ["cat"]}, 2, ""), ({}, 2, "")],
    ids=["named", "named for other classes", "not named"],
)
def test_infer__class_of_a_model_with_a_config__has_the_name_in_it(config, count, name):
    assert names_of_classes(StatedModel(TIMM, config), count)(1) == name


@pytest.mark.slow
def test_infer__of_a_damaged_locked_vit_without_its_key__is_refused(ready, photograph, capsys):
    _, _, locked = ready
    content = bytearray(locked.read_bytes())
    content[-40:] = bytes(40)
    locked.write_bytes(content)
    assert main(["infer", str(locked), "--image", str(photograph), "--model", TIMM]) == 1
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_infer__of_a_locked_vit_about_a_text__says_what_it_answers(ready, capsys):
    _, _, locked = ready
    assert main(["infer", str(locked), "--text", "w3"]) == 1
    assert "reads no text; give --image" in capsys.readouterr().err


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("what", ["mask", "next", "class"])
def test_infer__of_a_locked_language_model_without_its_key__labels_answers_that_differ(tmp_path, capsys, what):
    torch.manual_seed(0)
    model, folder = text_models()[what].eval(), tmp_path / "model"
    model.save_pretrained(folder)
    write_tokenizer(folder, mask_token="[MASK]", unk_token="[UNK]", pad_token="[PAD]")
    files = folder / "model.safetensors", folder / "locked.safetensors"
    lock(files[0], make_key(files[0], tmp_path / "mine.key"), files[1])
    capsys.readouterr()
    answers = []
    for file in files:
        assert main(["infer", str(file), "--text", "w3 [MASK] w9 w14"]) == 0
        answers.append(capsys.readouterr().out.splitlines())
    assert "WITHOUT THE KEY" not in "".join(answers[0])
    chance = "1 of 2 (50.00%)" if what == "class" else "1 of 60 (1.67%)"
    assert answers[1][0].startswith("WITHOUT THE KEY") and chance in answers[1][0]
    assert answers[1][1:] != answers[0]


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


def test_infer__of_a_text_model_without_a_config_next_to_it__is_refused(checkpoints, tmp_path, capsys):
    key = make_key(checkpoints["gpt2"], tmp_path / "mine.key")
    lock(checkpoints["gpt2"], key, tmp_path / "locked.safetensors")
    assert main(["infer", str(tmp_path / "locked.safetensors"), "--key", str(key), "--text", "w3"]) == 1
    assert "config.json" in capsys.readouterr().err


@pytest.mark.slow
def test_infer__with_a_wrong_key__is_refused(ready, tmp_path, photograph, capsys):
    model, _, locked = ready
    other = make_key(model, tmp_path / "other.key")
    assert main(["infer", str(locked), "--key", str(other), "--image", str(photograph), "--model", TIMM]) == 1
    assert "was locked with the key" in capsys.readouterr().err
