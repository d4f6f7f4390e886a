"""What is made of squeue's answers: which of them may be used again, and what they say of a job."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Timer

import pytest

from pipeline.core.config import CONFIGS
from pipeline.core.files import held, write_json
from pipeline.engine.signals import StopRequest
from pipeline.launch import queue, slurm
from pipeline.launch.queue import Answer, Job, Queue
from pipeline.launch.resources import Shape
from pipeline.launch.slurm import JobRecord, Launcher
from pipeline.results import RunFolder
from pipeline.results.records import Inputs
from pipeline.site import Site, Slurm

RUNNING = Job("7", "RUNNING", "None", "n1", "job", str(CONFIGS.parent))
INPUTS = Inputs(data="a" * 64, init=None)


class Squeue:
    """Stands for squeue: it counts how often it is asked and answers with the given jobs."""

    def __init__(self, *jobs: Job, problem: str = "") -> None:
        self.jobs, self.problem, self.num_calls = jobs, problem, 0

    def __call__(self, stop) -> Answer:
        self.num_calls += 1
        now = time.time()
        return Answer(now, {job.id: job for job in self.jobs}, self.problem, came_at=now)


@pytest.fixture
def squeue(monkeypatch):
    squeue = Squeue(RUNNING)
    monkeypatch.setattr(queue, "ask", squeue)
    return squeue


def keep(path, asked_at, *jobs, problem="", took_s=0.0):
    """What an earlier launcher was told, and when."""
    Queue(path, 0)._keep(Answer(asked_at, {job.id: job for job in jobs}, problem, came_at=asked_at + took_s))


def test_look__answer_from_after_the_submission_and_within_the_interval__is_used_again(tmp_path, squeue):
    now = time.time()
    keep(tmp_path / "queue.json", now - 1, RUNNING._replace(id="8"))
    found = Queue(tmp_path / "queue.json", poll_s=100).look(newer_than=now - 2)
    assert squeue.num_calls == 0 and found == Answer(now - 1, {"8": RUNNING._replace(id="8")}, came_at=now - 1)


@pytest.mark.parametrize("submitted", [0, 5], ids=["at the same time", "after the answer"])
def test_look__answer_that_is_not_newer_than_the_submission__is_asked_for_again(tmp_path, squeue, submitted):
    asked_at = time.time() - 10
    keep(tmp_path / "queue.json", asked_at)
    assert Queue(tmp_path / "queue.json", poll_s=100).look(asked_at + submitted).jobs == {"7": RUNNING}
    assert squeue.num_calls == 1


def test_look__answer_older_than_the_interval__is_asked_for_again_and_kept_for_others(tmp_path, squeue):
    keep(tmp_path / "queue.json", time.time() - 11, problem="slurmctld is down")
    for _ in range(3):
        assert Queue(tmp_path / "queue.json", poll_s=10).look().jobs == {"7": RUNNING}
    assert squeue.num_calls == 1


def test_look__squeue_failed__is_kept_too_so_that_a_hundred_launchers_do_not_all_ask(tmp_path, squeue):
    squeue.jobs, squeue.problem = (), "slurmctld is down"
    for _ in range(3):
        answer = Queue(tmp_path / "queue.json", poll_s=10).look()
        assert (answer.jobs, answer.problem) == ({}, "slurmctld is down")
    assert squeue.num_calls == 1


@pytest.mark.parametrize("content", ["", "{", "[1", '{"time": 1.0, "jobs": [], "problem": ""}'])
def test_look__kept_answer_is_damaged__is_asked_for_again(tmp_path, squeue, content):
    (tmp_path / "queue.json").write_text(content)
    assert Queue(tmp_path / "queue.json", poll_s=10).look().jobs == {"7": RUNNING}


def test_watch__answer_from_before_the_submission__does_not_say_that_the_job_is_gone(tmp_path, squeue, monkeypatch):
    """Another launcher has asked a moment before: the new job cannot be in what it was told."""
    monkeypatch.setattr(slurm, "LOOK_S", 0.001)
    now = time.time()
    keep(tmp_path / "queue.json", now - 1)
    paths = RunFolder(tmp_path / "demo", "run")
    write_json(paths.job, JobRecord(job="7", time=now, inputs=INPUTS).model_dump())
    site, stop = Site(slurm=Slurm(poll_s=0.01)), StopRequest()
    launcher = Launcher(
        "job", paths, site, Shape(1, 1), "local", INPUTS, stop, Queue(tmp_path / "queue.json", poll_s=1000)
    )
    monkeypatch.setattr(launcher, "_tell_state", lambda job: setattr(stop, "why", f"job {job.id} was seen"))
    with pytest.raises(slurm.Interrupted, match="job 7 was seen"):
        launcher._watch("7")
    assert squeue.num_calls == 1


# One call of squeue, which is a script here


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Puts a squeue on the path that does this; each call leaves a line in a file."""
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.setattr(queue, "LOOK_S", 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(commands: str) -> Path:
        path = tmp_path / "squeue"
        path.write_text(f"#!/bin/sh\necho $$ >>{calls}\n{commands}\n")
        path.chmod(0o755)
        return calls

    return write


def test_ask__lines_of_squeue__are_jobs_by_id(script):
    script("echo '12|PENDING|Priority||demo-run|/home/a|b'; echo warning; echo '7|RUNNING|None|n[1-2]|demo|/home'")
    assert queue.ask().jobs == {
        "12": Job("12", "PENDING", "Priority", "", "demo-run", "/home/a|b"),
        "7": Job("7", "RUNNING", "None", "n[1-2]", "demo", "/home"),
    }


@pytest.mark.parametrize(("stderr", "problem"), [(r"a\nno controller", "no controller"), ("", "squeue failed")])
def test_ask__squeue_fails__says_why_and_has_no_jobs(script, stderr, problem):
    script(f"echo '7|RUNNING|None|n1|demo|/home'; printf '{stderr}' >&2; exit 1")
    answer = queue.ask()
    assert (answer.jobs, answer.problem) == ({}, problem)


def test_ask__squeue_hangs__is_ended_and_said_to(script, monkeypatch):
    monkeypatch.setattr(queue, "ANSWER_S", 0.1)
    script("exec sleep 60")
    assert queue.ask().problem == "squeue did not answer within 0.1 s"


def test_ask__squeue_is_not_there__says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert queue.ask().problem == "squeue does not start (No such file or directory)"


def test_ask__slow_squeue__was_asked_when_it_began_and_came_when_it_ended(script):
    """What it says is from before the end: a job submitted meanwhile may be missing."""
    script("sleep 0.1")
    before = time.time()
    answer = queue.ask()
    assert before <= answer.time < before + 0.1 and answer.came_at >= answer.time + 0.1


# Many launchers


def test_look__answer_that_took_longer_than_the_interval__serves_everybody_from_when_it_came(tmp_path, squeue):
    keep(tmp_path / "queue.json", time.time() - 61, RUNNING, took_s=60)
    assert Queue(tmp_path / "queue.json", poll_s=10).look().jobs == {"7": RUNNING} and squeue.num_calls == 0


@pytest.mark.slow
def test_look__eight_launchers_and_a_squeue_slower_than_the_interval__ask_once_or_twice(tmp_path, script):
    """Those that come while it is asked wait for that answer, or, if they submitted meanwhile, for the next one."""
    calls = script("sleep 1; echo '7|RUNNING|None|n1|demo|/home'")

    def launcher(number: int) -> Answer:
        time.sleep(0.02 * number)
        return Queue(tmp_path / "queue.json", poll_s=0.9).look(newer_than=time.time())

    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = [*pool.map(launcher, range(8))]
    assert [answer.jobs.keys() for answer in answers] == [{"7"}] * 8
    assert len(calls.read_text().split()) == 2


@pytest.mark.parametrize("place", ["asks", "waits for one that asks"])
def test_look__told_to_stop_while_squeue_hangs__comes_back_at_once(tmp_path, script, place):
    calls, stop, path = script("exec sleep 60"), StopRequest(), tmp_path / "queue.json"
    Timer(0.1, stop._raise, [signal.SIGINT, None]).start()
    before = time.monotonic()
    with held(path.with_suffix(".lock"), "the queue") if place != "asks" else nullcontext():
        answer = Queue(path, poll_s=10, stop=stop).look()
    assert answer.problem == "interrupted" and time.monotonic() - before < 5
    assert not path.exists()  # it is no answer for others
    for process in calls.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


def test_has_ended__of_the_states_in_slurms_manual__is_true_of_those_that_nothing_follows():
    final = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"
    others = "COMPLETING CONFIGURING PENDING REQUEUED REQUEUE_HOLD RESIZING RUNNING SIGNALING STAGE_OUT SUSPENDED"
    for state in (*final.split(), *others.split()):
        assert RUNNING._replace(state=state).has_ended == (state in final.split()), state


@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        ([RUNNING], "7"),
        ([RUNNING._replace(state="COMPLETED")], None),
        ([RUNNING._replace(state="COMPLETED"), RUNNING._replace(id="9", state="PENDING")], "9"),
        ([RUNNING._replace(name="another")], None),
        ([RUNNING._replace(folder="/another/project")], None),
    ],
    ids=["runs", "has ended", "ended and submitted again", "of another run", "of another project"],
)
def test_active__of_jobs_in_the_queue__is_the_one_of_this_run_that_has_not_ended(jobs, found):
    job = Answer(1.0, {job.id: job for job in jobs}).active("job", CONFIGS.parent)
    assert (job and job.id) == found
