"""The benchmark of accuracy: its files of variants are runs, it trains them for real, and its table is Markdown."""

import json
import sys

import pytest
import yaml
from benchmark_script import load_benchmark

from pipeline.core.config import CONFIGS, parse_file

accuracy = load_benchmark("accuracy")
FILES = sorted((CONFIGS.parent / "benchmarks").glob("*.yaml"))
FEW = {"epochs": None, "iterations": 5, "global_batch": 20, "micro_batch": 20, "warmup_epochs": 0}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_variants__of_the_projects_files__are_runs_and_no_two_are_the_same(file):
    spec, options = parse_file(accuracy.Variants, file), accuracy.parse_options([str(file), "--epochs", "7"])
    runs = {name: accuracy.run_of(spec, name, 3, options) for name in spec.variants}
    assert {(run.seed, run.optim.epochs) for run in runs.values()} == {(3, 7)}
    assert len({(runs[name].name, str(spec.variants[name].site)) for name in runs}) == len(runs)


def test_recipes_of_tiny__chosen__is_what_the_scale_trains_with():
    options = accuracy.parse_options(["tiny_recipes.yaml"])
    spec = parse_file(accuracy.Variants, CONFIGS.parent / "benchmarks/tiny_recipes.yaml")
    scale = yaml.safe_load((CONFIGS / "scale/tiny.yaml").read_text())
    chosen = accuracy.run_of(spec, "chosen", 0, options).data.augment.model_dump()
    assert scale["recipe"]["mjp"]["data"]["augment"].items() <= chosen.items()


@pytest.mark.slow
def test_main__views_on_host_and_device__learn_the_same_to_the_last_digit(tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.yaml"
    views = {place: {"site": {"views": place, "workers": 0}} for place in ("host", "device")}
    augment = {"crop": "resized", "hflip": 0.5, "rand_augment": "rand-m9-mstd0.5-inc1", "erasing": 0.25, "mixup": 0.8}
    keys = {"data": {"augment": augment}, "optim": FEW}
    fragments = ["model/vit_demo", "method/supervised", "data/fashion_mnist", "recipe/mjp"]
    file.write_text(yaml.safe_dump({"fragments": fragments, "set": keys, "variants": views}))
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", str(file), "--device", "cpu", "--seeds", "2", "--out", str(tmp_path)]
    )
    accuracy.main()
    found = json.loads((tmp_path / "mine_accuracy.json").read_text())["trainings"]
    learnt = {(one["variant"], one["seed"]): (one["val_top1"], one["val_loss"]) for one in found}
    assert learnt["host", 0] == learnt["device", 0] and learnt["host", 1] == learnt["device", 1]
    assert learnt["host", 0] != learnt["host", 1]
    header, rule, *rows = capsys.readouterr().out.splitlines()[-4:]
    assert header.count("|") == rule.count("|") == rows[0].count("|") == rows[1].count("|") == 6
