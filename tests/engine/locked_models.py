"""Checkpoints as timm and transformers write them, and the commands that lock and unlock them."""

import torch
from safetensors.torch import save_file

from pipeline.cli import main

TIMM = "test_vit"  # the smallest ViT of timm: width 64, 6 blocks, 2 heads


def write_checkpoints(folder):
    """Files as they are published, by family."""
    import timm  # takes seconds, and few files of this folder need it

    torch.manual_seed(0)
    model = timm.create_model(TIMM, num_classes=7)
    with torch.no_grad():
        model.head.weight.normal_(std=0.5)
    save_file(model.state_dict(), folder / "vit.safetensors", {"format": "pt", "author": "somebody"})
    return {"vit": folder / "vit.safetensors"} | _written_by_transformers(folder)


def _written_by_transformers(folder):
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 96}
    bert = BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=16)
    gpt2 = GPT2Config(vocab_size=60, n_embd=48, n_layer=3, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)
    BertForSequenceClassification(bert).save_pretrained(folder / "bert")
    GPT2LMHeadModel(gpt2).to(torch.bfloat16).save_pretrained(folder / "gpt2")
    return {name: folder / name / "model.safetensors" for name in ("bert", "gpt2")}


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
