"""Whether a method learns, and in which precision."""

from collections.abc import Callable, Iterator

import torch

from pipeline.method_checks.bench import Bench, compute_loss, name_of, quoted, seeded
from pipeline.methods.base import Batch, Method

STEPS, BAR, RATE = 200, 0.25, 6e-3  # the mean of a patch gives MAE half of its start; less takes the pixels
BF16_BOUND = 0.02  # relative difference to float32


def check_overfits(bench: Bench, steps: int = STEPS, bar: float = BAR, same_draw: bool = True) -> list[str]:
    """A few updates on one batch bring the loss down to a share `bar` of its start.

    With `same_draw` the draw is one as well, that of progress 1, where DropPos no longer smooths its targets and its
    loss can reach 0. Else each step has its own, and what counts is the loss at progress 0, so that the last draw does
    not decide.
    """
    method, batch = bench.method(), bench.batch(2 if same_draw else 8)
    judged = 1.0 if same_draw else 0.0

    def given() -> Batch:
        return seeded(batch, 3) if same_draw else batch

    first = found = compute_loss(method, given(), judged).loss.item()
    for step in _train(method, given, steps, judged):
        if step % 10 == 0:
            found = min(found, compute_loss(method, given(), judged).loss.item())
        if found < bar * first:
            return []
    return [
        f"{name_of(method)} does not overfit one batch: the loss went from {first:.4g} to {found:.4g} in {steps} "
        f"updates, expected less than {bar * first:.4g}: check that the loss compares a sample with its own target, "
        "that no part of the model is detached, and that the target can be told from what the model sees"
    ]


def _train(method: Method, given: Callable[[], Batch], steps: int, judged: float) -> Iterator[int]:
    """Yields after every step."""
    optimizer = torch.optim.AdamW(method.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(1, steps + 1):
        progress = judged or step / steps
        out = compute_loss(method, given(), progress)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        yield step


def check_bf16(bench: Bench) -> list[str]:
    """Under autocast the loss is float32, close to that of float32, and its gradients are finite."""
    method, batch = bench.method(), bench.batch(8)
    plain = compute_loss(method, seeded(batch, 3)).loss.item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = compute_loss(method, seeded(batch, 3)).loss
    name, found = name_of(method), []
    if loss.dtype != torch.float32:
        found.append(
            f"{name}.loss returned {loss.dtype} under bf16 autocast, expected torch.float32: a mean in bf16 has three "
            "digits; convert before it, `logits.float()`"
        )
    if not abs(loss.item() - plain) <= BF16_BOUND * abs(plain):
        found.append(
            f"{name}.loss is {loss.item():.4g} under bf16 autocast and {plain:.4g} in float32, expected at most "
            f"{BF16_BOUND:.0%} apart: compute sums, roots and exponentials in float32, `x.float()`"
        )
    loss.backward()
    infinite = [key for key, p in method.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
    if infinite:
        found.append(
            f"{name}.loss gave {quoted(infinite)} a gradient that is not finite under bf16 autocast; use x.float()"
        )
    return found
