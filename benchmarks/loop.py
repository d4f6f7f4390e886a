"""Does training wait? The real loop, from JPEG files, beside its bare step on data that lies on the device, in one run.

    python benchmarks/loop.py --size 64 --batch 128 512 --workers 14
    python benchmarks/loop.py --size 224 --images /data/photos    # files found below a folder, repeated until enough
    python benchmarks/loop.py --size 224 --batch 256 --record     # keep the rates for `plan`, in configs/speed
    python benchmarks/loop.py --size 64 --together                # compile all at once, then measure one by one
    python benchmarks/loop.py --summary                           # of the recorded rates, as README has it
    python benchmarks/loop.py --device cpu --size 64 --batch 4 --steps 2 --count 40 --only droppos

Without `--images`, JPEG files of smooth noise are made. `Trainer.fit` runs as in any training; the first half of its
steps compiles, records and fills the loader, the second half is measured. Host time by part is what the main process
spends in each; where it is ahead of the GPU, waiting for a place in its queue is part of it, so that parts say where
time goes only while the GPU is not busy all along. Writes results/benchmarks/loop.json, where loops that were measured
before on such a machine stay, and prints a table. `python -m pipeline plan` takes rates from there, and else from
configs/speed/h200_loop.json, which `--record` fills on an H200.
"""

import argparse
import gc
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import numpy as np
import torch
from PIL import Image
from report import where, write
from watching import LOOK_S, PROFILED, Kernels, MeasurementLock, Watch

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.core.files import read_lines
from pipeline.data.images.gpu.interface import Completion
from pipeline.data.loader import BATCHES_AHEAD
from pipeline.data.store.prepare import prepare
from pipeline.engine.compute.timing import ROUNDS, synchronise
from pipeline.engine.loop import Trainer
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig, parse_run
from pipeline.engine.signals import Requeue
from pipeline.plan.operations import step_cost
from pipeline.plan.speed import H200_LOOPS
from pipeline.results import RunFolder
from pipeline.site import Site

OUT = CONFIGS.parent / "results" / "benchmarks" / "loop.json"
NUM_CLASSES, NUM_VAL = 10, 20
MODELS = {64: "deit_s_patch8", 224: "vit_b"}
PRETRAIN = {"augment": {"scale": [0.2, 1.0]}}
DEIT = read_yaml(CONFIGS / "recipe" / "mjp.yaml")["data"]


@dataclass(frozen=True)
class Case:
    """A method with the views of its recipe."""

    method: str
    label: str
    model_keys: dict[str, Any]
    data: dict[str, Any]
    optim: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("supervised", "supervised, DeiT's recipe", {}, DEIT, {"smoothing": 0.1}),
    Case("mjp", "MJP, DeiT's recipe", {}, DEIT, {"smoothing": 0.1, "clip_norm": 5.0}),
    Case("mp3", "MP3", {"pos_embed": "none"}, PRETRAIN),
    Case("droppos", "DropPos", {"pos_embed": "sincos"}, PRETRAIN, {"clip_norm": 5.0, "clip_mode": "tensor"}),
    Case("mae", "MAE", {"pos_embed": "sincos"}, PRETRAIN),
]


