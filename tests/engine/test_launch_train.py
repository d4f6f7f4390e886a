"""What `train` does with a run on each kind of site: here, in several processes, or through SLURM."""

import os
from contextlib import nullcontext

import pytest
import torch
import yaml
from tiny_runs import tiny_config

from pipeline.core.errors import ConfigError, DeviceMemoryError
from pipeline.core.files import write_text
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.launch import train as launching
from pipeline.launch.local import train_here
from pipeline.launch.resources import Shape
from pipeline.launch.train import train
from pipeline.results import RunFolder
from pipeline.results.records import Inputs
from pipeline.site import Site, Slurm

INPUTS = Inputs(data="a" * 64, init=None)


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Trains a run of 4 micro-batches on a site, but for the training; returns the exit code and what was called."""
    calls = []

    def returning(name, code):
        def call(*arguments):
            calls.append((name, arguments))
            return code

        return call

    def run(site, code=0, config=None):
        optim = {"global_batch": 40, "micro_batch": 10}
        content = tiny_config({"optim": optim}, config or {})
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
        monkeypatch.setattr(launching, "load_site", lambda: site)
        for name in ("train_here", "run_processes", "train_on_cluster"):
            monkeypatch.setattr(launching, name, returning(name, code))
        monkeypatch.setattr("pipeline.launch.gpus.LOCKS", tmp_path / "locks")
        monkeypatch.setattr("pipeline.launch.gpus._found_gpus", dict)
        found = launching._chosen_run("test", None, tmp_path / "run.yaml")[0]
        folder = launching.results_of("test").run(found)
        write_text(folder.finished, "{}")
        return train("test", config=tmp_path / "run.yaml"), calls, folder

    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")
    monkeypatch.setattr(launching, "find_inputs", lambda *arguments: INPUTS)
    monkeypatch.setattr(launching.STOP, "listen", lambda: launching.STOP)
    monkeypatch.delenv("RANK", raising=False)
    return run


def test_train__one_process__trains_here_and_publishes_what_it_finished(launched):
    code, [(name, _)], folder = launched(Site(processes=1))
    assert (code, name) == (0, "train_here") and folder.done.read_text() == "{}"


@pytest.mark.parametrize("code", [1, 75])
def test_train__failed_or_stopped__is_not_published(launched, code):
    found, _, folder = launched(Site(processes=1), code)
    assert found == code and not folder.done.exists()


def test_train__several_gpus__starts_as_many_processes_as_share_its_micro_batches(launched, tmp_path):
    code, [call], folder = launched(Site(processes=8))
    assert call == ("run_processes", (4, ["train", "--scale", "test", "--config", str(tmp_path / "run.yaml")], []))
    assert code == 0 and folder.done.exists()


def test_train__site_with_gpus__holds_as_many_as_it_has_processes_while_it_trains(launched, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    _, [(name, arguments)], _ = launched(Site(processes=8, gpus=[6, 5, 4]))
    assert name == "run_processes" and arguments[0] == 2 and os.environ["CUDA_VISIBLE_DEVICES"] == "6,5"
    assert [slot.gpu.id for slot in arguments[2]] == ["6", "5"] and all(slot.lock.file.closed for slot in arguments[2])


def test_train__asked_to_stop_while_it_waits_for_a_gpu__is_to_be_continued(launched, monkeypatch):
    def wait(*arguments):
        raise Requeue("interrupted")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("pipeline.launch.gpus._wait_for_slots", wait)
    code, calls, folder = launched(Site(gpus=[0]))
    assert code == 75 and calls == [] and not folder.done.exists()


def test_train__run_that_a_surviving_training_works_on__waits_for_it_before_it_takes_a_gpu(
    launched, monkeypatch, caplog
):
    steps, states = [], iter([True, True, False])

    def look(path):
        steps.append(path.name)
        return next(states)

    def hold(*arguments):
        steps.append("GPU")
        return nullcontext([])

    monkeypatch.setattr(launching, "is_held", look)
    monkeypatch.setattr(launching, "hold_gpus", hold)
    monkeypatch.setattr(launching, "holder_of", lambda path: "process 7 on n1")
    monkeypatch.setattr(launching, "LOOK_S", 0)
    with caplog.at_level("INFO"):
        code, _, folder = launched(Site())
    assert code == 0 and steps == [*[folder.lock.name] * 3, "GPU"]
    assert caplog.messages.count(f"process 7 on n1 is working on {folder.name}; waiting for it") == 1


def test_train__asked_to_stop_while_another_process_trains_the_run__is_to_be_continued(launched, monkeypatch):
    monkeypatch.setattr(launching, "is_held", lambda path: True)
    monkeypatch.setattr(launching.STOP, "why", "interrupted")
    code, calls, folder = launched(Site())
    assert code == 75 and calls == [] and not folder.done.exists()


@pytest.mark.parametrize("site", [Site(processes=8), Site(slurm=Slurm())], ids=["here", "slurm"])
def test_train__finished_run__starts_and_asks_nothing_and_is_published(launched, monkeypatch, site):
    monkeypatch.setattr(RunFolder, "is_finished", lambda self, inputs: inputs == INPUTS)
    code, calls, folder = launched(site)
    assert code == 0 and calls == [] and folder.done.exists()


def test_train__process_that_has_its_place__trains_and_leaves_the_rest_to_the_one_that_started_it(
    launched, monkeypatch
):
    monkeypatch.setenv("RANK", "1")
    _, [(name, _)], folder = launched(Site(processes=8))
    assert name == "train_here" and not folder.done.exists()


def test_train__slurm__submits_the_config_as_it_is_now_for_a_site_that_any_folder_finds(launched, monkeypatch):
    monkeypatch.setenv("PATCHWORK_SITE", "mine.yaml")
    monkeypatch.chdir("/")
    site = Site(processes=2, slurm=Slurm(nodes=2))
    code, [(name, arguments)], folder = launched(site)
    assert (code, name) == (0, "train_on_cluster")
    assert arguments[:5] == (folder, site, Shape(2, 2), "/mine.yaml", INPUTS)
    submitted = yaml.safe_load(folder.submitted.read_text())
    assert submitted["optim"]["micro_batch"] == 10 and folder.done.exists()


def test_train__gpu_that_is_full__is_an_error_with_the_run_and_what_to_set(tmp_path, monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("pipeline.engine.train.train_run", fail)
    words = r"run \S+ needs more memory than its GPU has: CUDA .* 2\.00 GiB\.\n.* set optim\.micro_batch below 10 "
    with pytest.raises(DeviceMemoryError, match=words):
        content = tiny_config({"optim": {"global_batch": 40, "micro_batch": 10}})
        train_here(content, RunFolder(tmp_path, "run"), Site(), StopRequest())


def test_train__weight_file__is_refused(launched):
    with pytest.raises(ConfigError, match="evaluated without training; there is nothing to train"):
        launched(Site(), config={"init": "file:weights.pth", "train": False})
