"""What a training step costs on this machine: seconds and peak memory, of the very step that the loop takes."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pipeline.engine.compiling import compile_step, num_graphs
from pipeline.engine.optim import OptimConfig, build_optimizer, clip_gradients, step_if_finite
from pipeline.engine.precision import Precision, in_precision
from pipeline.methods.base import Batch, Method

WARM_UP, ROUNDS = 4, 3


@dataclass(frozen=True)
class StepCost:
    rounds_s: list[float]  # seconds of a step, one mean for each round
    warm_up_s: float
    peak_memory_gib: float | None  # None on a CPU, which does not count
    graphs: int = 0  # that were compiled
    gpu_s: float | None = None  # seconds of a step in which kernels ran, if they ran one after the other

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds_s)


def time_step(method: Method, batch: Batch, precision: Precision, compiled: bool, steps: int) -> StepCost:
    """Draw, forward, backward, gradient norm, AdamW. On a GPU, to wait for it or to compile anew is an error.

    A method whose loss is not one graph may wait: shapes in the middle of it depend on values.
    """
    device, size = next(method.parameters()).device, len(batch.targets)
    optim = OptimConfig(epochs=1, global_batch=size, micro_batch=size, base_lr=1e-4)
    optimizer = build_optimizer(method, optim)
    if compiled:
        torch._dynamo.reset()
    graphs_before = num_graphs() if compiled else 0
    model = compile_step(method, method, fullgraph=True) if compiled else method

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
    may_wait = method.compiled is not None
    with _watched(device, compiled and not may_wait):
        rounds = [_seconds_of(step, steps, device, may_wait) / steps for _ in range(ROUNDS)]
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    graphs = num_graphs() - graphs_before if compiled else 0
    return StepCost(rounds, warm_up_s, memory, graphs, _kernel_seconds(step) if device.type == "cuda" else None)


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


def _kernel_seconds(step: Callable[[], None]) -> float:
    """Of one step on the GPU: the rest of the time it waits for the host."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6


def _seconds_of(step: Callable[[], None], steps: int, device: torch.device, may_wait: bool = False) -> float:
    if device.type == "cuda" and not may_wait:
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
