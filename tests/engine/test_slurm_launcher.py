"""The launcher's decisions, with a queue that says what the test tells it; tests/cluster has a real one."""

import json
import logging
import os
import signal
import socket
import subprocess
import time

import pytest
from fake_cluster import NEW, OLD, finished

from pipeline.core.errors import LaunchError
from pipeline.core.files import held, is_held, write_json
from pipeline.engine.signals import StopRequest
from pipeline.launch import slurm
from pipeline.launch.job import Outcome
from pipeline.launch.resources import Shape
from pipeline.launch.slurm import JobRecord, Launcher
from pipeline.results import RunFolder
from pipeline.site import Site, Slurm


def submitted(launcher, inputs, job="7"):
    write_json(launcher.paths.job, JobRecord(job=job, time=1.0, inputs=inputs).model_dump())


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_launcher__job_for_other_inputs__is_cancelled_and_replaced_in_one_line(cluster, launcher, caplog, state):
    cluster.states["7"] = state
    submitted(launcher, OLD)
    with caplog.at_level(logging.INFO):
        assert launcher._attach_or_submit() == "new"
    assert cluster.cancelled == ["7"]
    assert cluster.states == {"7": "CANCELLED", "new": "PENDING"}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "the data changed from aaaaaaaaaaaa to cccccccccccc since job 7 was submitted: "
        "cancelling it and submitting another"
    ]


def test_launcher__job_for_the_same_inputs__is_watched(cluster, launcher, caplog):
    cluster.states["7"] = "RUNNING"
    submitted(launcher, NEW)
    with caplog.at_level(logging.INFO):
        assert launcher._attach_or_submit() == "7"
    assert cluster.cancelled == [] and "watching job 7, submitted earlier (running)" in caplog.text


def test_launcher__job_that_is_ending__is_waited_for_and_another_one_submitted(cluster, launcher):
    submitted(launcher, NEW)
    cluster.show("COMPLETING", "COMPLETING", "COMPLETED")
    assert launcher._attach_or_submit() == "new" and cluster.shown == 3


def test_launcher__cancelled_job_takes_a_while_to_end__is_waited_for(cluster, launcher):
    cluster.states["7"] = "RUNNING"
    submitted(launcher, OLD)
    looks = ["RUNNING", "COMPLETING", "COMPLETING", "CANCELLED"]
    look = cluster.look

    def ending(newer_than=0.0):
        if cluster.cancelled and looks:
            cluster.states["7"] = looks.pop(0)
        return look(newer_than)

    cluster.look = ending
    assert launcher._attach_or_submit() == "new"
    assert looks == [] and cluster.cancelled == ["7"]


def test_launcher__other_inputs_but_their_job_has_ended__submits_without_a_word(cluster, launcher, caplog):
    cluster.states["7"] = "COMPLETED"
    submitted(launcher, OLD)
    assert launcher._attach_or_submit() == "new"
    assert cluster.cancelled == []


def test_launcher__while_it_submits__no_other_launcher_of_the_run_does(cluster, launcher):
    held = []
    launcher._submit = lambda: (held.append(is_held(launcher.paths.submit_lock)), cluster.submit())[1]
    assert launcher._attach_or_submit() == "new" and held == [True]
    assert not is_held(launcher.paths.submit_lock)


def test_launcher__told_to_stop_while_another_one_submits__does_not_wait_for_it(cluster, launcher, caplog):
    """The other one may hang in sbatch or squeue."""
    launcher.stop._raise(signal.SIGINT, None)
    with held(launcher.paths.submit_lock, "it"), pytest.raises(slurm.Interrupted), caplog.at_level(logging.INFO):
        launcher._attach_or_submit()
    assert caplog.messages == [f"process {os.getpid()} on {socket.gethostname()} submits this run; waiting for it"]


def test_launcher__told_to_stop_while_its_submission_may_arrive__does_not_wait_for_it(launcher):
    launcher.stop._raise(signal.SIGINT, None)
    with pytest.raises(slurm.Interrupted, match=r"^interrupted$"):
        launcher._find(JobRecord(job=None, time=time.time(), inputs=NEW))


