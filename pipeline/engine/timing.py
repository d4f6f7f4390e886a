"""What a training step costs on this machine: seconds and peak memory, of the very step that the loop takes."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pipeline.engine.optim import OptimConfig, build_optimizer, clip_gradients, step_if_finite
from pipeline.engine.precision import Precision, in_precision
from pipeline.methods.base import Batch, Method

WARM_UP, ROUNDS = 4, 3


@dataclass(frozen=True)
class StepCost:
    rounds_s: list[float]  # seconds of a step, one mean for each round
    warm_up_s: float
    peak_memory_gib: float | None  # None on a CPU, which does not count

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds_s)


def time_step(method: Method, batch: Batch, precision: Precision, compiled: bool, steps: int) -> StepCost:
    """Draw, forward, backward, gradient norm, AdamW. On a GPU, to wait for it or to compile anew is an error."""
    device, size = next(method.parameters()).device, len(batch.targets)
    optim = OptimConfig(epochs=1, global_batch=size, micro_batch=size, base_lr=1e-4)
    optimizer = build_optimizer(method, optim)
    if compiled:
        torch._dynamo.reset()
    model = torch.compile(method, fullgraph=True) if compiled else method

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        draw = method.draw(batch, 0.5)
        with in_precision(precision, device):
            out = model(batch.images, batch.targets, draw)
        out.loss.backward()
        step_if_finite(optimizer, out.loss, clip_gradients(method, optim))

    started = time.monotonic()
    for _ in range(WARM_UP):
        step()
    _synchronise(device)
    warm_up_s = time.monotonic() - started
    with _watched(device, compiled):
        rounds = [_seconds_of(step, steps, device) / steps for _ in range(ROUNDS)]
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return StepCost(rounds, warm_up_s, memory)


@contextmanager
def _watched(device: torch.device, compiled: bool) -> Iterator[None]:
    """No step may compile anew; memory is counted from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if not compiled:
        yield
        return
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


def _seconds_of(step: Callable[[], None], steps: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    started = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    _synchronise(device)
    return time.perf_counter() - started


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
