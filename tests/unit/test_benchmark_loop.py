"""The benchmark of the loop: it trains for real, measures what it says, and its table is Markdown."""

import json
import multiprocessing
import sys
import time

import pytest
import torch
from benchmark_script import load_benchmark
from patience import PATIENCE_S
from warm_python import warm_executable

loop, watching = load_benchmark("loop"), load_benchmark("watching")


@pytest.mark.parametrize("case", loop.CASES, ids=lambda case: case.method)
@pytest.mark.parametrize("size", loop.MODELS)
def test_case__every_one__is_a_run_that_ends_before_it_validates(case, size):
    run = loop.run_of(case, 8, loop.parse_options(["--size", str(size), "--count", "100", "--steps", "7"]))
    assert run.total_steps > 2 * 7 + loop.PROFILED + loop.num_ahead(loop.parse_options([]).workers)
    assert run.optim.validate_every * run.steps_per_epoch >= run.total_steps


@pytest.mark.slow
def test_main__together_on_a_cpu__measures_loops_and_bare_steps_and_writes_both(tmp_path, monkeypatch, capsys):
    options = {"device": "cpu", "model": "vit_demo", "steps": 2, "count": 40, "workers": 0, "only": "mp3"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--together", "--batch", "2", "4", "--out", str(tmp_path / "loop.json")]
    monkeypatch.setattr(sys, "argv", ["loop.py", *words])
    monkeypatch.setattr(sys, "executable", warm_executable())
    loop.main()
    two, found = sorted(json.loads((tmp_path / "loop.json").read_text())["loops"], key=lambda one: one["batch"])
    assert (two["name"], two["batch"]) == ("mp3", 2)
    assert (found["name"], found["model"], found["image_size"], found["batch"]) == ("mp3", "vit_demo", 64, 4)
    assert found["ratio"] == pytest.approx(found["loop_images_per_s"] / found["bare_images_per_s"])
    assert found["gpu_busy"] is None and 0 < found["data_wait"] < 1
    parts = {"waiting for data", "transform and draws", "forward and backward", "all-reduce", "update"}
    assert found["host_ms"].keys() == found["longest_ms"].keys() == parts
    assert all(found["longest_ms"][part] >= found["host_ms"][part] - 0.001 for part in parts)  # both are rounded
    # The parts are all that a step consists of, but for its bookkeeping.
    assert 0.5 < sum(found["host_ms"].values()) * found["loop_images_per_s"] / 4 / 1000 < 1.1
    header, rule, row = capsys.readouterr().out.splitlines()[-3:]
    assert header.count("|") == rule.count("|") == row.count("|") == 9


def test_watch__when_its_turn_comes__leaves_out_what_was_made_ahead(tmp_path):
    watch = watching.Watch(2, torch.device("cpu"), watching.MeasurementLock(tmp_path, 0), num_ahead=3)
    batches = watch._iterated("waiting for data", range(20))
    trained = [next(batches)]
    assert not watch.is_raised
    assert [*trained, next(batches), next(batches)] == [0, 4, 5]


def take_turn(work, is_due, span):
    is_due.wait()
    watching.MeasurementLock(work, 2).wait()
    begun = time.time()
    time.sleep(2 * watching.SETTLE_S)
    span[:] = begun, time.time()


@pytest.mark.slow
def test_turn__of_two_processes__comes_when_both_have_arrived_and_one_has_ended(tmp_path):
    fork = multiprocessing.get_context("fork")
    due, spans = [fork.Event() for _ in range(2)], [fork.Array("d", 2) for _ in range(2)]
    children = [fork.Process(target=take_turn, args=(tmp_path, *each)) for each in zip(due, spans, strict=True)]
    for child in children:
        child.start()
    due[0].set()
    time.sleep(3 * watching.LOOK_S)
    asked = time.time()  # one of two has compiled so far
    due[1].set()
    for child in children:
        child.join(PATIENCE_S)
    assert [child.exitcode for child in children] == [0, 0]
    (begun, ended), (begun_later, _) = sorted(map(tuple, spans))
    assert asked < begun < ended < begun_later


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


def loop_of(name, batch, rate, recorded=True):
    kind = {"name": name, "model": "vit_b", "image_size": 224, "batch": batch, "recorded": recorded}
    return {**kind, "loop_images_per_s": rate}


def test_earlier__of_such_a_machine__stays_unless_it_was_measured_again(tmp_path):
    path, machine = tmp_path / "loop.json", {"device": "a", "versions": {}, "precision": "bf16", "cores": 16}
    machine["workers"] = 14
    old = [loop_of("mae", 128, 1.0), loop_of("mae", 128, 2.0, recorded=False), loop_of("mae", 512, 3.0)]
    path.write_text(json.dumps({**machine, "loops": old}))
    report = {**machine, "loops": [loop_of("mae", 128, 9.0), loop_of("mp3", 512, 9.0)]}
    assert loop.earlier(path, report) == old[1:]
    assert loop.earlier(path, {**report, "workers": 7}) == loop.earlier(tmp_path / "none", report) == []


def test_record__on_a_cpu__is_refused_before_anything_is_measured():
    with pytest.raises(SystemExit, match="keeps rates of an H200, and this is a CPU; leave it out"):
        loop.parse_options(["--device", "cpu", "--record"])
