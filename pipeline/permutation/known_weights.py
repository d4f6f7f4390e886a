"""The honest counterpart of locking: whoever has the original model recovers the key (no section of ST has it).

The columns inside the MLPs are not permuted, so a column of the residual stream shows in every MLP as thousands of
numbers in a known order: it is the original column that it resembles most. With these columns put back, heads and their
columns are found the same way, from queries, keys, values and outputs. Resemblance is compared, not equality, so a
locked model that was trained further gives its key away, too. Cost: per block two products of D x D x (2 x hidden)
numbers, and assignments of D columns: seconds on one core.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from pipeline.core.errors import CheckpointError
from pipeline.permutation.authorise import FINGERPRINT, sizes_of
from pipeline.permutation.keys import Family, Key, Kind, Shape
from pipeline.permutation.rules import permute_state, rule_of
from pipeline.permutation.weight_files import open_parts

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class RecoveredKey:
    """The key, what it took, and how sure it is."""

    key: Key
    seconds: float
    is_exact: bool  # the original, permuted with it, is the locked model bit for bit
    is_confirmed: bool | None  # its fingerprint is the one that the file names; None: it names none
    margin: float  # by how much, in correlation, the worst of the chosen columns is ahead of the next


def recover_key(locked: Path, original: Path, shape: Shape) -> RecoveredKey:
    """Find the key of a locked file with the help of the original, of which `shape` tells the heads."""
    parts = open_parts(locked)
    if sizes_of(locked, parts) != sizes_of(original, open_parts(original)):
        raise CheckpointError(f"{original} has other sizes than {locked}; expected the model that was locked")
    started = time.monotonic()
    ours, theirs = (_blocks(path, shape.family) for path in (original, locked))
    residual, margin = _matched(_similarity(_residual(theirs, shape.family), _residual(ours, shape.family)))
    found = [_heads(theirs, ours, residual, block, shape) for block in range(shape.depth)]
    heads, inner = (torch.stack(part) for part in list(zip(*found, strict=True))[:2])
    key = Key(shape.family, _kind(residual, heads, inner), residual, heads, inner)
    seconds = time.monotonic() - started
    fingerprint = parts[0].metadata.get(FINGERPRINT)
    there = permute_state(ours, key)
    return RecoveredKey(
        key,
        seconds,
        is_exact=all(torch.equal(there[name], theirs[name]) for name in theirs),
        is_confirmed=None if fingerprint is None else fingerprint == key.fingerprint(),
        margin=min(margin, *(lead for _, _, lead in found)),
    )


def _blocks(path: Path, family: Family) -> Weights:
    """The tensors inside the blocks."""
    files = (load_file(part.path) for part in open_parts(path))
    return {name: value for file in files for name, value in file.items() if rule_of(name, family) is not None}


def _residual(weights: Weights, family: Family) -> Iterator[Tensor]:
    """(numbers, D) of every parameter whose other sides stay."""
    for name, value in weights.items():
        _, rule = rule_of(name, family) or (0, ())
        if rule.count("residual") == 1 and {*rule} <= {"residual", None}:
            yield value.movedim(rule.index("residual"), -1).reshape(-1, value.shape[rule.index("residual")])


def _attention(weights: Weights, family: Family, wanted: int, residual: Tensor | None) -> Iterator[Tensor]:
    """(numbers, columns of attention) of every parameter of a block; its residual side is permuted first."""
    for name, value in weights.items():
        block, rule = rule_of(name, family) or (-1, ())
        side = next((each for each in ("attention", "qkv") if each in rule), None)
        if block != wanted or side is None:
            continue
        if residual is not None and "residual" in rule:
            value = value.index_select(rule.index("residual"), residual)
        columns = value.movedim(rule.index(side), -1)
        if side == "qkv":
            columns = columns.unflatten(-1, (3, -1))
        yield columns.reshape(-1, columns.shape[-1])


def _similarity(theirs: Iterator[Tensor], ours: Iterator[Tensor]) -> Tensor:
    """(columns of the locked model, columns of the original) correlation over all numbers of both."""
    sums: list[Tensor] = []
    for one, other in zip(theirs, ours, strict=True):
        one, other = one.float(), other.float()
        terms = [one.T @ other, one.square().sum(0), other.square().sum(0)]
        sums = [total + term for total, term in zip(sums, terms, strict=True)] if sums else terms
    products, of_theirs, of_ours = sums
    return products / (of_theirs.sqrt()[:, None] * of_ours.sqrt()).clamp(min=torch.finfo(torch.float32).tiny)


def _matched(alike: Tensor) -> tuple[Tensor, float]:
    """The original column of each locked one, all different, and the smallest lead."""
    _, chosen = linear_sum_assignment(alike.numpy(), maximize=True)
    index = torch.as_tensor(chosen)
    others = alike.scatter(1, index[:, None], -torch.inf)
    return index, float((alike.gather(1, index[:, None]) - others.amax(1, keepdim=True)).min())


def _heads(theirs: Weights, ours: Weights, residual: Tensor, block: int, shape: Shape) -> tuple[Tensor, Tensor, float]:
    """(H,) and (H, columns of a head) of one block: columns within each pair of heads first, then heads."""
    alike = _similarity(_attention(theirs, shape.family, block, None), _attention(ours, shape.family, block, residual))
    columns = shape.attention_width // shape.num_heads
    pairs = alike.unflatten(0, (-1, columns)).unflatten(2, (-1, columns)).transpose(1, 2)
    inner = [[torch.as_tensor(linear_sum_assignment(each.numpy(), maximize=True)[1]) for each in row] for row in pairs]
    totals = torch.tensor(
        [
            [float(each.gather(1, index[:, None]).sum()) for each, index in zip(row, found, strict=True)]
            for row, found in zip(pairs, inner, strict=True)
        ]
    )
    heads = torch.as_tensor(linear_sum_assignment(totals.numpy(), maximize=True)[1])
    chosen = torch.stack([inner[place][int(head)] for place, head in enumerate(heads)])
    return heads, chosen, _matched(alike)[1]


def _kind(residual: Tensor, heads: Tensor, inner: Tensor) -> Kind:
    """The narrowest kind that the permutations are of."""
    columns = (heads[:, :, None] * inner.shape[2] + inner).flatten(1)
    are_alike = torch.equal(inner, inner[:, :1].expand_as(inner))
    if are_alike and len(residual) == columns.shape[1] and bool((columns == residual).all()):
        return "released"
    return "shared" if are_alike else "independent"
