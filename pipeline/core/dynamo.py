"""timm, torchvision and AdamW without torch._dynamo, which they import and hardly use.

torch._dynamo takes longer to import than torch itself (with sympy, triton and more), and only `torch.compile` needs it.
The libraries import it for less: torchvision for one function, timm for a limit of one of its optimisers, torch's
optimisers to tell the compiler to keep out. Code that compiles imports torch._dynamo first, as `Trainer` does: then
`dynamo_deferred` does nothing, and every library is as it comes.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

DYNAMO, UTILS, DTENSOR = "torch._dynamo", "torch._dynamo.utils", "torch.distributed.tensor"
# timm's Kron and Muon, which nobody here uses, look for these when they are imported, and can do without.
ABSENT = {f"{DYNAMO}.config", f"{DTENSOR}.DTensor"}


@contextmanager
def dynamo_deferred() -> Iterator[None]:
    """Imports of timm and torchvision in here leave torch._dynamo for later, unless it is imported already."""
    if DYNAMO in sys.modules:
        yield
        return
    sys.modules |= {name: _StandIn(name) for name in (DYNAMO, UTILS, DTENSOR) if name not in sys.modules}
    try:
        yield
    finally:
        _remove_stand_ins()


class _StandIn(ModuleType):
    """Answers what the libraries ask for while they are imported; anything else comes from the real module."""

    def __getattr__(self, name: str) -> Any:
        asked = f"{self.__name__}.{name}"
        if asked in ANSWERS:
            return ANSWERS[asked]
        # `inspect` and `import` ask every module for names with underscores; for this one, to import a part of it.
        if asked in ABSENT or (name.startswith("__") and asked != f"{DYNAMO}.__path__"):
            raise AttributeError(f"no {asked} before torch._dynamo is imported")
        _remove_stand_ins()
        return getattr(importlib.import_module(self.__name__), name)


def _remove_stand_ins() -> None:
    for name in (DYNAMO, UTILS, DTENSOR):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _is_compile_supported(device_type: str) -> bool:
    return importlib.import_module(UTILS).is_compile_supported(device_type)


def never_compiled(function: Callable, recursive: bool = True, reason: str | None = None) -> Callable:
    """`torch.compiler.disable`, which imports torch._dynamo at the first call and not before."""
    return torch._disable_dynamo(function, recursive)


ANSWERS = {f"{UTILS}.is_compile_supported": _is_compile_supported, f"{DYNAMO}.disable": never_compiled}


class AdamW(torch.optim.AdamW):
    """torch's AdamW with its own methods, less the wrappers that keep the compiler out: an update is never compiled."""

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
