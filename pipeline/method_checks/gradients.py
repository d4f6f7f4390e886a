"""What a backward pass reaches."""

import torch

from pipeline.method_checks.bench import Bench, compute_loss, name_of, quoted
from pipeline.methods.base import Method

MAX_DRAWS = 32


def check_gradients(bench: Bench) -> list[str]:
    """Every trainable parameter has a gradient in every step, and one that is not 0 in some."""
    unused = _absent_in_a_step(bench)
    method = bench.method()
    unreached = [name for name in _unreached(bench, method) if name not in unused]
    found = []
    if unused:
        found.append(
            f"{name_of(method)}.loss left {quoted(unused)} without a gradient in one step; with several processes, DDP "
            "waits for every parameter in every step: use it in each of them, remove it, or set its requires_grad to "
            "False"
        )
    if unreached:
        found.append(
            f"{name_of(method)}.loss gave {quoted(unreached)} a gradient of 0 in {MAX_DRAWS} draws; it would stay at "
            "its start: use it, remove it, or set its requires_grad to False"
        )
    return found + _not_finite(bench)


def _absent_in_a_step(bench: Bench) -> list[str]:
    found: dict[str, None] = {}
    for progress in (0.0, 0.5):
        method = bench.method()
        compute_loss(method, bench.batch(4), progress).loss.backward()
        found |= dict.fromkeys(name for name, p in method.named_parameters() if p.requires_grad and p.grad is None)
    return [*found]


def _unreached(bench: Bench, method: Method) -> list[str]:
    """Parameters whose gradient is 0 in every draw."""
    batch = bench.batch(4)
    # A first step, because timm starts a ResNet's branches from 0, which hides what is in them.
    compute_loss(method, batch).loss.backward()
    torch.optim.SGD(method.parameters(), lr=0.1).step()
    method.zero_grad()
    trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
    unreached: list[str] = []
    for _ in range(MAX_DRAWS):
        compute_loss(method, batch).loss.backward()
        unreached = [name for name, p in trained.items() if p.grad is None or not p.grad.any()]
        if not unreached:
            break
    return unreached


def _not_finite(bench: Bench) -> list[str]:
    method = bench.method()
    compute_loss(method, bench.batch(4)).loss.backward()
    names = [name for name, p in method.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
    if not names:
        return []
    return [
        f"{name_of(method)}.loss gave {quoted(names)} a gradient that is not finite; every step would be skipped: look "
        "for a root, a logarithm or a norm at 0, whose derivative is infinite, and add a small number inside it"
    ]
