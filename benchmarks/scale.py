"""Where does the time of several processes go? The real training loop with 1, 2, 4 and 8 of them, on one machine.

    python benchmarks/scale.py                        # DropPos on 64 px; all processes share the GPU that is there
    python benchmarks/scale.py --device cpu --model vit_demo --batch 8 --steps 10 --count 400
    python benchmarks/scale.py --processes  # trains nothing: what runs of the papers need on up to 64 GPUs

Each process has a micro-batch of its own, so that the global batch grows with them. They talk through gloo, also on a
GPU, which NCCL does not share; gradients are sent by `World.average` after the backward pass, as where steps are
recorded as CUDA graphs. A step is split by when each process begins and ends the all-reduce (they read the same
clock, and wait for the GPU before they do): it loads, computes, waits for the last to arrive, and sends. Processes that
share a GPU or too few cores take longer to compute; what the table shows of a cluster is the share of waiting, and what
is sent. The first half of the steps is not counted. Writes results/benchmarks/scale.json and prints tables.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
import torch.distributed as dist
from loop import CASES, MODELS, NUM_VAL, found_pictures, made_pictures, run_of, write_images
from PIL import Image
from report import where, write
from torch import Tensor

from pipeline.core.config import CONFIGS
from pipeline.data.store.manifest import MANIFEST
from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import Trainer
from pipeline.engine.parallel.distributed import World, leave_world
from pipeline.engine.run import RunConfig
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.plan.scaling import Files, needs_of, needs_table, ring_bytes
from pipeline.results import RunFolder
from pipeline.site import Site
from pipeline.study.resolve.entries import RunEntry
from pipeline.study.resolve.graph import load_graph

OUT = CONFIGS.parent / "results" / "benchmarks" / "scale.json"
PARTS = ("compute", "loader", "waiting", "sending")
# Of the papers' own runs on ImageNet-1K, the first of each.
AT_SCALE = [("supervised", "deit_s"), ("droppos", "deit_s"), ("droppos", "vit_b"), ("droppos", "vit_l")]


def main(words: Sequence[str] | None = None) -> None:
    options = parse_options(words)
    if "RANK" in os.environ:
        train_as_one(options)
        return
    results, needs = [], []
    with tempfile.TemporaryDirectory() as folder:
        options.work = options.work or Path(folder)
        write_images(options.work / "images", options)
        data = shared_run(options, 1).data
        prepare(data, options.work / "images", index_of(options), options.workers, progress=False)
        for size in options.processes:
            results.append(measure(size, options))
            print(line(results[-1]), flush=True)
        if options.needs:
            files, runs = measure_files(options), load_graph("paper").runs.values()
            needs = [needs_of(first_of(runs, *kind), files) for kind in AT_SCALE]
    device = torch.device(options.device)
    report = {
        **where(device, "torch"),
        "workers": options.workers,
        "runs": results,
        "needs": [need.report() for run in needs for need in run],
    }
    write(options.out, report)
    print("\n".join([*HEADER, *map(line, results)]) if results else "", needs_table(needs), sep="\n\n")


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--no-needs", dest="needs", action="store_false", help="say nothing of 64 GPUs")
    parser.add_argument("--method", default="droppos", choices=[case.method for case in CASES])
    parser.add_argument("--size", type=int, default=64, choices=sorted(MODELS), help="pixels of a side")
    parser.add_argument("--model", help="a file of configs/model; else one that fits the size")
    parser.add_argument("--batch", type=int, default=64, help="images of a process in a step")
    parser.add_argument("--steps", type=int, default=30, help="that are measured, after as many others")
    parser.add_argument("--images", type=Path, help="a folder with JPEG files")
    parser.add_argument("--count", type=int, default=4096, help="files to train on")
    parser.add_argument("--workers", type=int, default=max(0, len(os.sched_getaffinity(0)) // 8 - 1))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--eager", action="store_true", help="do not compile on a GPU")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--work", type=Path, help="folder for images and runs; else a temporary one")
    return parser.parse_args(words)


def first_of(runs: Iterable[RunEntry], method: str, model: str) -> dict[str, Any]:
    kind = method, model, "imagenet1k"
    return next(run.config for run in runs if (run.method, run.config["model"]["name"], run.data) == kind)


def shared_run(options: argparse.Namespace, size: int) -> RunConfig:
    """A run whose global batch is a micro-batch for each process."""
    if options.count < size * options.batch:
        raise SystemExit(
            f"{options.count} files are fewer than the {size * options.batch} of a step of {size} processes; "
            "raise --count or lower --batch"
        )
    case = next(case for case in CASES if case.method == options.method)
    run = run_of(case, options.batch, options)
    return run.model_copy(update={"optim": run.optim.model_copy(update={"global_batch": size * options.batch})})


def measure(size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Start the processes, and split their steps."""
    kept = ("method", "size", "model", "batch", "steps", "count", "workers", "device", "work")
    words = [word for name in kept if getattr(options, name) for word in (f"--{name}", str(getattr(options, name)))]
    command = [sys.executable, __file__, *words, *["--eager"][: options.eager]]
    places = [{"RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"} for rank in range(size)]
    wait_for([subprocess.Popen(command, env={**os.environ, **place}) for place in places])
    traces = [Trace(**json.loads(trace_path(options.work, size, rank).read_text())) for rank in range(size)]
    return {
        **{"method": options.method, "model": options.model or MODELS[options.size], "image_size": options.size},
        **{"processes": size, "batch": options.batch, **split_steps(traces, options.steps)},
    }


