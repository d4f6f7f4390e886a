"""Keys: the permutations that lock a transformer (ST Sec. 4, Eqs 5 and 6), and their files.

A key permutes the D columns of the residual stream, and in each of L blocks the columns inside attention: whole heads
(H), then the columns of each head. Eq. 6 has one arbitrary permutation P_C for all of it; with several heads it is no
equivalence unless P_C maps heads onto heads, so the inner side has permutations of its own. A key's `kind` says how
they are drawn:
- independent: everything anew, an arbitrary permutation of the residual stream among it. The default.
- shared: the same, but all heads of a block share one inner permutation, which norms of queries and keys require.
- released: the authors' keys, one permutation that maps heads onto heads, alike inside each head, for everything.
Whoever has the key has the model: it is never printed, and its file is readable by its owner alone.
"""

import hashlib
import math
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from secrets import SystemRandom
from typing import Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pipeline.core.errors import CheckpointError
from pipeline.permutation.new_files import new_file

Family = Literal["vit", "bert", "gpt2"]
Kind = Literal["independent", "shared", "released"]
DOMAIN = b"patchwork permutation key 1\n"  # so that a fingerprint is equal to no other digest of the same numbers
FORMAT = "patchwork-key-1"
SUFFIX = ".key"  # what git and DVC leave alone in this project
TENSORS = ("residual", "heads", "inner")


@dataclass(frozen=True)
class Shape:
    """What a key must know of a model; the columns inside attention are `attention_width` in all."""

    family: Family
    width: int
    depth: int
    num_heads: int
    attention_width: int


@dataclass(frozen=True, repr=False, eq=False)
class Key:
    """Permutations as indices: column i of what is permuted is column index[i] of what was there."""

    family: Family
    kind: Kind
    residual: Tensor  # (D,)
    heads: Tensor  # (L, H)
    inner: Tensor  # (L, H, columns of a head), within the head that comes to this place
    architecture: str = ""  # of timm, for which it was made
    names: frozenset[str] = frozenset()  # of the tensors of that model

    @property
    def shape(self) -> Shape:
        """Shape of the models that it fits."""
        depth, heads, columns = self.inner.shape
        return Shape(self.family, len(self.residual), depth, heads, heads * columns)

    def attention(self, block: int) -> Tensor:
        """(H * columns of a head,) index of a block's columns inside attention."""
        return (self.heads[block, :, None] * self.inner.shape[2] + self.inner[block]).flatten()

    def fingerprint(self) -> str:
        """Tells keys apart and gives nothing of them away."""
        digest = hashlib.sha256(DOMAIN + f"{self.kind} {self.shape}\n".encode())
        for name in TENSORS:
            digest.update(getattr(self, name).to(torch.int32).numpy().astype("<i4").tobytes())
        return digest.hexdigest()[:16]

    def bits(self) -> float:
        """log2 of the number of keys of this kind for this model."""
        depth, heads, columns = self.inner.shape
        if self.kind == "released":
            return _log2_factorial(heads) + _log2_factorial(columns)
        inner = _log2_factorial(columns) * (1 if self.kind == "shared" else heads)
        return self.residual_bits() + depth * (_log2_factorial(heads) + inner)

    def residual_bits(self) -> float:
        """log2 of the permutations of the residual stream: all that stands between a locked model and its use.

        What is permuted inside attention hides weights, but the function of the model is the same without it.
        """
        _, heads, columns = self.inner.shape
        if self.kind == "released":
            return _log2_factorial(heads) + _log2_factorial(columns)
        return _log2_factorial(len(self.residual))

    def __repr__(self) -> str:
        return f"Key({self.kind}, {self.shape}, fingerprint {self.fingerprint()})"


