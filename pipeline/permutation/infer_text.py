"""Ask a locked BERT or GPT-2 about a text, with its key or without: classes, the words for [MASK], or the next words.

config.json and the tokenizer lie next to the weights, as transformers saves them. Nothing is downloaded, and no code in
a checkpoint is run.
"""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.permutation.forward import permuted
from pipeline.permutation.infer import Answers, best, family_to_answer, locked_weights
from pipeline.permutation.keys import Key

CLASSIFIERS = ("BertForSequenceClassification", "GPT2ForSequenceClassification")
WRITERS = ("BertForMaskedLM", "GPT2LMHeadModel")
OLD_BUFFERS = ("position_ids", ".attn.bias", ".attn.masked_bias")  # in old files, and computed today


def answer_text(model: Path, key: Key | None, text: str, device: torch.device) -> Answers:
    """The most likely classes of a text, or words of it."""
    if family_to_answer(model, key) == "vit":
        raise ConfigError(f"{'the key' if key else model} is of a ViT, which reads no text; give --image")
    network, tokenizer = _build(model, key), _tokenizer(model.parent)
    network = network.to(device).eval()
    words = tokenizer(text, return_tensors="pt").to(device)
    place = _place(words["input_ids"][0], tokenizer, type(network).__name__)
    with torch.no_grad(), permuted(network, key) if key else nullcontext():
        found = network(**words).logits[0]
    if place is None:
        return best(found, lambda label: str(network.config.id2label.get(label, f"class {label}")))
    return best(found[place], lambda word: repr(tokenizer.decode([word])))


def _build(model: Path, key: Key | None) -> Any:
    """The network that config.json names, filled with the weights of the model."""
    import transformers

    file = model.parent / "config.json"
    try:
        named = json.loads(file.read_text())["architectures"][0]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise CheckpointError(
            f"{file} does not name an architecture; expected the one that transformers wrote"
        ) from None
    families = {"bert": "Bert", "gpt2": "GPT2"}
    family = families.get(family_to_answer(model, key), "GPT2" if str(named).startswith("GPT2") else "Bert")
    if named not in CLASSIFIERS + WRITERS or not named.startswith(family):
        known = ", ".join(name for name in CLASSIFIERS + WRITERS if name.startswith(family))
        raise CheckpointError(f"{file} names {named}, which answers nothing here; expected one of {known}")
    weights = locked_weights(model, key)
    network = getattr(transformers, named)(getattr(transformers, f"{family}Config").from_json_file(file))
    # A file has no copy of what is tied to the embeddings.
    found = network.load_state_dict(weights, strict=False)
    missing = {*found.missing_keys} - {*(network.all_tied_weights_keys or {})}
    wrong = missing | {name for name in found.unexpected_keys if not name.endswith(OLD_BUFFERS)}
    if wrong:
        names = ", ".join(sorted(wrong)[:5])
        raise CheckpointError(f"{model} and {file} do not fit each other ({names}); expected those of one model")
    network.tie_weights()
    return network


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"{folder} has no tokenizer ({reason}); put the model's tokenizer next to it") from None


def _place(words: Tensor, tokenizer: Any, name: str) -> int | None:
    """Where the answer is a word: at [MASK], or after the last word; None where it is a class."""
    if name in CLASSIFIERS:
        return None
    if name == "GPT2LMHeadModel":
        return len(words) - 1
    masked = (words == tokenizer.mask_token_id).nonzero().flatten().tolist()
    if len(masked) != 1:
        raise ConfigError(
            f"--text has {len(masked)} words {tokenizer.mask_token}; expected one, for which to find words"
        )
    return masked[0]
