"""The benchmark of training steps: its cases are sound, its numbers add up, its table is Markdown."""

import json
import sys

import pytest
import torch
from benchmark_script import load_benchmark

from pipeline.core.config import parse
from pipeline.methods.base import METHODS
from pipeline.models.encoder import ModelConfig

CPU = torch.device("cpu")


step = load_benchmark("step")
SUPERVISED = step.Case("vit_demo", "supervised", image_size=28)
MP3 = step.Case("vit_demo", "mp3", "eta 0.5", {"mask_ratio": 0.5}, step.NO_POSITIONS, 28)
UNMASKED = step.Case("vit_demo", "mp3", "eta 0", {"mask_ratio": 0.0}, step.NO_POSITIONS, 28)


@pytest.mark.parametrize("case", step.CASES, ids=lambda case: case.name)
def test_case__every_one__names_fragments_that_fit_each_other(case):
    model = parse(ModelConfig, step.fragment("model", case.model, case.model_keys))
    cfg = parse(METHODS.get(case.method).Config, step.fragment("method", case.method, case.method_keys))
    cfg.check(model, case.image_size)


def test_cases__names__are_different_and_every_model_has_its_supervised_step():
    names = [case.name for case in step.CASES]
    assert len(set(names)) == len(names)
    assert {f"{case.model}/supervised" for case in step.CASES} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("case", [SUPERVISED, MP3], ids=lambda case: case.name)
def test_measure__on_a_cpu__has_rate_and_operations_and_no_memory(case):
    found = step.measure(case, CPU, batch_size=4, steps=1, peak=2.0)
    slowest, fastest = found["images_per_s_range"]
    assert (found["name"], found["model"], found["method"]) == (case.name, case.model, case.method)
    assert 0 < slowest <= found["images_per_s"] <= fastest
    assert found["share_of_peak"] == pytest.approx(found["gflop_per_image"] * found["images_per_s"] / 1e3 / 2.0)
    assert found["peak_memory_gib"] is None


@pytest.mark.slow
def test_operations__of_mp3__count_keys_and_values_of_the_context_only():
    masked, unmasked = (gflop(case) for case in (MP3, UNMASKED))
    # 25 of 49 patches are left out: two products of a layer and two of its attention, forward and twice backward.
    per_layer = 25 * 2 * (2 * 48 * 48) + 2 * 50 * 25 * 2 * 48
    assert unmasked - masked == pytest.approx(3 * 2 * per_layer / 1e9)


def test_with_ratios__model_without_a_supervised_step__has_none():
    results = [result("a", "supervised", 100.0), result("a", "mp3", 150.0), result("b", "mp3", 80.0)]
    assert [r["over_supervised"] for r in step.with_ratios(results)] == [1.0, 1.5, None]


def test_table__of_a_report__is_markdown_with_what_is_missing_marked():
    results = [result("a", "supervised", 12_345.6, 1.25), result("b", "mp3", 8.126)]
    report = {
        "date": "2026-01-31",
        "device": "cpu",
        "versions": {"torch": "2"},
        "batch": 4,
        "precision": "fp32",
        "matmul_tflops": 0.123456,
        "steps": step.with_ratios(results),
    }
    assert step.table(report).splitlines() == [
        "2026-01-31, cpu, torch 2, batch 4, fp32, matmul peak 0.123 TFLOP/s",
        "",
        "| step | images/s | over supervised | peak memory (GiB) | share of matmul peak | graphs | GPU busy |",
        "|---|---|---|---|---|---|---|",
        "| a/supervised | 12,346 | 1.00 | 1.2 | 50 % | 1 | n/a |",
        "| b/mp3 | 8.13 | n/a | n/a | 50 % | 1 | n/a |",
    ]


@pytest.mark.slow
def test_main__only_some_cases__writes_those_and_prints_their_table(monkeypatch, tmp_path, capsys):
    out = tmp_path / "new" / "step.json"
    monkeypatch.setattr(step, "CASES", [SUPERVISED, MP3])
    monkeypatch.setattr(step, "matmul_peak", lambda device: 0.1)
    options = ["--only", "mp3", "--batch", "4", "--steps", "1", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["step.py", *options])
    step.main()
    report = json.loads(out.read_text())
    assert [found["name"] for found in report["steps"]] == [MP3.name] and report["precision"] == "fp32"
    assert capsys.readouterr().out.rstrip().endswith(step.table(report))


@pytest.mark.slow
def test_main__other_cases_later__keeps_those_of_this_device_and_no_others(monkeypatch, tmp_path):
    out = tmp_path / "step.json"
    monkeypatch.setattr(step, "CASES", [SUPERVISED, MP3])
    monkeypatch.setattr(step, "matmul_peak", lambda device: 0.1)
    for batch, only, expected in (
        ("4", "mp3", [MP3.name]),
        ("4", "supervised", [MP3.name, SUPERVISED.name]),
        ("2", "mp3", [MP3.name]),
    ):
        options = ["--only", only, "--batch", batch, "--steps", "1", "--device", "cpu", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["step.py", *options])
        step.main()
        assert [found["name"] for found in json.loads(out.read_text())["steps"]] == expected


def test_main__unknown_case__exits_with_the_list(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["step.py", "--only", "vit_x", "--device", "cpu"])
    with pytest.raises(SystemExit, match="no case contains 'vit_x'; there are: vit_b/supervised, vit_b/mjp"):
        step.main()


@pytest.mark.slow
def test_main__kinds_of_positions__are_measured_in_turns_next_to_the_first(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(step, "CASES", [SUPERVISED, MP3])
    monkeypatch.setattr(step, "TURNS", 2)
    options = ["--only", "supervised", "--positions", "learn", "rope_mixed", "--batch", "2", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["step.py", *options, "--device", "cpu", "--out", str(tmp_path / "step.json")])
    step.main()
    report = json.loads((tmp_path / "positions.json").read_text())
    found = report["cases"][SUPERVISED.name]
    assert found["learn"]["over_first"] == [1.0, 1.0]
    assert len(found["rope_mixed"]["over_first"]) == 2 and min(found["rope_mixed"]["over_first"]) > 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["learn", "rope_mixed"]
    assert not (tmp_path / "step.json").exists()


def gflop(case):
    return step.operations(step.build(case, CPU), step.random_batch(case, 1, CPU)) / 1e9


def result(model, method, rate, memory=None):
    return {
        "name": f"{model}/{method}",
        "model": model,
        "method": method,
        "images_per_s": rate,
        "peak_memory_gib": memory,
        "share_of_peak": 0.5,
    }
