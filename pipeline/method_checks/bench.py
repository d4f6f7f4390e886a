"""What a method is checked on, and the sentences that the checks share.

A check takes a `Bench` and returns one sentence for each broken promise: what was found, what is expected, what to do.
"""

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.core.config import shown
from pipeline.core.source import PACKAGE
from pipeline.core.trees import Tree, map_tree
from pipeline.methods.base import Batch, Method, Output

BASE = PACKAGE / "methods" / "base.py"  # calls `loss` for every method


@dataclass(frozen=True)
class Bench:
    """A method, and data of its task."""

    build: Callable[[int], Method]  # in training mode, with weights from this seed
    batch: Callable[[int], Batch]  # so many samples, the same ones in every call

    def method(self, seed: int = 0) -> Method:
        return self.build(seed).train()


def name_of(method: Method) -> str:
    return type(method).__name__


def seeded(batch: Batch, seed: int) -> Batch:
    """The same samples with a generator of their own."""
    return replace(batch, generator=torch.Generator().manual_seed(seed))


def compute_loss(method: Method, batch: Batch, progress: float = 0.5, model: Any = None) -> Output:
    """Draw, then call the method, or `model`, what a compiler made of it.

    Dropout is the same in every call. So is what a method draws from the wrong generator, and whatever it does to its
    inputs has no effect on the next call: each mistake is found by its own check alone.
    """
    torch.manual_seed(0)
    draw = method.draw(batch, progress)
    torch.manual_seed(0)
    return (method if model is None else model)(*copied(batch), draw)


def copied(batch: Batch) -> tuple[Tree, Tree]:
    return map_tree(torch.clone, batch.inputs), map_tree(torch.clone, batch.targets)


def run_check(check: Callable[[Bench], list[str]], bench: Bench) -> list[str]:
    """The sentences of a check; an exception of the method's own code is one as well, with its line."""
    try:
        return check(bench)
    except Exception as error:
        method = bench.method()
        return [f"{name_of(method)} raised {type(error).__name__}: {first_line(error)}{raised_at(error, method)}"]


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def raised_at(error: BaseException, method: Method) -> str:
    """In words, the last line of the method's own file that an exception came through; empty if none is known."""
    return shown_frame([*traceback.extract_tb(error.__traceback__)], method)


def shown_frame(frames: list[traceback.FrameSummary], method: Method) -> str:
    """In words, the last of these frames that is in a file which defines the method."""
    own = {str(path) for path in files_of(method)}
    found = [frame for frame in frames if str(Path(frame.filename).resolve()) in own]
    return f" ({shown(Path(found[-1].filename))}:{found[-1].lineno}: `{found[-1].line}`)" if found else ""


def files_of(method: Method) -> list[Path]:
    """The files of a method's class and of the classes it extends, without the base of all methods."""
    modules = {cls.__module__ for cls in type(method).__mro__ if issubclass(cls, Method) and cls is not Method}
    files = [getattr(sys.modules.get(module), "__file__", None) for module in modules]
    return [Path(file).resolve() for file in files if file and Path(file).resolve() != BASE]


def differing_keys(one: dict[str, Tree], other: dict[str, Tree]) -> list[str]:
    """Keys under which two dicts of tensors differ in any bit."""
    keys = sorted({*one, *other})
    return [key for key in keys if key not in one or key not in other or not is_same(one[key], other[key])]


def is_same(one: Any, other: Any) -> bool:
    """Two trees, of tensors or of what views return, to the last bit; NaN is the same as NaN."""
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return np.array_equal(one, other)


def quoted(names: list[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
