"""Compiling a training step: the whole loss as one graph, or those parts of it that a method names.

A detector chooses among its own proposals, so that shapes depend on values in the middle of its loss; its encoder and
its heads compile all the same.
"""

from typing import Any

import torch
from torch import nn

from pipeline.methods.base import Method


def compile_step(method: Method, model: nn.Module, fullgraph: bool = False) -> Any:
    """What the step calls: `model` is the method, or what DDP made of it."""
    if method.compiled is None:
        return torch.compile(model, fullgraph=fullgraph)
    for name in method.compiled:
        method.get_submodule(name).compile(fullgraph=fullgraph)
    return model


def num_graphs() -> int:
    """Graphs that this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
