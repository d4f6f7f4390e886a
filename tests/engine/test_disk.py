"""A disk that is full or read-only is named in one message, before a run starts."""

import pytest
import yaml
from disks import read_only, small_disk
from tiny_runs import StopAfter, fit, tiny_config, tiny_run

from pipeline.core.errors import PatchworkError
from pipeline.core.files import held, hold_for_life
from pipeline.engine.meters import MetricsFile
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.launch.queue import Queue
from pipeline.launch.train import train
from pipeline.results import RunFolder
from pipeline.site import Site

RUN = tiny_run({"optim": {"epochs": 1, "warmup_epochs": 0}})

WRITERS = {
    "lock": lambda folder: held(folder / "state" / "lock", "a run").__enter__(),
    "lock for life": lambda folder: hold_for_life(folder / "workflow.lock", "a scale"),
    "queue": lambda folder: Queue(folder / "queue.json", 1).look(),
    "metrics": lambda folder: MetricsFile(folder / "runs" / "metrics.jsonl"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_write__results_folder_is_read_only__is_an_error_that_says_what_to_do(tmp_path, writer):
    words = (
        rf"could not write {tmp_path}/.*: Read-only file system; free space or fix the permissions, then start again"
    )
    with read_only(tmp_path), pytest.raises(PatchworkError, match=words):
        WRITERS[writer](tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("has_begun", [False, True], ids=["new", "half trained"])
def test_train__results_folder_is_read_only__is_an_error_that_says_what_to_do(images, results, has_begun):
    paths, site = RunFolder(results, RUN.name), Site(device="cpu", data={"small": images})
    if has_begun:
        fit(RUN, results, images, StopAfter(3))
    with read_only(results), pytest.raises(PatchworkError, match=r"could not write .*: Read-only file system"):
        train_run(RUN, paths, site, StopRequest())


@pytest.mark.slow
def test_train__no_room_for_checkpoints__is_refused_before_the_first_step(images, results):
    paths, site = RunFolder(results, RUN.name), Site(device="cpu", data={"small": images})
    paths.state.mkdir(parents=True)
    words = (
        r"state/.* has 1\.\d MB of free space, training with checkpoints of 0\.1 MB needs 16\.\d MB; free some, then"
    )
    with small_disk(paths.state), pytest.raises(PatchworkError, match=words):
        train_run(RUN, paths, site, StopRequest())
    assert not paths.metrics.exists() and not paths.started.exists()


@pytest.mark.slow
def test_train__room_for_new_checkpoints_and_the_existing_ones__continues(images, results, monkeypatch):
    """A new checkpoint is written before the oldest one goes: three have to fit, of which two may be there."""
    needed = []
    monkeypatch.setattr("pipeline.engine.checkpoint.require_space", lambda folder, size, what: needed.append(size))
    for _ in range(3):
        trainer = fit(RUN, results, images, StopAfter(1))
    (newest,) = [path for path in trainer.paths.state.glob("step-*.pt") if "step-000000003-" in path.name]
    size = trainer._num_bytes()
    assert needed == [3 * size, 2 * size, size]
    assert size <= newest.stat().st_size < 2 * size


def test_train__disk_almost_full__is_refused_before_anything_is_imported_or_submitted(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tiny_config()))
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "disk")
    words = r"disk/test/runs/.* has 1\.0 MB of free space, training with its logs needs 16\.0 MB"
    with small_disk(tmp_path / "disk"), pytest.raises(PatchworkError, match=words):
        train("test", config=tmp_path / "run.yaml")
