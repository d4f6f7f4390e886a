"""What `draw` and `loss` return, and what they must leave alone."""

from collections.abc import Iterator

import torch
from timm.layers import DropPath, PatchDropout
from torch import Tensor, nn

from pipeline.core.seeds import random_state
from pipeline.core.trees import map_tree
from pipeline.method_checks.bench import (
    Bench,
    compute_loss,
    copied,
    differing_keys,
    is_same,
    name_of,
    quoted,
    run_check,
    seeded,
)
from pipeline.methods.base import Method, Output

PROGRESS = (0.0, 0.5, 1.0)
SEVERAL_TIMES, MEAN_BOUND = 4, 2.5  # a mean over more samples moves; a sum grows with their number
SOURCES = ("its generator", "torch's global generator", "numpy's or Python's global generator")


def check_outputs(bench: Bench) -> list[str]:
    """The loss is a finite scalar with a gradient; scalars to log are finite and detached."""
    method, batch = bench.method(), bench.batch(8)
    found = [line for share in PROGRESS for line in _output_problems(method, compute_loss(method, batch, share), share)]
    return [*dict.fromkeys(found)]


def _output_problems(method: Method, out: Output, progress: float) -> Iterator[str]:
    where = f"{name_of(method)}.loss returned"
    if not isinstance(out, Output):
        yield f"{where} a {type(out).__name__}, expected Output(loss, scalars): import it from pipeline.methods.base"
        return
    yield from _value_problems(f"{where} a loss", out.loss, progress)
    if isinstance(out.loss, Tensor) and not out.loss.requires_grad:
        yield (
            f"{where} a loss without a gradient; training descends it, so it must depend on the parameters: "
            "look for detach(), torch.no_grad() or argmax on the way to it"
        )
    for name, value in out.scalars.items():
        yield from _value_problems(f'{where} scalar "{name}"', value, progress)
        if isinstance(value, Tensor) and value.requires_grad:
            yield (
                f'{where} scalar "{name}" that still requires grad; what is logged must not keep the graph of a step '
                f'in memory: detach it, `"{name}": value.detach()`'
            )
    if out.weight is not None:
        yield from _value_problems(f"{where} a weight", out.weight, progress)


def _value_problems(what: str, value: object, progress: float) -> Iterator[str]:
    """One number must be a finite tensor without axes."""
    if not isinstance(value, Tensor):
        yield (
            f"{what} that is a {type(value).__name__}, expected a tensor of shape (): .item() and float() make the "
            "GPU wait in every step; leave out the call"
        )
    elif value.shape != ():
        yield f"{what} of shape {tuple(value.shape)}, expected one number of shape (): take its mean, `.mean()`"
    elif not torch.isfinite(value):
        yield (
            f"{what} that is {value.item()} at progress {progress:g}, expected a finite number: look for log(0), a "
            "division by 0, the root of 0, or a mean over nothing"
        )


def check_randomness(bench: Bench) -> list[str]:
    """Everything random is drawn in `draw`, from the batch's generator: only then is a run resumed exactly."""
    method, batch = bench.method(), bench.batch(8)
    _turn_dropout_off(method)
    name, found = name_of(method), []
    before, given = random_state(torch.Generator()), seeded(batch, 3)
    draw = method.draw(given, 0.5)
    if used := _used(before, random_state(torch.Generator())):
        found.append(
            f"{name}.draw used {used}; it must be the batch's own, or a resumed run differs: pass "
            "generator=batch.generator, and move the result with .to(batch.images.device)"
        )
    keys = differing_keys(draw, method.draw(seeded(batch, 3), 0.5))
    if keys and not found:
        found.append(f"{name}.draw gave another {quoted(keys)} for the same seed; draw from batch.generator alone")
    before = random_state(torch.Generator())
    losses = [method(*copied(batch), draw).loss.detach() for _ in range(2)]
    if (used := _used(before, random_state(torch.Generator()))) or not is_same(*losses):
        what = f"used {used}" if used else f"gave {losses[0]:.6g} and {losses[1]:.6g} for the same inputs"
        found.append(
            f"{name}.loss {what}; it must be a function of its inputs, targets and draw alone: draw what is random in "
            "`draw`, and return it there as a tensor"
        )
    return found


def _used(before: tuple[bytes, ...], after: tuple[bytes, ...]) -> str:
    """Which generators were used in between, in words; the first one is not of interest."""
    return " and ".join(word for word, one, other in zip(SOURCES, before, after, strict=False) if one != other)


def _turn_dropout_off(method: Method) -> None:
    """Dropout is the one thing that `loss` may draw by itself."""
    for part in method.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, DropPath):
            part.drop_prob = 0.0
        elif isinstance(part, PatchDropout):
            part.prob = 0.0


def check_inputs_kept(bench: Bench) -> list[str]:
    """Nobody changes a batch or a draw in place: a recorded step reads the same tensors again."""
    method, batch = bench.method(), bench.batch(8)
    name, found = name_of(method), []
    given = {"batch.inputs": batch.inputs, "batch.targets": batch.targets}
    before = map_tree(torch.clone, given)
    draw = method.draw(batch, 0.5)
    if keys := differing_keys(before, given):
        found.append(_in_place(f"{name}.draw", keys))
    given = {"inputs": batch.inputs, "targets": batch.targets, **{f'draw["{key}"]': draw[key] for key in draw}}
    before = map_tree(torch.clone, given)
    method(batch.inputs, batch.targets, draw)
    if keys := differing_keys(before, given):
        found.append(_in_place(f"{name}.loss", keys))
    return found


def _in_place(who: str, keys: list[str]) -> str:
    return (
        f"{who} changed {', '.join(keys)} in place; a batch is read again by whoever has it: make a new tensor, "
        "`x = x + y` instead of `x += y`, `x.add(y)` instead of `x.add_(y)`"
    )


def check_batch_sizes(bench: Bench) -> list[str]:
    """Any number of samples is a batch, and the loss is a mean over them."""
    few, many = bench.batch(4), bench.batch(4 * SEVERAL_TIMES)
    name = name_of(bench.method())
    if found := run_check(lambda bench: _loss_with(bench, 3), bench):
        return [f"{found[0]} with 3 samples; a batch may have any number of them: take it from the batch, len(images)"]
    one, other = (compute_loss(bench.method(), seeded(batch, 3)).loss.item() for batch in (few, many))
    if abs(other) > MEAN_BOUND * abs(one):
        return [
            f"{name}.loss grows with the batch: {one:.4g} with 4 samples, {other:.4g} with {4 * SEVERAL_TIMES}; it "
            "must be a mean over them, since micro-batches and processes are averaged: take the mean, not the sum"
        ]
    return []


def _loss_with(bench: Bench, count: int) -> list[str]:
    compute_loss(bench.method(), bench.batch(count))
    return []
