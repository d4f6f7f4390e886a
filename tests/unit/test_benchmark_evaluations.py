"""The benchmark of evaluations: they run for real, beside the forward pass alone, and the table is Markdown."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """It is a script beside others, no package."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("evaluations")
    sys.path.remove(str(BENCHMARKS))


def test_main__on_a_cpu__measures_every_evaluation_and_the_forward_pass(benchmark, tmp_path, monkeypatch, capsys):
    options = {"device": "cpu", "model": "vit_demo", "count": 200, "workers": 0, "rounds": 2, "views": "device"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["evaluations.py", *words, "--out", str(tmp_path / "out.json")])
    benchmark.main()
    written = json.loads((tmp_path / "out.json").read_text())
    assert [each["name"] for each in written["evaluations"]] == [*benchmark.CASES]
    assert [each["passes"] for each in written["evaluations"]] == [2, 2, 1]
    forward = written["forward"]["images_per_s"]
    for each in written["evaluations"]:
        assert (each["model"], each["image_size"], each["batch"], each["count"]) == ("vit_demo", 64, 128, 200)
        assert each["ratio"] == pytest.approx(each["passes"] * each["steady_images_per_s"] / forward)
        assert each["images_per_s"] > 0 and each["start_s"] >= 0
    header, rule, *rows = capsys.readouterr().out.splitlines()[-5:]
    assert {each.count("|") for each in (header, rule, *rows)} == {9} and len(rows) == 3


def test_options__count_that_severities_cannot_share__is_refused(benchmark, capsys):
    with pytest.raises(SystemExit):
        benchmark.parse_options(["--count", "30"])
    assert "expected a multiple of 200" in capsys.readouterr().err
