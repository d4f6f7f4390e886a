"""Are evaluations as fast as the forward pass? Classification, nearest neighbours and corruptions from JPEG files.

    python benchmarks/evaluations.py --size 64 --workers 14
    python benchmarks/evaluations.py --size 224 --images /data/photos    # files below a folder, repeated until enough
    python benchmarks/evaluations.py --device cpu --model vit_demo --count 200 --only classify

The evaluations run as in any study, on a model with random weights, once on a quarter of the files and once on all of
them: the difference tells the rate without the start of loader workers, which is given apart. Beside them is the
forward pass alone, of batches that lie on the device, as large and in the same precision. `ratio` compares forward
passes: classification makes two of each image, one of them shuffled. Of 15 corruptions one is measured. `feed` makes
the batches and no forward pass: no evaluation can be faster.
Writes results/benchmarks/evaluations.json and prints a table.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
from loop import MODELS, NUM_CLASSES, device_of, found_pictures, made_pictures
from report import where, write

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.core.registry import EVALS
from pipeline.core.sizes import pair
from pipeline.data.kind import parse_data
from pipeline.data.store.prepare import prepare
from pipeline.engine.compute.precision import in_precision, precision_of
from pipeline.engine.loop import build_method
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig, parse_run
from pipeline.evals.base import Evaluation, Subject
from pipeline.methods.base import Method
from pipeline.results import ScaleFolder
from pipeline.site import Site

OUT = CONFIGS.parent / "results" / "benchmarks" / "evaluations.json"
SEEN = {"channels": 3, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
CORRUPTION, SEVERITIES = "gaussian_noise", 5
SHARED = 4 * SEVERITIES * NUM_CLASSES  # so that a quarter of the files has every class at every severity


@dataclass(frozen=True)
class Bench:
    """Where everything is, and the sets of both sizes."""

    results: ScaleFolder
    site: Site
    world: World
    sets: dict[int, dict[str, Any]]  # number of files -> role -> config

    def evaluation(self, name: str, **fields: Any) -> Any:
        kind = EVALS.get(name)
        return kind(kind.Config(**fields), {}, self.results, self.site, self.world)


def feed(bench: Bench, subject: Subject, count: int) -> int:
    """Batches on the device, and nothing done with them."""
    evaluation, data = bench.evaluation("classify"), subject.run.data
    for _ in evaluation.batches(data, batch=evaluation.full_batch(data)):
        pass
    if bench.world.device.type == "cuda":
        torch.cuda.synchronize(bench.world.device)
    return count


def classify(bench: Bench, subject: Subject, count: int) -> int:
    bench.evaluation("classify").compute(subject)
    return 2 * count  # each image as it is, and shuffled


def knn(bench: Bench, subject: Subject, count: int) -> int:
    bench.evaluation("knn").compute(subject)
    return 2 * count  # of train, and of validation


def corruptions(bench: Bench, subject: Subject, count: int) -> int:
    evaluation = bench.evaluation("corruptions", normalise_by="none", data={"corrupted": "corrupted"})
    evaluation.errors_on(subject, bench.sets[count]["corrupted"])
    return count


Case = Callable[[Bench, Subject, int], int]  # returns the number of forward passes; of `feed`, of images
CASES: dict[str, Case] = {"feed": feed, "classify": classify, "knn": knn, "corruptions": corruptions}


def main() -> None:
    options = parse_options()
    cases = {name: case for name, case in CASES.items() if options.only in name}
    if not cases:
        raise SystemExit(f"no evaluation contains {options.only!r}; there are: {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as folder:
        bench = set_up(Path(folder), options)
        subject = subject_of(bench, options.count, options)
        forward = measure_forward(bench, subject, options)
        results = [measure(name, case, bench, subject.method, forward, options) for name, case in cases.items()]
    device = bench.world.device
    report = {
        **where(device, "torch", "timm"),
        **{"workers": options.workers, "forward": forward},
        "evaluations": results,
    }
    write(options.out, report)
    print("\n".join([*HEADER, *map(line, results)]))


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="evaluations whose name contains this")
    parser.add_argument("--size", type=int, default=64, choices=sorted(MODELS), help="pixels of a side")
    parser.add_argument("--model", help="a file of configs/model; else one that fits the size")
    parser.add_argument("--images", type=Path, help="a folder with JPEG files")
    parser.add_argument("--count", type=int, default=20000, help="files of a split, a multiple of 200")
    parser.add_argument("--rounds", type=int, default=50, help="forward passes that are measured")
    parser.add_argument("--workers", type=int, default=max(0, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--views", default="auto", choices=["auto", "host", "device"])
    parser.add_argument("--compile", action="store_true", help="measure a compiled forward pass, too")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(words)
    if options.count % SHARED:
        parser.error(f"--count is {options.count}; expected a multiple of {SHARED}")
    return options


def set_up(work: Path, options: argparse.Namespace) -> Bench:
    """Prepared sets of all files and of a quarter of them; a file that comes again is a link."""
    pictures = found_pictures(options.images) if options.images else made_pictures(options.size)
    for number, content in enumerate(pictures):
        (work / "pictures").mkdir(exist_ok=True)
        (work / "pictures" / f"{number}.jpg").write_bytes(content)
    device = device_of(options.device)
    sets = {count: sets_of(count, options) for count in (options.count // 4, options.count)}
    every = [data for by_role in sets.values() for data in by_role.values()]
    site = Site(device=options.device, workers=options.workers, views=options.views)
    site = site.model_copy(update={"data": {data.folder_name: work / data.folder_name for data in every}})
    bench = Bench(ScaleFolder(work / "results"), site, World(0, 1, device), sets)
    for data in every:
        write_links(work / data.folder_name, data, work / "pictures", len(pictures))
        manifest = bench.results.manifest(data.name)
        prepare(data, work / data.folder_name, manifest.parent, options.workers, progress=False)
    return bench


def sets_of(count: int, options: argparse.Namespace) -> dict[str, Any]:
    common = {**SEEN, "source": "folder", "image_size": options.size, "num_classes": NUM_CLASSES}
    own = {**common, "name": f"files{count}", "num_train": count, "num_val": count}
    corrupted = {**common, "kind": "corrupted", "name": f"corrupted{count}", "corruption": CORRUPTION}
    corrupted["num_val"] = count // SEVERITIES
    return {name: parse_data(Layers((name, data))) for name, data in (("own", own), ("corrupted", corrupted))}


def write_links(folder: Path, data: Any, pictures: Path, num_pictures: int) -> None:
    severities = [f"{CORRUPTION}/{severity}" for severity in range(1, SEVERITIES + 1)]
    parts = severities if data.kind == "corrupted" else ["train", "val"]
    for part in parts:
        for number in range(data.num_val):
            path = folder / part / f"class{number % NUM_CLASSES}" / f"{number:07d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(pictures / f"{number % num_pictures}.jpg", path)


def subject_of(bench: Bench, count: int, options: argparse.Namespace, method: Method | None = None) -> Subject:
    run = run_of(bench.sets[count]["own"], options)
    return Subject(run, method or build_method(run).to(bench.world.device).eval())


def run_of(data: Any, options: argparse.Namespace) -> RunConfig:
    model = read_yaml(CONFIGS / "model" / f"{options.model or MODELS[options.size]}.yaml")
    method = read_yaml(CONFIGS / "method" / "supervised.yaml")
    optim = {"epochs": 1, "global_batch": 4, "micro_batch": 4, "base_lr": 1e-4}
    own = {"data": data.model_dump(mode="json", exclude_unset=True), "optim": optim}
    return parse_run(Layers(("model", model), ("method", method), ("the benchmark", own)))


def measure(
    name: str, case: Case, bench: Bench, method: Method, forward: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    few, all_of_them = sorted(bench.sets)
    spent = {}
    for count in (few, few, all_of_them):  # the first one warms up
        since = time.perf_counter()
        passes = case(bench, subject_of(bench, count, options, method), count)
        spent[count] = time.perf_counter() - since
    each = max(1e-9, spent[all_of_them] - spent[few]) / (all_of_them - few)  # seconds an image, once it runs
    per_image = passes / all_of_them
    found = {
        **{"name": name, "model": options.model or MODELS[options.size], "image_size": options.size},
        **{"batch": forward["batch"], "count": all_of_them, "passes": per_image},
        **{"images_per_s": all_of_them / spent[all_of_them], "steady_images_per_s": 1 / each},
        **{"start_s": max(0.0, spent[few] - few * each), "forward_images_per_s": forward["images_per_s"]},
        "ratio": per_image / each / forward["images_per_s"],
    }
    print(line(found), flush=True)
    return found


@torch.no_grad()
def measure_forward(bench: Bench, subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """Images a second of `predict`, as evaluations call it."""
    evaluation: Evaluation = bench.evaluation("classify")
    data: Any = subject.run.data
    batch, device = min(options.count, evaluation.full_batch(data)), bench.world.device
    images = torch.randn(batch, data.channels, *pair(data.image_size), device=device)
    precision = precision_of(bench.site, device)
    found: dict[str, Any] = {"batch": batch, "precision": precision}
    calls: dict[str, Any] = {"images_per_s": subject.method.predict}
    if options.compile:
        calls["compiled_images_per_s"] = torch.compile(subject.method.predict)
    for name, predict in calls.items():
        for rounds in (3, options.rounds):
            since = time.perf_counter()
            for _ in range(rounds):
                with in_precision(precision, device):
                    predict(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            found[name] = rounds * batch / (time.perf_counter() - since)
    return found


HEADER = [
    "| evaluation | batch | images/s | once it runs | start, s | forward passes an image | forward alone | ratio |",
    "|---|---|---|---|---|---|---|---|",
]


def line(result: dict[str, Any]) -> str:
    name = f"{result['name']}, {result['model']} {result['image_size']} px"
    rates = f"{result['images_per_s']:,.0f} | {result['steady_images_per_s']:,.0f} | {result['start_s']:.2f}"
    forward = f"{result['passes']:.0f} | {result['forward_images_per_s']:,.0f} | {result['ratio']:.2f}"
    return f"| {name} | {result['batch']} | {rates} | {forward} |"


if __name__ == "__main__":
    main()
