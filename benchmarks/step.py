"""How fast is a training step? Every method on its backbones, beside the plain supervised step, in one run.

    python benchmarks/step.py                    # all cases, on the GPU that is there
    python benchmarks/step.py --only vit_b       # cases whose name contains this; those measured before are kept
    python benchmarks/step.py --device cpu --batch 4 --only vit_b/supervised
    python benchmarks/step.py --only deit_s/supervised --positions learn rope rope_mixed  # types, in turns

Synthetic images; a step is what the training loop does: draw, forward, backward, gradient norm, AdamW. On a GPU it
runs in bf16, is compiled as one graph and recorded as CUDA graphs; a graph break, a recompilation or a wait for the
device is an error. Mask R-CNN is compiled in parts, and waits where shapes depend on values; `GPU busy` says what that
costs. Rates compare within one run only, so the share of the measured matmul peak and the ratio to the supervised step
come with them.
Writes results/benchmarks/step.json and prints a table. `python -m pipeline plan` takes speeds from there, and else from
configs/speed/h200.json, which is the same file of an H200. With `--positions`, each kind is measured in turns with the
first one, so that a machine that gets slower slows all of them; on a CPU after every step, and in seconds of this
process, which others that run there do not take. Ratios are medians. results/benchmarks/positions.json is written.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
from report import where, write

from pipeline.core.config import CONFIGS, Layers, parse, read_yaml
from pipeline.core.registry import TASKS
from pipeline.core.trees import map_tree
from pipeline.data.kind import parse_data
from pipeline.engine.compute.precision import Precision, in_precision
from pipeline.engine.compute.timing import build_step, time_step
from pipeline.methods.base import METHODS, Batch, Method
from pipeline.models.encoder import ModelConfig
from pipeline.plan.operations import count_operations

POSITIONS = ("learn", "none", "sincos", "relative", "rope", "rope_mixed", "rope_dinov3")
TURNS = 5
OUT = CONFIGS.parent / "results" / "benchmarks" / "step.json"
FLOP_BATCH = 8


@dataclass(frozen=True)
class Case:
    """A method's fragment on a model's fragment, and what differs from both."""

    model: str
    method: str
    note: str = ""
    method_keys: dict[str, Any] = field(default_factory=dict)
    model_keys: dict[str, Any] = field(default_factory=dict)
    image_size: int = 224
    data: str = "imagenet1k"
    batch: int | None = None  # images of a step; None: those of the command line

    @property
    def name(self) -> str:
        return f"{self.model}/{self.method}" + (f" {self.note}" if self.note else "")


NO_POSITIONS, SINCOS, LEARNED = {"pos_embed": "none"}, {"pos_embed": "sincos"}, {"pos_embed": "learn"}
VITDET = {"pos_embed": "sincos", "window_size": 14, "add_relative": True}
BEIT = {"pos_embed": "sincos", "add_relative": True}
SHUFFLE_ALONE = {"unknown": False, "dal": "none"}
CASES = [
    Case("vit_b", "supervised"),
    Case("vit_b", "mjp"),
    *[Case("vit_b", "mp3", f"eta {eta}", {"mask_ratio": eta}, NO_POSITIONS) for eta in (0.0, 0.3, 0.5, 0.75, 0.9)],
    Case("vit_b", "droppos", model_keys=SINCOS),
    Case("vit_b", "droppos", "tau off", {"tau": None}, SINCOS),
    *[Case("vit_b", "mae", f"ratio {ratio}", {"mask_ratio": ratio}, SINCOS) for ratio in (0.5, 0.75, 0.9)],
    Case("deit_s", "supervised"),
    Case("deit_s", "mjp"),
    Case("swin_t", "supervised", model_keys=LEARNED),
    Case("swin_t", "mjp", model_keys=LEARNED),
    Case("swin_t_256", "supervised", image_size=256),
    Case("swin_t_256", "droppos_swin", image_size=256),
    Case("vit_l", "supervised"),
    Case("vit_l", "droppos", model_keys=SINCOS),
    Case("vit_l", "mae", model_keys=SINCOS),
    Case("vit_b_patch8", "supervised", image_size=64),
    Case("deit_s_patch4", "supervised", image_size=32),
    Case("resnet50", "supervised"),
    Case("resnet50", "mjp", method_keys=SHUFFLE_ALONE),
    *[Case("vit_b", "mask_rcnn", f"batch {n}", {}, VITDET, 1024, "coco", n) for n in (2, 8)],
    *[Case("vit_b", "upernet", f"batch {n}", {}, BEIT, 512, "ade20k", n) for n in (2, 16)],
    Case("swin_t", "mask_rcnn", "batch 2", image_size=1024, data="coco", batch=2),
    Case("swin_t", "upernet", "batch 16", image_size=512, data="ade20k", batch=16),
]


def main() -> None:
    options = parse_options()
    device = torch.device(options.device)
    cases = [case for case in CASES if options.only in case.name]
    if not cases:
        raise SystemExit(f"no case contains {options.only!r}; there are: {', '.join(case.name for case in CASES)}")
    if options.positions:
        report = {**where(device, "torch", "timm"), "batch": options.batch, "precision": precision(device)}
        report["cases"] = {case.name: compare_positions(case, device, options) for case in cases}
        write(options.out.with_name("positions.json"), report)
        return
    peak = matmul_peak(device)
    results = []
    for case in cases:
        results.append(measure(case, device, options.batch, options.steps, peak))
        print(describe(results[-1]), flush=True)
    report = {
        **where(device, "torch", "timm"),
        "batch": options.batch,
        "precision": precision(device),
        "matmul_tflops": peak,
        "steps": results,
    }
    report["steps"] = with_ratios(earlier(options.out, report) + results)
    write(options.out, report)
    print(table(report))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=15, help="in each of three rounds, of which the median counts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--positions", nargs="+", choices=POSITIONS, default=[], help="kinds, the first for comparison")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def compare_positions(case: Case, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Measure images per second with each type of position embedding, and step time over the first, in turns."""
    kinds = {kind: replace(case, model_keys={**case.model_keys, "pos_embed": kind}) for kind in options.positions}
    methods = {kind: build(each, device) for kind, each in kinds.items()}
    size, is_gpu = case.batch or options.batch, device.type == "cuda"
    batch = random_batch(case, size, device)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    measures = on_gpu(methods, batch, options.steps) if is_gpu else on_cpu(methods, batch)
    for _ in range(TURNS if is_gpu else TURNS * options.steps):
        for kind, measure_turn in measures.items():
            seconds[kind].append(measure_turn())
    found = {}
    for kind, each in seconds.items():
        ratios = [own / first for own, first in zip(each, seconds[options.positions[0]], strict=True)]
        found[kind] = {"images_per_s": size / statistics.median(each), "over_first": ratios}
        low, ratio, high = statistics.quantiles(ratios, n=4)
        spread = f"{ratio:.3f} (quartiles {low:.3f} and {high:.3f})"
        print(f"{case.name:24} {kind:12} {found[kind]['images_per_s']:>10,.1f} images/s  step x {spread}", flush=True)
    return found