def test_launcher__ctrl_c_while_the_queue_does_not_say_whether_its_job_is_there__cancels_it(cluster, launcher):
    submitted(launcher, OLD)
    cluster.show("(no controller)", at_the_end=lambda: launcher.stop._raise(signal.SIGINT, None))
    with pytest.raises(slurm.Interrupted, match="interrupted: cancelled job 7"):
        launcher._attach_or_submit()
    record = JobRecord.model_validate_json(launcher.paths.job.read_bytes())
    assert cluster.cancelled == ["7"] and record.has_ended and record.inputs == OLD


def test_launcher__remembered_job__says_what_it_is_for(launcher):
    launcher._remember("8", 2.0)
    remembered = {"job": "8", "time": 2.0, "inputs": NEW.model_dump(), "has_ended": False}
    assert json.loads(launcher.paths.job.read_text()) == remembered


def test_launcher__finished_for_other_inputs__submits(cluster, launcher):
    finished(launcher, OLD)

    def submit():
        finished(launcher, NEW)
        return cluster.submit()

    launcher._submit = submit
    submitted(launcher, OLD)
    launcher.run()
    assert cluster.states == {"new": "PENDING"}


def test_launcher__finished_for_these_inputs__submits_nothing(cluster, launcher):
    finished(launcher, NEW)
    launcher.run()
    assert cluster.states == {}


@pytest.mark.parametrize("states", [["COMPLETED"], ["COMPLETING", "COMPLETED"], ["COMPLETING", None]])
def test_launcher__run_finishes_while_the_queue_is_asked_for_its_job__submits_nothing(cluster, launcher, states):
    """A Snakemake that starts again may look just when the job of the one that was killed ends."""
    submitted(launcher, NEW)
    cluster.show(*states, at_the_end=lambda: finished(launcher, NEW))
    launcher.run()
    assert cluster.states == {} and cluster.shown == len(states)


def test_launcher__inputs_changed_while_the_job_waited__says_so_and_does_not_submit_again(cluster, launcher):
    """The job found other data than the launcher did: what it made is not what was asked for."""
    finished(launcher, OLD)
    outcome = Outcome(job="7", start=0, rank=0, code=0, why="", step=3)
    write_json(launcher.paths.outcome, outcome.model_dump())
    with pytest.raises(LaunchError, match=r"the data changed from c+ to a+ while job 7 was queued or ran.*start again"):
        launcher._judge("7", "COMPLETED")


# Submitting


class Sbatch:
    """In place of submitit's executor: refuses with each of the messages, then takes the job as number 9."""

    def __init__(self, launcher, *refusals):
        self.launcher, self.refusals, self.num_calls, self.before = launcher, [*refusals], 0, []

    def __call__(self, folder, python):
        assert folder == self.launcher.paths.jobs
        return self

    def update_parameters(self, **options):
        self.options = options

    def submit(self, job):
        from submitit.core.utils import FailedJobError

        self.num_calls += 1
        self.before.append(JobRecord.model_validate_json(self.launcher.paths.job.read_bytes()))
        if self.refusals:
            raise FailedJobError(self.refusals.pop(0))
        self.job_id, self.came_back = "9", time.time()
        return self


@pytest.fixture
def submit(launcher, monkeypatch):
    """Submits for real, but for sbatch; returns what stands for it."""

    def run(*refusals):
        sbatch = Sbatch(launcher, *refusals)
        monkeypatch.setattr("submitit.SlurmExecutor", sbatch)
        sbatch.job = Launcher._submit(launcher)
        return sbatch

    monkeypatch.setattr(slurm, "SBATCH_S", 0.0)
    return run


