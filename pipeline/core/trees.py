"""Trees of tensors: a tensor, or a dict, list or tuple of trees. Inputs and targets of every task are such trees."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = Any  # Tensor | dict[str, Tree] | list[Tree] | tuple[Tree, ...]


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same tree with the function applied to each tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tree(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tree(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map_tree(function, value) for value in tree)
    raise TypeError(f"found a {type(tree).__name__} in a tree of tensors; expected tensors, dicts, lists and tuples")


def joined(batches: Sequence[Tree]) -> Tree:
    """One batch of several, which are tensors or dicts of them."""
    if isinstance(batches[0], dict):
        return {key: joined([batch[key] for batch in batches]) for key in batches[0]}
    return torch.cat([*batches])


def tensors_of(tree: Tree) -> Iterator[Tensor]:
    """Every tensor of a tree, in order."""
    if isinstance(tree, Tensor):
        yield tree
        return
    for value in _children(tree):
        yield from tensors_of(value)


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Copied without waiting; the loader pins what it gives."""
    return map_tree(lambda tensor: tensor.to(device, non_blocking=True), tree)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting: from memory that is not pinned, a copy of some size would wait for it."""
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """As such a copy needs it."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def batch_size(tree: Tree) -> int:
    """Samples in a batch: a list has one tree for each, the first axis of a tensor counts them."""
    return len(tree) if isinstance(tree, Tensor | list) else batch_size(next(iter(_children(tree))))


def device_of(tree: Tree) -> torch.device:
    return next(tensors_of(tree)).device


def _children(tree: Tree) -> Iterator[Tree]:
    return iter(tree.values() if isinstance(tree, dict) else tree)
