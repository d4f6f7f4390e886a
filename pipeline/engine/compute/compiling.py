"""Compiling a training step: the whole loss as one graph, or those parts of it that a method names.

A detector chooses among its own proposals, so that shapes depend on values in the middle of its loss; its encoder and
its heads compile all the same.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.methods.base import Method
from pipeline.results import compiled_folder
from pipeline.site import Site

KEPT_IN = "TORCHINDUCTOR_CACHE_DIR"


def prepare_to_compile(site: Site) -> None:
    """Where the site compiles: call this before timm is imported.

    torch keeps what it has compiled, in a folder that is temporary unless it is told another; the next run of the same
    model then only traces it. The folder may be shared: files are written atomically, and found by a digest of the
    code, the versions and the GPU.
    """
    if not site.compile:
        return
    folder = Path(os.path.expandvars(site.compiled)).expanduser() if site.compiled else compiled_folder()
    os.environ.setdefault(KEPT_IN, str(folder.absolute()))
    importlib.import_module("torch._dynamo")  # before timm, which then raises its limit of recompilations


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