def test_submit__job_taken__is_remembered_from_before_sbatch_to_after_it(launcher, submit, caplog):
    """Killed within sbatch, the next launcher knows that there may be a job; an answer from within it is too old."""
    with caplog.at_level(logging.INFO):
        sbatch = submit()
    assert (sbatch.job, sbatch.num_calls) == ("9", 1)
    assert [(record.job, record.inputs) for record in sbatch.before] == [(None, NEW)]
    record = JobRecord.model_validate_json(launcher.paths.job.read_bytes())
    assert record.job == "9" and record.time >= sbatch.came_back >= sbatch.before[0].time
    assert sbatch.options["job_name"] == "job" and sbatch.options["nodes"] == 1
    assert caplog.messages == [f"submitted job 9: 1 node x 1 process; its log: {launcher.paths.jobs}/9_0_log.out"]


def test_submit__refused_for_now__is_tried_again(cluster, submit):
    busy = "sbatch: error: Unable to contact SLURM controller (connect failure)"
    sbatch = submit(busy, busy)
    assert (sbatch.job, sbatch.num_calls) == ("9", 3)


def test_submit__refused_but_the_job_arrived__is_not_submitted_twice(cluster, launcher, submit):
    cluster.states["8"] = "PENDING"
    sbatch = submit("sbatch: error: Socket timed out on send/recv operation")
    assert (sbatch.job, sbatch.num_calls) == ("8", 1)
    assert JobRecord.model_validate_json(launcher.paths.job.read_bytes()).job == "8"


def test_submit__refused_for_good__says_what_sbatch_said_last(submit):
    refusal = "sbatch: warning: x\nsbatch: error: invalid partition specified: gpux\n"
    with pytest.raises(
        LaunchError, match=r"refused the job: sbatch: error: invalid partition specified: gpux; .*doctor"
    ):
        submit(refusal)


def test_find__record_of_a_submission_that_did_not_come_back__is_looked_for_after_it_may_have_arrived(
    cluster, launcher, monkeypatch
):
    slept, asked = [], []
    monkeypatch.setattr(launcher, "_pause", slept.append)
    look = cluster.look
    cluster.look = lambda newer_than: (asked.append(newer_than), look(newer_than))[1]
    cluster.states["7"] = "RUNNING"
    since = time.time()
    assert launcher._find(JobRecord(job=None, time=since, inputs=NEW)).id == "7"
    assert slept == [pytest.approx(slurm.SBATCH_S, abs=1)] and asked[0] >= since
    assert launcher._find(JobRecord(job="7", time=since - 100, inputs=NEW)).id == "7"
    assert len(slept) == 1 and asked[1] == since - 100


def test_find__queue_that_cannot_be_read__is_asked_again(cluster, launcher):
    cluster.show("(no controller)", "(no controller)", None)
    assert launcher._find(JobRecord(job="7", time=1.0, inputs=NEW)) is None and cluster.shown == 3


# The command


def test_train_on_cluster__interrupted__continues_with_the_same_command(tmp_path, monkeypatch, caplog):
    made = []

    def run(launcher):
        made.append(launcher)
        raise slurm.Interrupted("asked to stop: job 7 goes on")

    monkeypatch.setattr(Launcher, "run", run)
    paths = RunFolder(tmp_path / "demo", "run")
    with caplog.at_level(logging.INFO):
        code = slurm.train_on_cluster(paths, Site(slurm=Slurm(poll_s=3)), Shape(1, 1), "local", NEW, StopRequest())
    assert code == 75 and caplog.messages == ["asked to stop: job 7 goes on; the same command continues"]
    # The same run at another scale is another job; all scales share what squeue said.
    assert made[0].name == "demo-run"
    assert (made[0].queue.path, made[0].queue.poll_s) == (tmp_path / "queue.json", 3)


def test_forget_own_job__variables_of_the_job_it_runs_in__are_dropped_but_for_the_clusters_config(monkeypatch):
    for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    slurm.forget_own_job()
    assert [name for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "SLURM_CONF") if name in os.environ] == ["SLURM_CONF"]


def test_scancel__hangs__is_a_warning_and_the_job_may_still_run(monkeypatch, caplog):
    def hang(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert not slurm.scancel("7")
    assert caplog.messages == ["scancel 7: no answer within 30 s"]