def on_gpu(methods: dict[str, Method], batch: Batch, steps: int) -> dict[str, Callable[[], float]]:
    """The fastest of several rounds of a step that is compiled and recorded."""
    device = batch.images.device

    def fastest(method: Method) -> float:
        return min(time_step(method, batch, precision(device), True, steps, graphs=True).rounds_s)

    return {kind: partial(fastest, method) for kind, method in methods.items()}


def on_cpu(methods: dict[str, Method], batch: Batch) -> dict[str, Callable[[], float]]:
    """One step, in seconds of this process."""
    steps = {kind: build_step(method, batch, precision(batch.images.device)) for kind, method in methods.items()}

    def seconds_of(step: Callable[[], None]) -> float:
        started = time.process_time()
        step()
        return time.process_time() - started

    for step in steps.values():  # the first one allocates
        step()
    return {kind: partial(seconds_of, step) for kind, step in steps.items()}


def build(case: Case, device: torch.device) -> Method:
    torch.manual_seed(0)
    model = parse(ModelConfig, fragment("model", case.model, case.model_keys))
    method = METHODS.get(case.method)
    cfg = parse(method.Config, fragment("method", case.method, case.method_keys))
    cfg.check(model, case.image_size)
    return method(cfg, TASKS.get(cfg.task).build_encoder(cfg, model, data_of(case))).to(device).train()


def data_of(case: Case) -> Any:
    """Images that are never read: what they look like is all that a step depends on."""
    return parse_data(fragment("data", case.data, {"image_size": case.image_size}))


def fragment(kind: str, name: str, changes: dict[str, Any]) -> Layers:
    path = CONFIGS / kind / f"{name}.yaml"
    return Layers((str(path), read_yaml(path)[kind]), ("the benchmark", changes))