def main() -> None:
    options = parse_options()
    if options.summary:
        print("\n".join(summary(json.loads(H200_LOOPS.read_text())["loops"])))
        return
    cases = [case for case in CASES if any(word in case.method for word in options.only)]
    if not cases:
        wanted, there = " or ".join(options.only), ", ".join(case.method for case in CASES)
        raise SystemExit(f"no method contains {wanted}; there are: {there}")
    if options.turn:
        measure_all(cases, options.turn, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_images(work / "images", options)
        for case in cases:
            prepare_images(run_of(case, options.batch[0], options), work, options)
        results = measure_together(cases, work, options) if options.together else measure_all(cases, work, options)
    print("\n".join([*HEADER, *map(line, results)]))


def measure_all(cases: list[Case], work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for case in cases:
        for batch in options.batch:
            results.append(measure(case, batch, work, options))
            print(line(results[-1]), flush=True)
            keep(results, options)
    return results


def measure_together(cases: list[Case], work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One process for each loop. They compile at the same time, which is most of the time that a loop takes."""
    loops = [(case, batch) for case in cases for batch in options.batch]
    own = ["--turn", str(work), "--num-together", str(len(loops))]
    # Torch compiles with as many processes as there are cores, in each of them.
    compilers = max(1, 2 * len(os.sched_getaffinity(0)) // len(loops))
    env = {"TORCHINDUCTOR_COMPILE_THREADS": str(compilers), **os.environ}
    started = {
        f"{case.method}, batch {batch}": subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], *own, "--only", case.method, "--batch", str(batch)], env=env
        )
        for case, batch in loops
    }
    while any(process.poll() is None for process in started.values()):
        for process in started.values():
            if process.poll() is not None:
                MeasurementLock(work, len(loops)).arrive(process.pid)  # nobody waits for one that failed
        time.sleep(LOOK_S)
    failed = [name for name, process in started.items() if process.returncode]
    if failed:
        raise SystemExit(f"these loops failed, as said above: {'; '.join(failed)}")
    methods = [case.method for case in cases]
    return [
        result
        for result in json.loads(options.out.read_text())["loops"]
        if result["name"] in methods and result["batch"] in options.batch and result["image_size"] == options.size
    ]


def keep(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """After every loop: what was measured stays, whatever becomes of the next one."""
    device = torch.device(options.device)
    report = {
        **where(device, "torch", "timm"),
        "precision": "bf16" if device.type == "cuda" else "fp32",
        "workers": options.workers,
        "loops": results,
    }
    for path in [options.out, H200_LOOPS] if options.record else [options.out]:
        write(path, {**report, "loops": earlier(path, report) + results})


def earlier(path: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """What an earlier run on such a machine left in the file and this one did not measure again."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    if any(kept.get(key) != report[key] for key in ("device", "versions", "precision", "cores", "workers")):
        return []
    again = [kind_of(loop) for loop in report["loops"]]
    return [loop for loop in kept["loops"] if kind_of(loop) not in again]


def kind_of(loop: dict[str, Any]) -> list[Any]:
    return [loop[key] for key in ("name", "model", "image_size", "batch", "recorded")]


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="methods whose name contains one of these")
    parser.add_argument("--size", type=int, default=64, choices=sorted(MODELS), help="pixels of a side")
    parser.add_argument("--model", help="a file of configs/model; else one that fits the size")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=100, help="at least 2 that are measured, after as many others")
    parser.add_argument("--images", type=Path, help="a folder with JPEG files")
    parser.add_argument("--cache", action="store_true", help="read from a cache, as large sets may be")
    parser.add_argument("--count", type=int, default=20000, help="files to train on")
    parser.add_argument("--workers", type=int, default=max(0, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graphs", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--views", default="auto", choices=["auto", "host", "device"], help="as in a site file")
    parser.add_argument(
        "--together",
        action="store_true",
        help="a process for each loop: all compile at once, then one measures at a time",
    )
    parser.add_argument("--turn", type=Path, help=argparse.SUPPRESS)  # the folder of the one that started this process
    parser.add_argument("--num-together", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--record", action="store_true", help=f"keep the rates in {H200_LOOPS.name}, for `plan`")
    parser.add_argument("--summary", action="store_true", help="print the recorded rates as a table, and measure none")
    options = parser.parse_args(words)
    found = "a CPU" if options.device == "cpu" else torch.cuda.get_device_name(torch.device(options.device))
    if options.record and "H200" not in found:
        raise SystemExit(
            f"--record keeps rates of an H200, and this is {found}; leave it out: `plan` reads {OUT.name} first"
        )
    return options


def write_images(folder: Path, options: argparse.Namespace) -> None:
    """The layout of one's own images: files found, or made, each as often as it takes."""
    pictures = found_pictures(options.images) if options.images else made_pictures(options.size)
    for split, count in (("train", options.count), ("val", NUM_VAL)):
        for number in range(count):
            path = folder / split / f"class{number % NUM_CLASSES}" / f"{number:07d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pictures[number % len(pictures)])


def found_pictures(folder: Path) -> list[bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{folder} has no JPEG files; give another folder, or none")
    return [path.read_bytes() for path in paths[:5000]]


def made_pictures(size: int) -> list[bytes]:
    """Tiny ImageNet's 64 px, or the 500 x 375 px that many photos of ImageNet have; about as many bytes as those."""
    rng, shape = np.random.default_rng(0), (64, 64) if size == 64 else (500, 375)
    return [_jpeg(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8), shape) for _ in range(50)]


def _jpeg(coarse: np.ndarray, shape: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(shape, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def run_of(case: Case, batch: int, options: argparse.Namespace) -> RunConfig:
    model = read_yaml(CONFIGS / "model" / f"{options.model or MODELS[options.size]}.yaml")
    method = read_yaml(CONFIGS / "method" / f"{case.method}.yaml")
    data = {
        **{"name": "files", "source": "folder", "image_size": options.size, "channels": 3, "num_classes": NUM_CLASSES},
        **{"num_train": options.count, "num_val": NUM_VAL, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
    # More steps than are taken: the loop is stopped before it validates.
    steps = 4 * (options.steps + PROFILED) + num_ahead(options.workers)
    optim = {"iterations": steps, "global_batch": batch, "micro_batch": batch, "base_lr": 1e-4}
    own = {"model": case.model_keys, "data": {**data, **case.data}, "optim": {**optim, **case.optim}}
    own["optim"] |= {"log_every": options.steps, "validate_every": steps}
    return parse_run(Layers(("model", model), ("method", method), ("the benchmark", own)))


def measure(case: Case, batch: int, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    run, site = run_of(case, batch, options), site_of(work, options)
    if site.compile:
        torch._dynamo.reset()  # else the second size of a batch would be compiled for all sizes
    watch = Watch(
        options.steps, device_of(site.device), MeasurementLock(work, options.num_together), num_ahead(options.workers)
    )
    loop = measure_loop(run, work, site, watch)
    gc.collect()  # the loop's memory, and its workers
    bare = batch / loop["bare_s"]
    kernel_s = sum(loop["kernels_ms"].values()) / 1000
    busy = min(1.0, kernel_s * loop["images_per_s"] / batch) if watch.kernels.is_gpu else None
    return {
        **{"name": run.method.name, "model": run.model.name, "image_size": options.size, "batch": batch},
        **{"gflop_per_image": step_cost(run)["gflop_per_image"], "recorded": loop["recorded"]},
        **{"loop_images_per_s": loop["images_per_s"], "bare_images_per_s": bare, "ratio": loop["images_per_s"] / bare},
        **{"gpu_busy": busy, "data_wait": loop["data_wait"]},
        **{name: loop[name] for name in ("host_ms", "longest_ms", "kernels_ms", "bare_kernels_ms")},
    }


def site_of(work: Path, options: argparse.Namespace) -> Site:
    return Site(
        **{"device": options.device, "workers": options.workers, "compile": options.device != "cpu"},
        **{
            "graphs": options.graphs,
            "views": options.views,
            "data": {"files": work / "images"},
            "cache": work / "cache" if options.cache else None,
        },
    )


def prepare_images(run: RunConfig, work: Path, options: argparse.Namespace) -> None:
    site, manifest = site_of(work, options), RunFolder(work / "results", run.name).manifest(run.data.name)
    if site.cache or not manifest.exists():
        prepare(run.data, site.data["files"], manifest.parent, site.workers, progress=False, cache=site.cache)


def num_ahead(workers: int) -> int:
    """Batches that may be ready before they are asked for: those of the workers, and one on the device."""
    return BATCHES_AHEAD * workers + 1


def device_of(name: str) -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def measure_loop(run: RunConfig, work: Path, site: Site, watch: Watch) -> dict[str, Any]:
    """`Trainer.fit`, stopped after twice as many steps and a few that are profiled; then its step on one batch."""
    steps, device = watch.steps, device_of(site.device)
    paths = RunFolder(work / "results", run.name)
    if site.cache:
        Completion.free_share = 0.0  # as of a set that is too large for the GPU's memory
    trainer = Trainer(run, paths, site.data["files"], site, World(0, 1, device), watch)
    watch.attach(trainer)
    with suppress(Requeue):
        trainer.fit()
    timing = [record for record in read_lines(paths.timing) if record["step"] == 2 * steps][-1]
    return {
        **{name: timing[name] for name in ("images_per_s", "data_wait")},
        **bare_step(trainer, watch.seen, steps, device),
        **{"kernels_ms": watch.kernels.ms, "host_ms": watch.host_ms, "longest_ms": watch.longest_ms},
        "recorded": bool(timing.get("recorded")),
    }


def bare_step(trainer: Trainer, seen: Any, steps: int, device: torch.device) -> dict[str, Any]:
    """Of the trainer's own step, compiled and recorded as it is, on one batch that lies on the device."""

    def step() -> None:
        trainer.recorder.run(trainer.micro_step.first, *seen)
        trainer._update_weights(trainer._reduce_gradients())

    rounds = []
    for _ in range(ROUNDS):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise(device)
        rounds.append((time.perf_counter() - started) / steps)
    kernels = Kernels(device)
    kernels.start()
    for _ in range(PROFILED):
        step()
    kernels.stop()
    return {"bare_s": statistics.median(rounds), "bare_kernels_ms": kernels.ms}


HEADER = [
    "| loop | batch | images/s | bare step | ratio | GPU busy | waiting for data | host, ms a step (longest) |",
    "|---|---|---|---|---|---|---|---|",
]


def line(result: dict[str, Any]) -> str:
    busy = f"{100 * result['gpu_busy']:.0f} %" if result["gpu_busy"] is not None else "n/a"
    host = ", ".join(f"{name} {ms:.2g} ({result['longest_ms'][name]:.2g})" for name, ms in result["host_ms"].items())
    rates = " | ".join(f"{result[name]:,.0f}" for name in ("loop_images_per_s", "bare_images_per_s"))
    name = f"{result['model']}/{result['name']} {result['image_size']} px"
    measured = f"{result['ratio']:.2f} | {busy} | {100 * result['data_wait']:.0f} %"
    return f"| {name} | {result['batch']} | {rates} | {measured} | {host} |"


def summary(loops: list[dict[str, Any]]) -> list[str]:
    """A row for each method, a column for each size of images and batch: rate of the loop, of its bare step, ratio."""
    sizes = sorted({(loop["image_size"], loop["batch"]) for loop in loops})
    rows = ["| images/s | " + " | ".join(f"{size} px, batch {batch}" for size, batch in sizes) + " |"]
    rows.append("|---" * (len(sizes) + 1) + "|")
    for case in CASES:
        found = {(loop["image_size"], loop["batch"]): loop for loop in loops if loop["name"] == case.method}
        cells = [rates(found[size]) if size in found else "not measured" for size in sizes]
        rows.append(f"| {case.label} | " + " | ".join(cells) + " |")
    return rows


def rates(loop: dict[str, Any]) -> str:
    return f"{loop['loop_images_per_s']:,.0f} of {loop['bare_images_per_s']:,.0f} ({loop['ratio']:.2f})"


if __name__ == "__main__":
    main()