def wait_for(children: list[subprocess.Popen]) -> None:
    """One that fails ends the others, which would wait for it."""
    while None in (codes := [child.poll() for child in children]):
        if any(codes):
            for child in children:
                child.kill()
        time.sleep(0.1)
    if any(codes):
        raise SystemExit(f"processes ended with {codes}; what they wrote above says why")


@dataclass
class Trace:
    """What one process saw: seconds of a clock that all of them read, one for each step."""

    arrived: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)  # seconds that it took
    gradient_bytes: int = 0
    checkpoint_s: float = 0.0
    checkpoint_bytes: int = 0


def trace_path(work: Path, size: int, rank: int) -> Path:
    return work / f"trace-{size}-{rank}.json"


def train_as_one(options: argparse.Namespace) -> None:
    """`Trainer.fit` in one of the processes, stopped after twice as many steps as are measured."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if size > 1:
        store = f"file://{options.work.resolve()}/store-{size}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    is_gpu, trace = options.device == "cuda", Trace()
    world = TracedWorld(rank, size, torch.device("cuda", 0) if is_gpu else torch.device("cpu"), trace)
    run, images = shared_run(options, size), options.work / "images"
    site = Site(device=options.device, workers=options.workers, compile=is_gpu and not options.eager, graphs="on")
    stop = StopAfter(2 * options.steps, trace)
    trainer: Any = Trainer(run, RunFolder(options.work / "results", run.name), images, site, world, stop)
    batches = trainer.batches
    batches.from_step = lambda step, load=batches.from_step: timed_batches(load(step), trace)
    trainer.checkpoints.save = lambda *given, save=trainer.checkpoints.save: timed_save(save, given, trace)
    with suppress(Requeue):
        trainer.fit()
    trace_path(options.work, size, rank).write_text(json.dumps(asdict(trace)))
    leave_world(world)


@dataclass(frozen=True)
class TracedWorld(World):
    """Notes when this process comes to send its gradients, and when it has those of all."""

    trace: Trace

    def average(self, tensors: Sequence[Tensor]) -> None:
        self.trace.arrived.append(self._now())
        super().average(tensors)
        self.trace.left.append(self._now())
        self.trace.gradient_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _now(self) -> float:
        """When the device has done what it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class StopAfter(StopRequest):
    """Raised after so many steps, wherever the loop asks."""

    def __init__(self, steps: int, trace: Trace) -> None:
        super().__init__()
        self.steps, self.trace = steps, trace

    @property
    def is_raised(self) -> bool:
        return len(self.trace.left) >= self.steps


