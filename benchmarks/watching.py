"""What watches a loop that is measured: its turn on the machine, the seconds of its parts, and the GPU's kernels."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch

from pipeline.engine.signals import StopRequest

LOOK_S = 0.2  # between two looks at the others that were started together
SETTLE_S = 1.0  # after the end of the one before, whose memory is still being freed
PROFILED = 5  # steps
# What a GPU's kernels are for, told by the names that cuBLAS, PyTorch and Triton give them; the first that fits.
KERNELS = {
    "attention": ("flash", "fmha", "sdpa"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "gemv"),
    "update": ("multi_tensor_apply", "lpnorm"),
    "copies": ("memcpy", "memset"),
    "compiled, element by element": ("triton",),
}


class MeasurementLock:
    """Loops that were started together compile at the same time. When all have, each has the machine for itself.

    A turn ends with its process: freeing what it had would disturb the next one.
    """

    def __init__(self, work: Path, num_together: int) -> None:
        self.folder, self.num_together = work / "arrived", num_together

    def arrive(self, process: int) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / str(process)).touch()

    def wait(self) -> None:
        if self.num_together:
            self.arrive(os.getpid())
            while len(list(self.folder.iterdir())) < self.num_together:
                time.sleep(LOOK_S)
            lock = os.open(self.folder.with_suffix(".lock"), os.O_CREAT | os.O_RDWR)  # which nothing closes
            fcntl.flock(lock, fcntl.LOCK_EX)
            time.sleep(SETTLE_S)


class Watch(StopRequest):
    """The loop asks after every step whether to stop: what it took is counted between the questions."""

    def __init__(self, steps: int, device: torch.device, turn: MeasurementLock, num_ahead: int) -> None:
        super().__init__()
        self.turn, self.num_ahead, self.is_ahead = turn, num_ahead, False
        self.steps, self.num_asked, self.kernels = steps, 0, Kernels(device)
        self.spans: dict[str, list[float]] = {}  # seconds of every call, by part
        self.host_ms: dict[str, float] = {}  # of a step
        self.longest_ms: dict[str, float] = {}  # of a call: a part that is slow once is not one that is always slow
        self.seen: Any = None

    def attach(self, trainer: Any) -> None:
        """Count the seconds of the loop's parts, all of which it calls by these names."""
        batches = trainer.batches
        batches.from_step = lambda step, load=batches.from_step: self._iterated("waiting for data", load(step))
        trainer._prepare = self._remember_result(self._time_calls("transform and draws", trainer._prepare))
        trainer._reduce_gradients = self._time_calls("all-reduce", trainer._reduce_gradients)
        trainer._update_weights = self._time_calls("update", trainer._update_weights)
        run = trainer.recorder.run
        trainer.recorder.run = lambda part, *given: (
            run(part, *given) if part is trainer.update else self._time_calls("forward and backward", run)(part, *given)
        )

    def _time_calls(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            started = time.perf_counter()
            found = function(*given)
            self.spans.setdefault(name, []).append(time.perf_counter() - started)
            return found

        return timed

    def _remember_result(self, see: Callable[..., Any]) -> Callable[..., Any]:
        """The last micro-batch as the method saw it."""

        def kept(*given: Any) -> Any:
            self.seen = see(*given)
            return self.seen

        return kept

    def _iterated(self, name: str, loader: Any) -> Iterator[Any]:
        batches = iter(loader)
        take = self._time_calls(name, lambda: next(batches, None))
        while (batch := take()) is not None:
            yield batch
            if self.is_ahead:
                # Made while the step was compiled. Training on them would hide a loader that is too slow.
                for _ in range(self.num_ahead):
                    next(batches, None)
                self.is_ahead = False

    @property
    def is_raised(self) -> bool:
        self.num_asked += 1
        if self.num_asked == self.steps - 1:
            self.turn.wait()  # before the step after which the clock starts
            self.is_ahead = True
        if self.num_asked == self.steps:
            self.spans.clear()
        if self.num_asked == 2 * self.steps:
            self.host_ms = {name: round(1000 * sum(spans) / self.steps, 3) for name, spans in self.spans.items()}
            self.longest_ms = {name: round(1000 * max(spans), 3) for name, spans in self.spans.items()}
            self.kernels.start()
        if self.num_asked < 2 * self.steps + PROFILED:
            return False
        self.kernels.stop()
        return True


class Kernels:
    """Milliseconds of a step by what the GPU's kernels are for, over a few steps. Kernels may run side by side."""

    def __init__(self, device: torch.device) -> None:
        self.is_gpu, self.ms = device.type == "cuda", dict[str, float]()
        self.profile: Any = None

    def start(self) -> None:
        if self.is_gpu:
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profile.start()

    def stop(self) -> None:
        if self.profile:
            torch.cuda.synchronize()
            self.profile.stop()
            for event in self.profile.key_averages():
                use = use_of(event.key)
                self.ms[use] = round(self.ms.get(use, 0.0) + event.self_device_time_total / 1000 / PROFILED, 4)


def use_of(kernel: str) -> str:
    return next((use for use, parts in KERNELS.items() if any(part in kernel.lower() for part in parts)), "others")
