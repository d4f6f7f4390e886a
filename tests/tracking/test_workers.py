"""Whether anything still works on a run, and how the process that follows the results waits; without MLflow."""

import logging
import os
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pipeline.core.errors import LaunchError
from pipeline.core.files import held, write_json, write_text
from pipeline.engine.signals import StopRequest
from pipeline.launch import queue
from pipeline.launch.queue import Answer, Job
from pipeline.launch.slurm import JobRecord
from pipeline.results import ScaleFolder
from pipeline.results.records import Inputs
from pipeline.site import Site, Slurm
from pipeline.tracking import follow
from pipeline.tracking.workers import Workers

SUBMITTED = 1000.0  # seconds ago


@pytest.fixture
def results(tmp_path):
    return ScaleFolder(tmp_path / "demo")


@pytest.fixture
def run(results):
    """A run that was submitted as job 7."""
    folder = results.run("run")
    record = JobRecord(job="7", time=time.time() - SUBMITTED, inputs=Inputs(data="a", init=None))
    write_json(folder.job, record.model_dump())
    return folder


@pytest.fixture
def have_left(results, run, monkeypatch):
    """Whether nothing works on the run where squeue shows this state of its job, or says that it has a problem."""

    def ask(state="", problem=""):
        jobs = {"7": Job("7", state, "None", "", "", "")} if state else {}
        monkeypatch.setattr(queue, "ask", lambda stop: Answer(time.time(), jobs, problem))
        results.queue.unlink(missing_ok=True)
        return Workers(results, Site(slurm=Slurm(poll_s=100))).have_left(run)

    return ask


@pytest.mark.parametrize(
    ("state", "expected"),
    [("RUNNING", False), ("PENDING", False), ("COMPLETED", True), ("NODE_FAIL", True), ("", True)],
)
def test_workers__of_a_run_with_a_slurm_job__have_left_once_the_job_has_ended(have_left, state, expected):
    assert have_left(state) == expected


def test_workers__slurm_does_not_answer__may_still_be_there(have_left):
    assert not have_left(problem="no controller")


def test_workers__run_whose_lock_is_held__are_there_whatever_the_queue_says(have_left, run):
    with held(run.lock, "a test"):
        assert not have_left("COMPLETED")
    assert have_left("COMPLETED")


def test_workers__record_of_a_job_that_cannot_be_read__may_still_be_there(have_left, run):
    write_text(run.job, "{}")
    assert not have_left("COMPLETED")


def test_workers__run_that_was_never_submitted__have_left_without_a_question_to_slurm(have_left, run):
    run.job.unlink()
    assert have_left("RUNNING")


def test_workers__answer_from_before_the_submission__is_not_believed(results, run, monkeypatch):
    write_json(results.queue, {"time": time.time() - 2 * SUBMITTED, "jobs": [], "problem": ""})
    monkeypatch.setattr(queue, "ask", lambda stop: Answer(time.time(), {"7": Job("7", "RUNNING", "", "", "", "")}))
    assert not Workers(results, Site(slurm=Slurm(poll_s=10 * SUBMITTED))).have_left(run)


# The process that follows


@pytest.fixture
def follower(results, monkeypatch):
    """One whose MLflow fails as long as `is_down` is set."""
    graph = SimpleNamespace(scale="demo", results=results, runs=["old", "new", "waiting"])
    mirrored = SimpleNamespace(is_down=False, graph=graph)
    mirrored.runs = SimpleNamespace(end_stopped=lambda: 2, experiment=SimpleNamespace(id="1"))

    def update():
        if mirrored.is_down:
            raise LaunchError("MLflow did not accept the results")

    mirrored.update = update
    monkeypatch.setattr(follow, "Mirror", lambda graph, uri, workers: mirrored)
    monkeypatch.setattr(follow, "answering", lambda uri: nullcontext())
    found = follow._Follower(graph, Site(tracking_uri="http://me:secret@127.0.0.1:9"), StopRequest())
    found.mirrored = mirrored
    return found


def test_follow__mlflow_is_down__is_asked_ever_less_often_and_said_once(follower, caplog):
    follower.mirrored.is_down, pauses = True, []
    for _ in range(7):
        follower._pass()
        pauses.append(follower.pause_s)
    assert pauses == [6, 12, 24, 48, 60, 60, 60] and len(caplog.messages) == 1
    follower.mirrored.is_down = False
    with caplog.at_level(logging.INFO):
        follower._pass()
    assert follower.pause_s == 3 and caplog.messages[1:] == ["MLflow answers again and is up to date"]


def test_follow__last_pass__says_how_many_runs_go_on_and_another_ends_none(follower):
    assert (follower._pass(), follower._pass(is_last=True)) == (0, 2)


def test_follow__mlflow_down_to_the_end__names_the_runs_that_it_lacks(follower, results, caplog):
    follower._pass()
    for name, age in (("old", 500), ("new", -500)):
        path = results.run(name).started
        write_text(path, "{}")
        os.utime(path, (follower.caught_up_at - age,) * 2)
    follower.mirrored.is_down = True
    follower._pass()
    follower._log_exit()
    assert caplog.messages[-1] == (
        "MLflow at http://127.0.0.1:9 still lacks: new; when it answers, "
        "`python -m pipeline track --scale demo` catches up"
    )


@pytest.mark.parametrize(("is_asked", "is_running", "expected"), [(0, 1, False), (0, 0, True), (1, 1, True)])
def test_follow__is_over__when_asked_to_stop_or_when_snakemake_has_ended(
    follower, results, is_asked, is_running, expected
):
    follower.stop.why = "asked to stop" if is_asked else ""
    with held(results.workflow_lock, "a test") if is_running else nullcontext():
        assert follower._is_over() == expected