def timed_batches(loader: Any, trace: Trace) -> Iterator[Any]:
    batches, since = iter(loader), time.perf_counter()
    while (batch := next(batches, None)) is not None:
        trace.loaded.append(time.perf_counter() - since)
        yield batch
        since = time.perf_counter()


def timed_save(save: Any, given: tuple[Any, ...], trace: Trace) -> Path:
    since = time.perf_counter()
    path = save(*given)
    trace.checkpoint_s, trace.checkpoint_bytes = time.perf_counter() - since, path.stat().st_size
    return path


def split_steps(traces: list[Trace], steps: int) -> dict[str, Any]:
    """Means over processes and over the last steps, in seconds; the parts sum to the step."""
    size, parts = len(traces), dict.fromkeys(PARTS, 0.0)
    spreads = []
    for step in range(steps, 2 * steps):
        last = max(trace.arrived[step] for trace in traces)
        spreads.append(last - min(trace.arrived[step] for trace in traces))
        for trace in traces:
            computed = trace.arrived[step] - trace.left[step - 1] - trace.loaded[step]
            found = computed, trace.loaded[step], last - trace.arrived[step], trace.left[step] - last
            for name, seconds in zip(PARTS, found, strict=True):
                parts[name] += seconds / steps / size
    step_s, gradients = sum(parts.values()), traces[0].gradient_bytes
    return {
        **{"step_s": step_s, **{f"{name}_s": seconds for name, seconds in parts.items()}},
        **{"first_to_last_s": statistics.mean(spreads), "worst_first_to_last_s": max(spreads)},
        **{"gradient_bytes": gradients, "sent_bytes": ring_bytes(gradients, size)},
        **{"checkpoint_s": traces[0].checkpoint_s, "checkpoint_bytes": traces[0].checkpoint_bytes},
    }


HEADER = [
    "| processes | images/s | ms a step | computing | loading | waiting for the last | sending | first to last, ms "
    "| MB sent by each | checkpoint, MB/s |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def line(result: dict[str, Any]) -> str:
    step_s, size = result["step_s"], result["processes"]
    shares = " | ".join(f"{100 * result[f'{name}_s'] / step_s:.1f} %" for name in PARTS)
    spread = f"{1000 * result['first_to_last_s']:.2f} (at most {1000 * result['worst_first_to_last_s']:.1f})"
    rate, sent = size * result["batch"] / step_s, result["sent_bytes"] / 1e6
    saved = result["checkpoint_bytes"] / result["checkpoint_s"] / 1e6
    return f"| {size} | {rate:,.0f} | {1000 * step_s:.1f} | {shares} | {spread} | {sent:,.1f} | {saved:,.0f} |"


def measure_files(options: argparse.Namespace) -> Files:
    """Decoding of photographs on one core, and the lists that `prepare` makes of a set."""
    pictures = found_pictures(options.images) if options.images else made_pictures(224)
    pictures = (pictures * 200)[:200]
    since = time.perf_counter()
    for picture in pictures:
        Image.open(io.BytesIO(picture)).convert("RGB")
    rate = len(pictures) / (time.perf_counter() - since)
    lists = index_of(options).iterdir()
    index_bytes = sum(path.stat().st_size for path in lists if path.name != MANIFEST) / (options.count + NUM_VAL)
    return Files(statistics.mean(map(len, pictures)), rate, index_bytes)


def index_of(options: argparse.Namespace) -> Path:
    """The folder of the prepared set, which runs of any size share."""
    run = shared_run(options, 1)
    return RunFolder(options.work / "results", run.name).manifest(run.data.name).parent


if __name__ == "__main__":
    main()
