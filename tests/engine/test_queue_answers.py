"""What is made of squeue's answers: which of them may be used again, and what they say of a job."""

import subprocess
import time

import pytest

from pipeline.config import CONFIGS
from pipeline.engine.signals import StopRequest
from pipeline.files import write_json
from pipeline.launch import queue, slurm
from pipeline.launch.queue import Answer, Job, Queue
from pipeline.launch.resources import Shape
from pipeline.launch.slurm import JobRecord, Launcher
from pipeline.records import Inputs
from pipeline.results import RunFolder
from pipeline.site import Site, Slurm

RUNNING = Job("7", "RUNNING", "None", "n1", "job", str(CONFIGS.parent))
INPUTS = Inputs(data="a" * 64, init=None)


class Squeue:
    """Stands for squeue: it counts how often it is asked and answers with the given jobs."""

    def __init__(self, *jobs: Job, problem: str = "") -> None:
        self.jobs, self.problem, self.num_calls = jobs, problem, 0

    def __call__(self) -> Answer:
        self.num_calls += 1
        return Answer(time.time(), {job.id: job for job in self.jobs}, self.problem)


@pytest.fixture
def squeue(monkeypatch):
    squeue = Squeue(RUNNING)
    monkeypatch.setattr(queue, "ask", squeue)
    return squeue


def keep(path, asked_at, *jobs, problem=""):
    """What an earlier launcher was told, and when."""
    write_json(path, {"time": asked_at, "jobs": [list(job) for job in jobs], "problem": problem})


def test_look__answer_from_after_the_submission_and_within_the_interval__is_used_again(tmp_path, squeue):
    now = time.time()
    keep(tmp_path / "queue.json", now - 1, RUNNING._replace(id="8"))
    found = Queue(tmp_path / "queue.json", poll_s=100).look(newer_than=now - 2)
    assert squeue.num_calls == 0 and found == Answer(now - 1, {"8": RUNNING._replace(id="8")})


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
        assert Queue(tmp_path / "queue.json", poll_s=10).look() == Answer(
            pytest.approx(time.time(), abs=5), {}, "slurmctld is down"
        )
    assert squeue.num_calls == 1


@pytest.mark.parametrize("content", ["", "{", "[1"])
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


# One call of squeue


def called(monkeypatch, stdout="", stderr="", code=0):
    """What `ask` makes of this output; each call takes three seconds of a clock that stands still otherwise."""
    clock = [1000.0]

    def run(command, **options):
        clock[0] += 3
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(time, "time", lambda: clock[0])
    return queue.ask()


def test_ask__answer_of_a_slow_squeue__is_as_old_as_the_question(monkeypatch):
    assert called(monkeypatch).time == 1000


def test_ask__lines_of_squeue__are_jobs_by_id(monkeypatch):
    lines = "12|PENDING|Priority||demo-run|/home/a|b\nslurm_load_jobs: warning\n7|RUNNING|None|n[1-2]|demo|/home\n"
    assert called(monkeypatch, lines).jobs == {
        "12": Job("12", "PENDING", "Priority", "", "demo-run", "/home/a|b"),
        "7": Job("7", "RUNNING", "None", "n[1-2]", "demo", "/home"),
    }


@pytest.mark.parametrize(("stderr", "problem"), [("a\nno controller\n", "no controller"), ("", "squeue failed")])
def test_ask__squeue_fails__says_why_and_has_no_jobs(monkeypatch, stderr, problem):
    assert called(monkeypatch, "7|RUNNING|None|n1|demo|/home\n", stderr, 1) == Answer(1000, {}, problem)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (subprocess.TimeoutExpired("squeue", 60), "squeue did not answer within a minute"),
        (FileNotFoundError(2, "No such file or directory"), "squeue does not start (No such file or directory)"),
    ],
)
def test_ask__squeue_hangs_or_is_not_there__says_so(monkeypatch, error, problem):
    def run(command, **options):
        assert options["timeout"] == 60
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert queue.ask().problem == problem


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