def measure(case: Case, device: torch.device, batch_size: int, steps: int, peak: float) -> dict[str, Any]:
    """Images a second, peak memory, and operations against the measured peak."""
    method, batch_size = build(case, device), case.batch or batch_size
    few = min(FLOP_BATCH, batch_size)
    flops = operations(method, random_batch(case, few, device)) / few
    is_gpu = device.type == "cuda"
    cost = time_step(method, random_batch(case, batch_size, device), precision(device), is_gpu, steps, graphs=is_gpu)
    rates = [batch_size / seconds for seconds in cost.rounds_s]
    rate = statistics.median(rates)
    return {
        "name": case.name,
        "model": case.model,
        "method": case.method,
        "image_size": case.image_size,
        "images_per_s": rate,
        "images_per_s_range": [min(rates), max(rates)],
        "peak_memory_gib": cost.peak_memory_gib,
        "gflop_per_image": flops / 1e9,
        "share_of_peak": flops * rate / 1e12 / peak,
        "warm_up_s": cost.warm_up_s,
        "graphs": cost.graphs,
        "gpu_busy": None if cost.gpu_s is None else min(1.0, cost.gpu_s / cost.seconds),
    }


def random_batch(case: Case, size: int, device: torch.device) -> Batch:
    """Noise, with targets of the shapes that the task has."""
    task = TASKS.get(METHODS.get(case.method).Config.task)
    images, targets = task.example(data_of(case), size)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(images.shape, generator=generator).to(device)
    return Batch(noise, map_tree(lambda tensor: tensor.to(device), targets), generator)


def operations(method: Method, batch: Batch) -> float:
    """Floating-point operations of the matrix products of a forward and a backward pass."""
    with in_precision(precision(batch.images.device), batch.images.device):
        found = count_operations(method, batch.images, batch.targets, method.draw(batch, 0.5))
    method.zero_grad(set_to_none=True)
    return found


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def precision(device: torch.device) -> Precision:
    return "bf16" if device.type == "cuda" else "fp32"


def matmul_peak(device: torch.device) -> float:
    """TFLOP/s of one large product of matrices, in the precision of the steps."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(8):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(10):
            a @ b
        synchronise(device)
        times.append(time.perf_counter() - started)
    return 10 * 2 * size**3 / min(times) / 1e12


def earlier(path: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """What an earlier run on such a device left in the file and this one did not measure again."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    if any(kept.get(key) != report[key] for key in ("device", "versions", "batch", "precision")):
        return []
    again = {step["name"] for step in report["steps"]}
    return [step for step in kept["steps"] if step["name"] not in again]


def with_ratios(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step against the supervised one on the same model and size of images, where that was measured too."""
    plain = {_kind(result): result["images_per_s"] for result in results if result["method"] == "supervised"}
    return [
        {**r, "over_supervised": r["images_per_s"] / plain[_kind(r)] if _kind(r) in plain else None} for r in results
    ]


def _kind(result: dict[str, Any]) -> tuple[str, int | None]:
    return result["model"], result.get("image_size")


def describe(result: dict[str, Any]) -> str:
    memory = "n/a" if result["peak_memory_gib"] is None else f"{result['peak_memory_gib']:.1f}"
    return (
        f"{result['name']:28} {rate(result):>8} images/s  {memory} GiB  "
        f"{100 * result['share_of_peak']:.0f} % of matmul peak  (first steps {result['warm_up_s']:.0f} s)"
    )


def rate(result: dict[str, Any]) -> str:
    found = result["images_per_s"]
    return f"{found:,.0f}" if found >= 100 else f"{found:.3g}"


def table(report: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| step | images/s | over supervised | peak memory (GiB) | share of matmul peak | graphs | GPU busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in report["steps"]:
        over = f"{r['over_supervised']:.2f}" if r["over_supervised"] else "n/a"
        memory = f"{r['peak_memory_gib']:.1f}" if r["peak_memory_gib"] else "n/a"
        share = f"{100 * r['share_of_peak']:.0f} %"
        busy = f"{100 * r['gpu_busy']:.0f} %" if r.get("gpu_busy") else "n/a"
        lines.append(f"| {r['name']} | {rate(r)} | {over} | {memory} | {share} | {r.get('graphs', 1)} | {busy} |")
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    where = f"{report['date']}, {report['device']}, {versions}, batch {report['batch']}, {report['precision']}"
    return "\n".join([where + f", matmul peak {report['matmul_tflops']:.3g} TFLOP/s", "", *lines])


if __name__ == "__main__":
    main()
