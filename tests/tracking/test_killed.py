"""The status that MLflow shows of a run: killed, continued, finished; with real processes that hold its lock."""

import multiprocessing
import os
import signal
import time

import pytest
from following import FollowerProcess
from patience import PATIENCE_S, wait_until
from result_writers import begin, finish, log_steps, statuses

from pipeline.core.files import held, is_held
from pipeline.launch.slurm import JobRecord
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import Inputs, write_record
from pipeline.site import Site
from pipeline.tracking.follow import mirror_once
from pipeline.tracking.mirror import Mirror
from pipeline.tracking.workers import Workers

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def scale(new_scale, database, request):
    """An empty scale of its own."""
    return new_scale(request.function.__name__.lower()[:60])


@pytest.fixture
def train():
    """Starts a process that holds the lock of a run and logs steps; it works on until it is killed."""
    jobs = []

    def start(folder, steps):
        def work():
            with held(folder.lock, folder.name):
                log_steps(folder, steps)
                time.sleep(600)

        jobs.append(FORK.Process(target=work))
        jobs[-1].start()
        wait_until(lambda: is_held(folder.lock) and folder.metrics.exists())
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        job.join()


def kill(job):
    os.kill(job.pid, signal.SIGKILL)
    job.join()


@pytest.mark.slow
def test_status__process_is_killed_and_the_run_continued__killed_then_running_then_finished(scale, database, train):
    name = next(iter(scale.runs))
    folder, found = begin(scale, name), []
    job = train(folder, range(1, 11))
    mirror_once(scale, Site())
    found.append(statuses(database, scale)[name])
    kill(job)
    mirror_once(scale, Site())
    found.append(statuses(database, scale)[name])
    job = train(begin(scale, name), range(11, 21))
    mirror_once(scale, Site())
    found.append(statuses(database, scale)[name])
    kill(job)
    finish(folder)
    mirror_once(scale, Site())
    found.append(statuses(database, scale)[name])
    assert found == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]


@pytest.mark.slow
def test_status__killed_run_continues_between_two_passes__is_running_at_the_next(scale, database, train):
    name = next(iter(scale.runs))
    log_steps(begin(scale, name), range(1, 11))
    mirror_once(scale, Site())
    follower = Mirror(scale, f"sqlite:///{database}", Workers(scale.results, Site()))
    follower.update()
    assert statuses(database, scale)[name] == "KILLED"
    train(begin(scale, name), range(11, 21))
    follower.update()
    assert statuses(database, scale)[name] == "RUNNING"


@pytest.mark.slow
def test_status__killed_run__ended_when_it_logged_its_last_line(scale, database):
    name = next(iter(scale.runs))
    folder = begin(scale, name)
    log_steps(folder, range(1, 11))
    os.utime(folder.metrics, (1_700_000_000, 1_700_000_000))
    mirror_once(scale, Site())
    mirror = Mirror(scale, f"sqlite:///{database}", Workers(scale.results, Site()))
    (run,) = mirror.runs.experiment.client.search_runs([mirror.runs.experiment.id])
    assert run.info.end_time == 1_700_000_000_000


@pytest.mark.slow
def test_status__config_of_a_killed_run_has_changed__is_killed_too(scale, database):
    name = next(iter(scale.runs))
    log_steps(begin(scale, name), range(1, 11))
    Mirror(scale, f"sqlite:///{database}", Workers(scale.results, Site())).update()
    assert statuses(database, scale)[name] == "RUNNING"
    others = {other: entry for other, entry in scale.runs.items() if other != name}
    mirror_once(scale.model_copy(update={"runs": others}), Site())
    assert statuses(database, scale)[name] == "KILLED"


@pytest.mark.slow
def test_follow__snakemake_is_killed_and_its_run_goes_on__stays_running(copy, scale, database, train):
    name = next(iter(scale.runs))
    train(begin(scale, name), range(1, 11))  # before the lock is taken, which a fork would inherit
    with held(scale.results.workflow_lock, "a test"):
        follower = FollowerProcess(copy, scale)
        wait_until(lambda: statuses(database, scale))
    follower.wait(timeout=PATIENCE_S)
    assert statuses(database, scale)[name] == "RUNNING"


@pytest.mark.slow
def test_follow__run_writes_its_last_checkpoint_when_snakemake_ends__is_waited_for_and_killed(
    copy, scale, database, train
):
    name = next(iter(scale.runs))
    job = train(begin(scale, name), range(1, 11))
    with held(scale.results.workflow_lock, "a test"):
        follower = FollowerProcess(copy, scale)
        wait_until(lambda: statuses(database, scale))
        follower.terminate()
        time.sleep(2)
        kill(job)
        follower.wait(timeout=PATIENCE_S)
    assert statuses(database, scale)[name] == "KILLED"


SQUEUE = """#!/bin/sh
echo '7|{state}|None|n1|demo-run|/p'
exit {code}
"""


@pytest.mark.parametrize(
    ("state", "code", "have_left"),
    [("PENDING", 0, False), ("RUNNING", 0, False), ("CANCELLED", 0, True), ("OF ANOTHER JOB", 0, True), ("", 1, False)],
)
def test_workers__run_of_a_slurm_job__have_left_when_the_job_has_ended(tmp_path, monkeypatch, state, code, have_left):
    squeue = tmp_path / "bin/squeue"
    squeue.parent.mkdir()
    squeue.write_text(SQUEUE.format(state=state, code=code))
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    run = RunFolder(tmp_path / "results/demo", "run")
    job = "8" if state == "OF ANOTHER JOB" else "7"
    write_record(run.job, JobRecord(job=job, time=time.time(), inputs=Inputs(data="d", init=None)))
    assert Workers(ScaleFolder(run.results), Site()).have_left(run) == have_left


def test_workers__run_without_job__have_left_when_its_lock_is_free(tmp_path):
    run = RunFolder(tmp_path, "run")
    workers = Workers(ScaleFolder(tmp_path), Site())
    assert workers.have_left(run)
    with held(run.lock, "a test"):
        assert not workers.have_left(run)
    assert workers.have_left(run)
