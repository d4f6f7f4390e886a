"""Model authorisation (ST Sec. 5.3): lock a checkpoint with a key, and give its weights back to whoever has the key.

A locked file is safetensors with the same names and shapes, and can be shared: with the key a model runs on it as it is
(`infer`), or it is unlocked, byte for byte. Its metadata name the fingerprint of the key and the digest of its data, so
a wrong key and a damaged file are refused before anything is written.
"""

import shutil
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.permutation.keys import Family, Key, Shape
from pipeline.permutation.new_files import new_folder
from pipeline.permutation.rules import family_of, indices_of, lacking_in_blocks, rule_of
from pipeline.permutation.stated_model import (
    StatedModel,
    build_without_weights,
    config_next_to,
    find_stated_model,
    refuse_contradiction,
)
from pipeline.permutation.weight_files import INDEX, Indices, WeightFile, open_parts, write_permuted

PREFIX = "patchwork.lock."
FINGERPRINT, DIGEST, OF_FAMILY = f"{PREFIX}fingerprint", f"{PREFIX}sha256", f"{PREFIX}family"
MODE = f"{PREFIX}mode"  # of the original file, which the unlocked one gets
PRIVATE = 0o600  # of what was locked before modes were kept
CLASSIFIERS = ("head.", "head_dist.")  # a file may lack them
HEADS = ("num_attention_heads", "n_head", "num_heads")  # in a config.json
LIMITS = (
    "It is a permutation, not a cipher. It does not protect against:",
    "- anyone who has the original weights, or a model close to them: `key recover` finds the key in seconds",
    "- finetuning without the key, which recovers part of the accuracy (ST Table 7: 78.0 instead of 97.9 %)",
    "- anyone who has the key or the unlocked weights, or who sees permuted tokens together with the plain ones",
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
    if found := lock_fingerprint(model):
        raise CheckpointError(f"{model} is locked already, with the key {found}; lock the original")
    _refuse_other_structure(model, parts, key)
    added = {OF_FAMILY: key.family, FINGERPRINT: key.fingerprint()}
    _write(model, parts, key, out, lambda part: part.metadata | added | {MODE: _mode(part.path)}, is_inverse=False)


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
        _refuse_damaged(part)
    return parts


def open_without_key(model: Path) -> list[WeightFile]:
    """The files of a model as they are; locked ones must be whole."""
    parts = open_parts(model)
    for part in parts:
        if FINGERPRINT in part.metadata:
            _refuse_damaged(part)
    return parts


def lock_fingerprint(model: Path) -> str:
    """The fingerprint of the key that locked a model; empty where it is not locked."""
    return next((part.metadata[FINGERPRINT] for part in open_parts(model) if FINGERPRINT in part.metadata), "")


def locked_family(model: Path) -> str:
    """The family that a locked model names in its metadata; empty where it is not locked."""
    return next((part.metadata[OF_FAMILY] for part in open_parts(model) if OF_FAMILY in part.metadata), "")


def _refuse_damaged(part: WeightFile) -> None:
    if part.digest() != part.metadata.get(DIGEST):
        raise CheckpointError(f"{part.path} is damaged: its content is not what `lock` wrote; download it again")


def _write(
    model: Path, parts: list[WeightFile], key: Key, out: Path, metadata: Callable[..., dict[str, str]], is_inverse: bool
) -> None:
    """One file for one; for several, a folder with as many and their index."""
    _refuse_other_model(model, parts, key)
    digest_as = "" if is_inverse else DIGEST
    indices = [_indices(part, key, is_inverse) for part in parts]
    # A locked file may be shared; an unlocked one is as private as the original.
    modes = [int(part.metadata.get(MODE, f"{PRIVATE:o}"), 8) if is_inverse else 0o666 for part in parts]
    if not model.name.endswith(INDEX):
        write_permuted(parts[0], out, indices[0], metadata(parts[0]), digest_as, modes[0])
        return
    with new_folder(out) as folder:
        for part, each, mode in zip(parts, indices, modes, strict=True):
            write_permuted(part, folder / part.path.name, each, metadata(part), digest_as, mode)
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


@dataclass(frozen=True)
class KeyPlan:
    """What a key for a checkpoint must know."""

    shape: Shape
    are_alike: bool  # the heads of a block must be permuted alike
    architecture: str  # of timm; empty for a model of transformers
    names: frozenset[str]  # of the tensors that a file of the model has


def plan_key(model: Path, heads: int | None, arch: str | None) -> KeyPlan:
    """From the weights, and from what is stated of them; a model that a key cannot lock exactly is refused."""
    parts = open_parts(model)
    sizes, names = sizes_of(model, parts), _names(parts)
    said = {"the norms of its queries": sizes.num_heads, "--heads": heads, "config.json": _recorded_heads(model)}
    architecture = ""
    if sizes.family == "vit":
        stated = find_stated_model(model, arch)
        if stated is None:
            raise ConfigError(
                f"{model} does not state the operations of its blocks or their number of heads, and no config.json "
                "next to it does; name the architecture of timm with --model"
            )
        shape, names = _structure(model, stated, sizes, names)
        said[stated.name], architecture = shape.num_heads, stated.architecture
    elif lacking := lacking_in_blocks(names, sizes.family):
        raise CheckpointError(f"{model} has no {lacking[0]}; expected all tensors of the model")
    found = {source: count for source, count in said.items() if count is not None}
    refuse_contradiction(f"the number of heads of {model}", found)
    if not found:
        raise ConfigError(
            f"{model} does not state the number of attention heads, and no config.json next to it does; give it with "
            "--heads"
        )
    num_heads = next(iter(found.values()))
    if sizes.attention_width % num_heads:
        raise ConfigError(f"{num_heads} heads do not divide the {sizes.attention_width} columns of {model}")
    shape = Shape(sizes.family, sizes.width, sizes.depth, num_heads, sizes.attention_width)
    return KeyPlan(shape, sizes.num_heads is not None, architecture, names)


def _structure(model: Path, stated: StatedModel, sizes: Sizes, names: frozenset[str]) -> tuple[Shape, frozenset[str]]:
    """What the modules of an architecture tell; a file that lacks a tensor of it, or has others, is refused."""
    from pipeline.permutation.forward import shape_of

    built = build_without_weights(stated, num_classes=1)
    try:
        shape = shape_of(built)
    except ConfigError as error:
        raise ConfigError(f"{stated.name}: {error}") from None
    said = {source: f"{each.width} and {each.depth}" for source, each in ((stated.name, shape), ("its tensors", sizes))}
    refuse_contradiction(f"width and depth of {model} (`model_args` in config.json may state others)", said)
    expected = frozenset(built.state_dict())
    _refuse_other_names(model, names, expected, stated.name)
    return shape, expected


def _refuse_other_names(model: Path, names: Collection[str], expected: Collection[str], what: str) -> None:
    lacking = sorted(name for name in {*expected} - {*names} if not name.startswith(CLASSIFIERS))
    others = sorted(name for name in {*names} - {*expected} if not name.startswith(CLASSIFIERS))
    problems = [f"has no {name}" for name in lacking[:1]] + [f"has an unknown {name}" for name in others[:1]]
    if problems:
        raise CheckpointError(
            f"{model} {' and '.join(problems)} ({len(lacking)} missing, {len(others)} unknown); expected all tensors "
            f"of {what}, and no others"
        )


def _names(parts: list[WeightFile]) -> frozenset[str]:
    return frozenset(entry.name for part in parts for entry in part.entries)


def described(key: Key) -> str:
    """What may be said of a key: its fingerprint and how many such keys there are."""
    return (
        f"key {key.fingerprint()} ({key.kind}) for a {_words(key.shape)} of {key.shape.num_heads} heads; key space: "
        f"2^{key.bits():,.0f}. To use a locked model, the permutation of the residual stream is enough: one of "
        f"2^{key.residual_bits():,.0f}"
    )


def _refuse_other_structure(model: Path, parts: list[WeightFile], key: Key) -> None:
    """Compare a file with the model that the key was made for, whose structure was looked at then."""
    _refuse_other_model(model, parts, key)
    if key.family == "vit" and not key.architecture:
        raise CheckpointError(
            "the key is an older one that does not state its architecture; it still unlocks what it "
            "has locked; to lock a model, make a new key with `key new`"
        )
    if key.family == "vit":
        find_stated_model(model, None, key.architecture)
    if key.names:
        _refuse_other_names(model, _names(parts), key.names, key.architecture or _words(key.shape))


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


def _recorded_heads(model: Path) -> int | None:
    """By the config.json of a model of transformers."""
    config = config_next_to(model)
    return next((config[name] for name in HEADS if isinstance(config.get(name), int)), None)


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


def _mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"
