"""The benchmark of several processes: they train for real, the parts of a step are told apart and sum to it."""

import json
import sys

import pytest
from benchmark_script import FOLDER, load_benchmark
from warm_python import warm_executable

from pipeline.engine.loop import build_method

scale = load_benchmark("scale")


def trace(arrivals, leave=(0.0, 1.0, 2.0, 3.0), loaded=0.1):
    return scale.Trace([*arrivals], [*leave], [loaded] * 4, gradient_bytes=300)


def test_split_steps__two_processes__wait_for_the_last_and_then_send():
    # The first two steps are not counted. Of the other two, all begin at 1.0 and 2.0 and end at 2.0 and 3.0.
    first, second = trace([0.0, 0.0, 1.5, 2.9]), trace([0.0, 0.0, 1.7, 2.5], loaded=0.3)
    found = scale.split_steps([first, second], steps=2)
    assert found["step_s"] == pytest.approx(1.0)
    assert found["waiting_s"] == pytest.approx((0.2 + 0.0 + 0.0 + 0.4) / 4)
    assert found["sending_s"] == pytest.approx((0.3 + 0.1) / 2)
    assert found["loader_s"] == pytest.approx(0.2)
    assert found["compute_s"] == pytest.approx((0.4 + 0.8 + 0.4 + 0.2) / 4)
    assert found["first_to_last_s"] == pytest.approx(0.3) and found["worst_first_to_last_s"] == pytest.approx(0.4)
    assert (found["gradient_bytes"], found["sent_bytes"]) == (300, 300)


def test_run__of_three_processes__has_a_micro_batch_for_each():
    options = scale.parse_options(["--batch", "4", "--count", "12", "--model", "vit_demo"])
    optim = scale.shared_run(options, 3).optim
    assert (optim.global_batch, optim.micro_batch, optim.num_micro) == (12, 4, 3)
    with pytest.raises(SystemExit, match="12 files are fewer than the 16 of a step of 4 processes; raise --count"):
        scale.shared_run(options, 4)


@pytest.mark.slow
def test_runs_at_scale__are_in_the_papers_studies():
    runs = scale.load_graph("paper").runs.values()
    for kind in scale.AT_SCALE:
        assert scale.first_of(runs, *kind)["data"]["num_train"] == 1_281_167


@pytest.mark.slow
def test_guide__table_of_64_gpus__is_what_is_computed_today(tmp_path, monkeypatch):
    """Where this fails, a speed or a model has changed: `python benchmarks/scale.py --processes` prints the table."""
    for name in ("OWN_BENCHMARK", "OWN_LOOPS"):  # the project's, whatever was measured here
        monkeypatch.setattr(f"pipeline.plan.speed.{name}", tmp_path / name)
    runs = scale.load_graph("paper").runs.values()
    files = scale.Files(mean_bytes=1.0, decoded_per_s=1.0, index_bytes=1.0)
    table = scale.needs_table([scale.needs_of(scale.first_of(runs, *kind), files) for kind in scale.AT_SCALE])
    guide = (FOLDER.parent / "GUIDE.md").read_text()
    for line in table.splitlines()[2 : 2 + len(scale.AT_SCALE)]:
        counted = "|".join(line.split("|")[:10]) + "|\n"  # what was measured of files is left out
        assert counted in guide


@pytest.mark.slow
def test_main__on_a_cpu__one_process_sends_nothing_and_two_send_what_they_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setattr(sys, "executable", warm_executable())
    options = {"device": "cpu", "model": "vit_demo", "method": "mp3", "batch": 4, "steps": 3, "count": 20, "workers": 0}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    scale.main([*words, "--processes", "1", "2", "--no-needs", "--out", str(tmp_path / "scale.json")])
    one, two = json.loads((tmp_path / "scale.json").read_text())["runs"]
    weights = build_method(scale.shared_run(scale.parse_options(words), 1)).parameters()
    for found in (one, two):
        assert sum(found[f"{name}_s"] for name in scale.PARTS) == pytest.approx(found["step_s"])
        assert all(found[f"{name}_s"] >= 0 for name in scale.PARTS)
        assert found["checkpoint_bytes"] > 3 * found["gradient_bytes"] and found["checkpoint_s"] > 0
    assert (one["processes"], one["sent_bytes"], one["first_to_last_s"]) == (1, 0, 0)
    assert two["gradient_bytes"] == two["sent_bytes"] == 4 * sum(w.numel() for w in weights if w.requires_grad)
    assert two["first_to_last_s"] == pytest.approx(2 * two["waiting_s"]) and two["sending_s"] > 0
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("|")]
    assert {text.count("|") for text in lines} == {11} and len(lines) == 6


@pytest.mark.slow
def test_main__process_that_fails__ends_the_others_and_says_so(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setattr(sys, "executable", warm_executable())
    options = scale.parse_options(["--device", "cpu", "--model", "vit_demo", "--work", str(tmp_path)])
    with pytest.raises(SystemExit, match="processes ended with"):  # nothing was prepared there
        scale.measure(1, options)
    assert "data set 'files' in" in capfd.readouterr().err
