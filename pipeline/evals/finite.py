"""Refuse outputs that are not finite: NaN compares as smaller and as larger, so it can look like a perfect score.

The outputs of each part of a subject are watched while an evaluation runs it; nothing waits for the device before
`refuse` is called. Passes inside torch's `vmap` (attacks on gradients) cannot be watched; there the gradients are
checked where a client sends them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.core.errors import CheckpointError, NumericsError
from pipeline.core.trees import tensors_of

DEPTH = 3  # such as encoder.transformer.ln_f
ADVICE = "check the weights, or set `precision: fp32` in the site file if it computes in bf16"


class NonFiniteOutputs:
    """Which parts of the watched models gave outputs that are not finite."""

    def __init__(self) -> None:
        self.failed: dict[str, Tensor] = {}  # name of a part -> 0-d bool on its device

    def refuse(self) -> None:
        """Raise if any output was not finite."""
        names = [name for name, failed in self.failed.items() if failed]
        if names:
            raise NumericsError(
                f"{names[0]} of the model gave outputs that are not finite (NaN or infinity), so no metric can be "
                f"computed from them; {ADVICE}"
            )

    def hook(self, name: str) -> Callable[..., None]:
        """A forward hook for one part; a function, because a copy of a model must share it, not copy it."""

        def look(module: nn.Module, given: Any, output: Any) -> None:
            for tensor in _plain_tensors(output):
                failed = ~tensor.detach().isfinite().all()
                self.failed[name] = self.failed[name] | failed if name in self.failed else failed

        return look


@contextmanager
def finite_outputs(methods: Iterable[Any]) -> Iterator[NonFiniteOutputs]:
    """Watch methods, and refuse at the end; an error that such an output has caused gives way to the refusal."""
    watch = NonFiniteOutputs()
    with ExitStack() as stack:
        for method in methods:
            _refuse_weights(method)
            for name, part in _parts_of(method).items():
                stack.callback(part.register_forward_hook(watch.hook(name)).remove)
        try:
            yield watch
        except Exception:
            watch.refuse()
            raise
        watch.refuse()


def _refuse_weights(method: nn.Module) -> None:
    broken = [name for name, value in method.named_parameters() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"{', '.join(broken[:3])} of the model {'has' if len(broken) == 1 else 'have'} values that are not finite "
            "(NaN or infinity); expected the weights of a model that was trained to its end"
        )


def _parts_of(method: nn.Module) -> dict[str, nn.Module]:
    """The parts with weights down to those of a network inside the encoder, but not each block of a sequence."""
    return {
        name: part
        for name, part in method.named_modules()
        if name and name.count(".") < DEPTH and not name.rpartition(".")[2].isdigit() and _has_weights(part)
    }


def _has_weights(part: nn.Module) -> bool:
    return next(part.parameters(), None) is not None


def _plain_tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output that are not inside a `vmap`; other objects hold none."""
    try:
        found = list(tensors_of(output))
    except TypeError:
        return []
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [each for each in found if each.is_floating_point() and not is_wrapped(each)]