def new_key(shape: Shape, kind: Kind = "independent", source: Random | None = None) -> Key:
    """Draw a key, from the system's cryptographic generator unless a study asks for one that it can draw again."""
    draw = source or SystemRandom()
    depth, heads, columns = shape.depth, shape.num_heads, shape.attention_width // shape.num_heads
    if shape.attention_width % heads:
        raise CheckpointError(f"{heads} heads do not divide the {shape.attention_width} columns of attention")
    if kind == "released":
        if shape.attention_width != shape.width:
            raise CheckpointError("a released key needs attention as wide as the residual stream; choose another kind")
        one_order, one_inner = _permutation(heads, draw), _permutation(columns, draw)
        order, inner = torch.stack([one_order] * depth), one_inner.expand(depth, heads, columns).contiguous()
        key = Key(shape.family, kind, torch.arange(shape.width), order, inner)
        return Key(shape.family, kind, key.attention(0), order, inner)
    order = torch.stack([_permutation(heads, draw) for _ in range(depth)])
    alike = kind == "shared"
    inner = torch.stack([_inner(heads, columns, alike, draw) for _ in range(depth)])
    return Key(shape.family, kind, _permutation(shape.width, draw), order, inner)


def inverse(index: Tensor) -> Tensor:
    """The index that undoes this one."""
    return torch.argsort(index)


def write_key(key: Key, path: Path) -> None:
    """A new file of mode 0600; a key that exists is never overwritten, because a model may depend on it."""
    if path.suffix != SUFFIX:
        raise CheckpointError(
            f"{path}: expected a name that ends in {SUFFIX}, which git and DVC ignore; rename the key"
        )
    tensors = {name: getattr(key, name).to(torch.int32).contiguous() for name in TENSORS}
    metadata = {"format": FORMAT, "kind": key.kind} | {name: str(value) for name, value in asdict(key.shape).items()}
    metadata |= {"architecture": key.architecture, "names": "\n".join(sorted(key.names))}
    with new_file(path, mode=0o600) as file:
        file.write(save(tensors, metadata))


def read_key(path: Path) -> Key:
    """The key in a file that nobody else may read; anything but a whole and valid key is refused."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise CheckpointError(
                f"{path} has mode {mode:04o}: others can read this key, or write it; expected 0600: "
                f"`chmod 600 {path}`, and make a new key if somebody may have seen it"
            )
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a safe_open is no dict
    except FileNotFoundError:
        raise CheckpointError(f"{path} not found; expected a key: `python -m pipeline key new` makes one") from None
    except (SafetensorError, IsADirectoryError):
        raise CheckpointError(f"{path} is not a key, or is damaged; expected a file of `key new`") from None
    if metadata.get("format") != FORMAT or {*found} != {*TENSORS}:
        raise CheckpointError(f"{path} is not a key; expected a file of `key new`")
    key = Key(metadata.get("family"), metadata.get("kind"), *(found[name].long() for name in TENSORS))  # type: ignore[arg-type]
    names = frozenset(metadata.get("names", "").split("\n")) - {""}
    key = replace(key, architecture=metadata.get("architecture", ""), names=names)
    if not _is_valid(key):
        raise CheckpointError(f"{path} is damaged: its content is not a permutation of its kind; restore the key")
    return key


def _is_valid(key: Key) -> bool:
    if key.family not in get_args(Family) or key.kind not in get_args(Kind):
        return False
    shapes_fit = key.residual.ndim == 1 and key.heads.ndim == 2 and key.inner.ndim == 3
    if not shapes_fit or key.heads.shape != key.inner.shape[:2] or not key.inner.numel():
        return False
    if not all(_are_permutations(getattr(key, name)) for name in TENSORS):
        return False
    if key.kind == "released":
        return all(torch.equal(key.attention(block), key.residual) for block in range(key.shape.depth))
    return key.kind == "independent" or torch.equal(key.inner, key.inner[:, :1].expand_as(key.inner))


def _are_permutations(index: Tensor) -> bool:
    return torch.equal(index.sort(dim=-1).values, torch.arange(index.shape[-1]).expand_as(index))


def _inner(heads: int, columns: int, are_alike: bool, draw: Random) -> Tensor:
    if are_alike:
        return _permutation(columns, draw).expand(heads, columns)
    return torch.stack([_permutation(columns, draw) for _ in range(heads)])


def _permutation(size: int, draw: Random) -> Tensor:
    return torch.tensor(draw.sample(range(size), size))


def _log2_factorial(number: int) -> float:
    return math.lgamma(number + 1) / math.log(2)
