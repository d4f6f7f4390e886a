"""Model authorisation (ST Sec. 5.3): lock a checkpoint with a key, and give its weights back to whoever has the key.

A locked file is safetensors with the same names and shapes, and can be shared: with the key a model runs on it as it is
(`infer`), or it is unlocked, byte for byte. Its metadata name the fingerprint of the key and the digest of its data, so
a wrong key and a damaged file are refused before anything is written.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.dynamo import dynamo_deferred
from pipeline.errors import CheckpointError, ConfigError
from pipeline.models.architectures import unknown_architecture
from pipeline.permutation.keys import Family, Key, Shape
from pipeline.permutation.new_files import new_folder
from pipeline.permutation.rules import family_of, indices_of, rule_of
from pipeline.permutation.weight_files import INDEX, Indices, WeightFile, open_parts, write_permuted

PREFIX = "patchwork.lock."
FINGERPRINT, DIGEST, OF_FAMILY = f"{PREFIX}fingerprint", f"{PREFIX}sha256", f"{PREFIX}family"
HEADS = ("num_attention_heads", "n_head", "num_heads")  # in a config.json
LIMITS = (
    "It is a permutation, not a cipher. It does not protect against:",
    "- somebody who has the original weights, or a model close to them: `key recover` finds the key in seconds",
    "- fine-tuning without the key, which recovers part of the accuracy (ST Table 7: 78.0 instead of 97.9 %)",
    "- whoever has the key, or sees the unlocked weights or the permuted tokens together with plain ones",
    "Embeddings, final norm, head, and all sizes stay readable; the columns inside the MLPs stay in place.",
)


@dataclass(frozen=True)
class Sizes:
    """What the tensors of a checkpoint tell of a model; its number of heads only where queries are normalised."""

    family: Family
    width: int
    depth: int
    attention_width: int
    num_heads: int | None


def lock(model: Path, key: Key, out: Path) -> None:
    """Write the locked model; nothing is written when anything is wrong."""
    parts = open_parts(model)
    if found := next((part.metadata[FINGERPRINT] for part in parts if FINGERPRINT in part.metadata), None):
        raise CheckpointError(f"{model} is locked already, with the key {found}; lock the original")
    added = {OF_FAMILY: key.family, FINGERPRINT: key.fingerprint()}
    _write(model, parts, key, out, lambda part: part.metadata | added, is_inverse=False)


def unlock(model: Path, key: Key, out: Path) -> None:
    """Write the original model; nothing is written when anything is wrong."""
    parts = open_locked(model, key)
    _write(model, parts, key, out, lambda part: _without_lock(part.metadata), is_inverse=True)


def open_locked(model: Path, key: Key) -> list[WeightFile]:
    """A locked file, or several, that are whole and were locked with this key."""
    parts = open_parts(model)
    for part in parts:
        found = part.metadata.get(FINGERPRINT)
        if found is None:
            raise CheckpointError(f"{part.path} is not locked; expected a file that `lock` wrote")
        if found != key.fingerprint():
            raise CheckpointError(
                f"{part.path} was locked with the key {found}, this key is {key.fingerprint()}; use the other"
            )
        if part.digest() != part.metadata.get(DIGEST):
            raise CheckpointError(f"{part.path} is damaged: its data are not those that `lock` wrote; fetch it again")
    return parts


def _write(
    model: Path, parts: list[WeightFile], key: Key, out: Path, metadata: Callable[..., dict[str, str]], is_inverse: bool
) -> None:
    """One file for one; for several, a folder with as many and their index."""
    _refuse_other_model(model, parts, key)
    digest_as = "" if is_inverse else DIGEST
    indices = [_indices(part, key, is_inverse) for part in parts]
    if not model.name.endswith(INDEX):
        write_permuted(parts[0], out, indices[0], metadata(parts[0]), digest_as)
        return
    with new_folder(out) as folder:
        for part, each in zip(parts, indices, strict=True):
            write_permuted(part, folder / part.path.name, each, metadata(part), digest_as)
        shutil.copyfile(model, folder / model.name)


def sizes_of(model: Path, parts: list[WeightFile]) -> Sizes:
    """From the names and shapes of its tensors; a name without a rule is refused."""
    shapes = {entry.name: entry.shape for part in parts for entry in part.entries}
    try:
        family = family_of(shapes)
        rules = {name: found for name in shapes if (found := rule_of(name, family)) is not None}
    except CheckpointError as error:
        raise CheckpointError(f"{model}: {error}") from None
    blocks = {block for block, _ in rules.values()}
    if missing := {*range(max(blocks))} - blocks:
        raise CheckpointError(f"{model} has no block {min(missing)}; expected all blocks, or the index of all files")
    # The sizes of all tensors are compared with the key's later, side by side.
    sides = {side: size for name, (_, rule) in rules.items() for side, size in zip(rule, shapes[name], strict=False)}
    attention = sides["attention"]
    heads = attention // sides["head"] if "head" in sides else None
    return Sizes(family, sides["residual"], len(blocks), attention, heads)


def shape_for(model: Path, heads: int | None, arch: str | None) -> tuple[Shape, bool]:
    """What a key for a checkpoint must know, and whether its heads must be permuted alike."""
    sizes = sizes_of(model, open_parts(model))
    num_heads = sizes.num_heads or heads or _heads_of_arch(arch) or _recorded_heads(model)
    if num_heads is None:
        raise ConfigError(
            f"{model} does not tell the number of attention heads, and no config.json beside it does; say it with "
            "--heads, or name the architecture of timm with --model"
        )
    if sizes.attention_width % num_heads:
        raise ConfigError(f"{num_heads} heads do not divide the {sizes.attention_width} columns of {model}")
    shape = Shape(sizes.family, sizes.width, sizes.depth, num_heads, sizes.attention_width)
    return shape, sizes.num_heads is not None


def described(key: Key) -> str:
    """What may be said of a key: its fingerprint and how many such keys there are."""
    return (
        f"key {key.fingerprint()} ({key.kind}) for a {_words(key.shape)} of {key.shape.num_heads} heads; key space: "
        f"2^{key.bits():,.0f}. To use a locked model, the permutation of the residual stream is enough: one of "
        f"2^{key.residual_bits():,.0f}"
    )


def architecture_of(model: Path) -> str | None:
    """The architecture of timm that a config.json beside the file names."""
    found = _config_beside(model).get("architecture")
    return found if isinstance(found, str) else None


def _refuse_other_model(model: Path, parts: list[WeightFile], key: Key) -> None:
    sizes, shape = sizes_of(model, parts), key.shape
    found = (sizes.family, sizes.width, sizes.depth, sizes.attention_width)
    if found != (shape.family, shape.width, shape.depth, shape.attention_width):
        raise CheckpointError(
            f"{model} is a {_words(sizes)}, the key is for a {_words(shape)}; use the key of this model"
        )
    known = sizes.num_heads or _recorded_heads(model)
    if known is not None and known != shape.num_heads:
        raise CheckpointError(f"{model} has {known} heads, the key is for {shape.num_heads}; make another key")


def _without_lock(metadata: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if not name.startswith(PREFIX)}


def _indices(weights: WeightFile, key: Key, is_inverse: bool) -> dict[str, Indices]:
    return {
        entry.name: [
            None if index is None else index.numpy() for index in indices_of(entry.name, entry.shape, key, is_inverse)
        ]
        for entry in weights.entries
    }


def _words(sizes: Sizes | Shape) -> str:
    name = {"vit": "ViT", "bert": "BERT", "gpt2": "GPT-2"}[sizes.family]
    return f"{name} of width {sizes.width} with {sizes.depth} blocks"


def _config_beside(model: Path) -> dict[str, Any]:
    try:
        found = json.loads((model.parent / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _recorded_heads(model: Path) -> int | None:
    config = _config_beside(model)
    found = next((config[name] for name in HEADS if isinstance(config.get(name), int)), None)
    return found or _heads_of_arch(config.get("architecture"), config.get("model_args") or {})


def _heads_of_arch(arch: str | None, arguments: dict[str, Any] | None = None) -> int | None:
    """The heads of an architecture of timm, without its weights."""
    if not arch:
        return None
    if problem := unknown_architecture(arch):
        raise ConfigError(f"--model {arch}: {problem}")
    with dynamo_deferred():
        import timm
    with torch.device("meta"):
        model = timm.create_model(arch.split(".")[0], **(arguments or {}))
    if not hasattr(model, "blocks"):
        raise ConfigError(f"--model {arch} is not a ViT; expected one, such as vit_base_patch16_224")
    return model.blocks[0].attn.num_heads
