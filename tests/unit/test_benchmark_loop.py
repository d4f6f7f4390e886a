"""The benchmark of the loop: it trains for real, measures what it says, and its table is Markdown."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "loop.py"


def load_benchmark():
    """It is a script, no package; its dataclass looks its module up by name."""
    spec = importlib.util.spec_from_file_location("benchmark_loop", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loop = load_benchmark()


@pytest.mark.parametrize("case", loop.CASES, ids=lambda case: case.method)
@pytest.mark.parametrize("size", loop.MODELS)
def test_case__every_one__is_a_run_that_ends_before_it_validates(case, size):
    run = loop.run_of(case, 8, loop.parse_options(["--size", str(size), "--count", "100", "--steps", "7"]))
    assert run.total_steps > 2 * 7 + loop.PROFILED
    assert run.optim.validate_every * run.steps_per_epoch >= run.total_steps


def test_main__on_a_cpu__measures_loop_and_bare_step_and_writes_both(tmp_path, monkeypatch, capsys):
    options = {"device": "cpu", "model": "vit_demo", "batch": 4, "steps": 2, "count": 40, "workers": 0, "only": "mp3"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["loop.py", *words, "--out", str(tmp_path / "loop.json")])
    loop.main()
    (found,) = json.loads((tmp_path / "loop.json").read_text())["loops"]
    assert (found["name"], found["model"], found["image_size"], found["batch"]) == ("mp3", "vit_demo", 64, 4)
    assert found["ratio"] == pytest.approx(found["loop_images_per_s"] / found["bare_images_per_s"])
    assert found["gpu_busy"] is None and 0 < found["data_wait"] < 1
    parts = {"waiting for data", "transform and draws", "forward and backward", "meeting of processes", "update"}
    assert found["host_ms"].keys() == parts
    # The parts are all that a step consists of, but for its bookkeeping.
    assert 0.5 < sum(found["host_ms"].values()) * found["loop_images_per_s"] / 4 / 1000 < 1.1
    header, rule, row = capsys.readouterr().out.splitlines()[-3:]
    assert header.count("|") == rule.count("|") == row.count("|") == 9


def test_images__given_folder__are_repeated_and_without_files_refused(tmp_path):
    options = loop.parse_options(["--images", str(tmp_path / "given"), "--count", "25"])
    (tmp_path / "given" / "below").mkdir(parents=True)
    with pytest.raises(SystemExit, match="has no JPEG files; give another folder"):
        loop.write_images(tmp_path / "out", options)
    for number in range(3):
        (tmp_path / "given" / "below" / f"{number}.JPEG").write_bytes(b"%d" % number)
    loop.write_images(tmp_path / "out", options)
    written = sorted((tmp_path / "out" / "train").rglob("*.jpg"), key=lambda path: path.name)
    assert [int(path.read_bytes()) for path in written] == [number % 3 for number in range(25)]
    assert len({path.parent.name for path in written}) == loop.NUM_CLASSES
