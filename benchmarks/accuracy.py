"""Does a choice change what is learnt? Trains variants of one run, each with several seeds, and compares top-1.

    python benchmarks/accuracy.py benchmarks/views.yaml --folder /data/tiny-imagenet-200 --seeds 3
    python benchmarks/accuracy.py benchmarks/tiny_recipes.yaml --folder /data/tiny-imagenet-200 --epochs 30
    python benchmarks/accuracy.py benchmarks/views.yaml --set "data: {num_classes: 50, num_train: 25000, num_val: 2500}"

A file of variants names fragments of configs/ to start from and keys of the run that hold for all variants (`set`).
Each variant adds fragments, keys of the run (`set`) and keys of the site (`site`). Every training is a whole one, from
prepared files to its record. Writes results/benchmarks/<file>_accuracy.json after each, and prints a table.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
import yaml
from pydantic import Field
from report import where, write

from pipeline.core.config import CONFIGS, Layers, Strict, merge, parse_file, read_yaml
from pipeline.core.logs import start_logging
from pipeline.data.store.prepare import prepare
from pipeline.engine.run import RunConfig, parse_run
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.results import RunFolder
from pipeline.site import Site, data_folder

OUT = CONFIGS.parent / "results" / "benchmarks"
METRIC, LOSS = "val_top1", "val_loss"


class Variant(Strict):
    """What is changed."""

    fragments: list[str] = Field(default_factory=list)  # after those of all variants
    set: dict[str, Any] = Field(default_factory=dict)
    site: dict[str, Any] = Field(default_factory=dict)


class Variants(Strict):
    """A file of variants."""

    fragments: list[str]  # such as model/deit_s_patch8: files of configs/, the weakest first
    set: dict[str, Any] = Field(default_factory=dict)
    variants: dict[str, Variant]


def main() -> None:
    options = parse_options()
    start_logging()
    spec = parse_file(Variants, options.file)
    names = [name for name in spec.variants if any(word in name for word in options.only)]
    if not names:
        raise SystemExit(f"no variant contains {' or '.join(options.only)}; there are: {', '.join(spec.variants)}")
    trainings: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        for seed in range(options.seeds):
            for name in names:
                trainings.append({"variant": name, "seed": seed, **train(spec, name, seed, Path(work), options)})
                keep(trainings, options)
                print(f"{name}, seed {seed}: {trainings[-1][METRIC]:.2f} % in {trainings[-1]['seconds']} s", flush=True)
    print("\n".join(table(trainings)))


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="variants, as benchmarks/views.yaml has them")
    parser.add_argument("--folder", type=Path, help="of the data set; not needed for one that is part of the project")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each variant")
    parser.add_argument("--epochs", type=int, help="else those of the file")
    parser.add_argument("--only", nargs="+", default=[""], help="variants whose name contains one of these")
    parser.add_argument("--set", type=yaml.safe_load, default={}, help="more keys of the run, as YAML")
    parser.add_argument("--workers", type=int, default=max(0, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args(words)


def run_of(spec: Variants, name: str, seed: int, options: argparse.Namespace) -> RunConfig:
    variant = spec.variants[name]
    fragments = [*spec.fragments, *variant.fragments]
    layers = [(f"configs/{fragment}", read_yaml(CONFIGS / f"{fragment}.yaml")) for fragment in fragments]
    layers += [("set", spec.set), (name, variant.set), ("--set", options.set)]
    own = merge({"seed": seed}, {"optim": {"epochs": options.epochs}} if options.epochs else {})
    return parse_run(Layers(*layers, ("options", own)))


def train(spec: Variants, name: str, seed: int, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    run = run_of(spec, name, seed, options)
    machine = {"device": options.device, "workers": options.workers, "compile": options.device != "cpu"}
    folders = {run.data.folder_name: options.folder} if options.folder else {}
    site = Site(**{**machine, "data": folders, **spec.variants[name].site})
    paths = RunFolder(work / name, run.name)
    manifest = paths.manifest(run.data.name)
    if not manifest.exists():
        prepare(run.data, data_folder(site, run.data), manifest.parent, site.workers, progress=False, cache=site.cache)
    started = time.monotonic()
    train_run(run, paths, site, StopRequest())
    metrics = json.loads(paths.finished.read_text())["metrics"]
    return {METRIC: metrics[METRIC], LOSS: metrics[LOSS], "run": run.name, "seconds": round(time.monotonic() - started)}


def keep(trainings: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """After every training: those that are done stay, whatever becomes of the next one."""
    device = torch.device(options.device)
    report = {
        **where(device, "torch", "timm"),
        "epochs": options.epochs,
        "set": options.set,
        "trainings": trainings,
    }
    write(options.out / f"{options.file.stem}_accuracy.json", report)


def table(trainings: list[dict[str, Any]]) -> list[str]:
    """A row for each variant: the top-1 of each seed, their mean, and how far seeds are apart (standard deviation)."""
    seeds = sorted({training["seed"] for training in trainings})
    columns = [*(f"seed {seed}" for seed in seeds), "mean", "deviation"]
    rows = ["| top-1, % | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(training["variant"] for training in trainings):
        found = [training[METRIC] for training in trainings if training["variant"] == name]
        spread = f"{statistics.stdev(found):.2f}" if len(found) > 1 else "n/a: one seed"
        cells = [*(f"{value:.2f}" for value in found), f"{statistics.mean(found):.2f}", spread]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


if __name__ == "__main__":
    main()
