"""The launcher's decisions, with a queue that says what the test tells it; tests/cluster has a real one."""

import json
import logging

import pytest

from pipeline.config import CONFIGS
from pipeline.engine.signals import StopRequest
from pipeline.errors import LaunchError
from pipeline.files import write_json
from pipeline.launch import slurm
from pipeline.launch.job import Outcome
from pipeline.launch.queue import Answer, Job
from pipeline.launch.resources import Shape
from pipeline.launch.slurm import JobRecord, Launcher
from pipeline.records import Inputs, TrainRecord
from pipeline.results import RunFolder
from pipeline.site import Site, Slurm

OLD, NEW = Inputs(data="a" * 64, init="b" * 64), Inputs(data="c" * 64, init="b" * 64)


class Cluster:
    """Jobs by id, with their states; submitting and cancelling change them."""

    def __init__(self):
        self.states, self.cancelled, self.now = {}, [], 1.0

    def look(self, newer_than=0.0):
        self.now = max(self.now, newer_than) + 1
        jobs = {key: Job(key, state, "None", "n1", "job", str(CONFIGS.parent)) for key, state in self.states.items()}
        return Answer(self.now, jobs)

    def submit(self):
        self.states["new"] = "PENDING"
        return "new"

    def cancel(self, job):
        self.cancelled.append(job)
        self.states[job] = "CANCELLED"


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(slurm, "scancel", cluster.cancel)
    monkeypatch.setattr(slurm, "LOOK_S", 0.001)
    return cluster


@pytest.fixture
def launcher(cluster, tmp_path, monkeypatch):
    site = Site(slurm=Slurm(poll_s=0.001))
    paths = RunFolder(tmp_path / "demo", "run")
    launcher = Launcher("job", paths, site, Shape(1, 1), "local", NEW, StopRequest(), cluster)
    monkeypatch.setattr(launcher, "_submit", cluster.submit)
    return launcher


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


def test_launcher__remembered_job__says_what_it_is_for(launcher):
    launcher._remember("8", 2.0)
    assert json.loads(launcher.paths.job.read_text()) == {"job": "8", "time": 2.0, "inputs": NEW.model_dump()}


def finished(launcher, inputs):
    record = TrainRecord(run="run", metrics={}, files={}, inputs=inputs, provenance={})
    write_json(launcher.paths.finished, record.model_dump())


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


def test_launcher__inputs_changed_while_the_job_waited__says_so_and_does_not_submit_again(cluster, launcher):
    """The job found other data than the launcher did: what it made is not what was asked for."""
    finished(launcher, OLD)
    outcome = Outcome(job="7", start=0, rank=0, code=0, why="", step=3)
    write_json(launcher.paths.outcome, outcome.model_dump())
    with pytest.raises(LaunchError, match=r"the data changed from c+ to a+ while job 7 was queued or ran.*start again"):
        launcher._judge("7", "COMPLETED")
