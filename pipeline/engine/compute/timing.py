"""What a training step costs on this machine: seconds and peak memory, of the very step that the loop takes."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pipeline.engine.compute.compiling import compile_step, num_graphs
from pipeline.engine.compute.graphs import WARM_UP, Recorder
from pipeline.engine.compute.precision import Precision
from pipeline.engine.meters import Meters
from pipeline.engine.optim import OptimConfig, build_optimizer, make_capturable, rates_of
from pipeline.engine.parallel.distributed import World
from pipeline.engine.step import MicroStep, Update
from pipeline.methods.base import Batch, Method

ROUNDS = 3
SETTLED = 2  # steps after which a step that is recorded has been recorded, and replayed once


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


def time_step(
    method: Method,
    batch: Batch,
    precision: Precision,
    compiled: bool,
    steps: int,
    graphs: bool = False,
) -> StepCost:
    """Draw, forward, backward, gradient norm, AdamW. On a GPU, to wait for it or to compile anew is an error.

    A method whose loss is not one graph may wait: shapes in the middle of it depend on values. `graphs`: the others
    are recorded, as the loop does where a site compiles.
    """
    device, may_wait = next(method.parameters()).device, method.compiled is not None
    if compiled:
        torch._dynamo.reset()
    graphs_before = num_graphs() if compiled else 0
    step = build_step(method, batch, precision, compiled, graphs and not may_wait)
    started = time.monotonic()
    for _ in range(WARM_UP):
        step()
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # a replay allocates nothing: the recording is counted
    for _ in range(SETTLED):
        step()
    synchronise(device)
    warm_up_s = time.monotonic() - started
    with _never_compiling(compiled and not may_wait):
        rounds = [_seconds_of(step, steps, device, may_wait) / steps for _ in range(ROUNDS)]
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    compiled_graphs = num_graphs() - graphs_before if compiled else 0
    gpu_s = _kernel_seconds(step) if device.type == "cuda" else None
    return StepCost(rounds, warm_up_s, memory, compiled_graphs, gpu_s)


def build_step(
    method: Method,
    batch: Batch,
    precision: Precision,
    compiled: bool = False,
    recorded: bool = False,
) -> Callable[[], None]:
    """The parts of the loop's own step, on one batch."""
    device, size = next(method.parameters()).device, len(batch.targets)
    optim = OptimConfig(epochs=1, global_batch=size, micro_batch=size, base_lr=1e-4)
    optimizer, meters = build_optimizer(method, optim), Meters(World(0, 1, device))
    model = compile_step(method, method, fullgraph=True) if compiled else method
    micro_step = MicroStep(method, model, precision, device, meters, 1)
    update = Update(method, optimizer, optim, None, meters)
    recorder = Recorder(recorded, device.type == "cuda")
    make_capturable(optimizer, recorder.reads_rates)

    def step() -> None:
        recorder.run(micro_step.first, batch.inputs, batch.targets, method.draw(batch, 0.5))
        rates = [rates_of(optimizer, device)] if recorder.reads_rates else []
        recorder.run(update, micro_step.sums[0], *rates)
        recorder.updated()

    return step


@contextmanager
def _never_compiling(is_compiled: bool) -> Iterator[None]:
    """No step may compile anew."""
    if not is_compiled:
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
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
