"""The launcher while a job waits and runs: what it makes of the states that squeue shows, and of how a job ended."""

import logging
import signal

import pytest
from fake_cluster import NEW, finished, reach

from pipeline.core.errors import LaunchError
from pipeline.core.files import write_json
from pipeline.launch import slurm
from pipeline.launch.job import Outcome
from pipeline.launch.queue import Job


@pytest.mark.parametrize(
    "states",
    [
        ("RUNNING", None, "RUNNING", None, None),
        ("RUNNING", "(no controller)", "(no controller)", "COMPLETED", "COMPLETED"),
        ("PENDING", "(no controller)", None, "(no controller)", "NODE_FAIL"),
        ("COMPLETING", "COMPLETING", "COMPLETING", "TIMEOUT", "TIMEOUT"),
    ],
    ids=["requeued", "queue not read", "ended between problems", "ends slowly"],
)
def test_watch__job_has_ended__only_when_two_answers_in_a_row_say_so(cluster, launcher, states):
    cluster.show(*states)
    assert launcher._watch("7") == (states[-1] or "no longer in the queue") and cluster.shown == len(states)


def test_watch__job_that_slurm_could_not_start_and_holds__has_ended(cluster, launcher):
    """Nobody would release it: a failed prolog, or a log folder that its node does not see."""
    cluster.show("RUNNING", "PENDING: JobHeldUser", "PENDING: launch failed requeued held")
    assert launcher._watch("7") == "held by SLURM, launch failed requeued held"
    assert cluster.cancelled == ["7"] and cluster.shown == 3


@pytest.mark.parametrize(("state", "cancelled"), [("RUNNING", []), ("PENDING", ["7"])])
def test_watch__run_is_finished__a_job_that_waits_to_repeat_it_is_cancelled(cluster, launcher, state, cancelled):
    cluster.show("RUNNING", state, at_the_end=lambda: finished(launcher, NEW))
    assert launcher._watch("7") is None and cluster.cancelled == cancelled


@pytest.mark.parametrize(
    ("number", "cancelled", "words"),
    [
        (signal.SIGINT, ["7"], "interrupted: cancelled job 7"),
        (signal.SIGTERM, [], "asked to stop: job 7 goes on"),
    ],
)
def test_watch__told_to_stop__only_ctrl_c_cancels_the_job(cluster, launcher, number, cancelled, words):
    launcher._remember("7", 1.0)
    cluster.show("RUNNING", "RUNNING", at_the_end=lambda: launcher.stop._raise(number, None))
    with pytest.raises(slurm.Interrupted, match=words):
        launcher._watch("7")
    assert cluster.cancelled == cancelled


def test_launcher__interrupted_while_its_job_waits__leaves_no_job_that_waits(cluster, launcher):
    """A job that never started has no outcome: without another trace, `status` would show it as queued for ever."""
    launcher._remember("7", 1.0)
    assert slurm.waiting_job(launcher.paths) == "7"
    cluster.show("PENDING", "PENDING", at_the_end=lambda: launcher.stop._raise(signal.SIGINT, None))
    with pytest.raises(slurm.Interrupted):
        launcher._watch("7")
    assert slurm.waiting_job(launcher.paths) is None


def test_launcher__interrupted_and_scancel_fails__the_job_may_still_run(cluster, launcher, monkeypatch):
    launcher._remember("7", 1.0)
    monkeypatch.setattr(slurm, "scancel", lambda job: False)
    cluster.show("PENDING", "PENDING", at_the_end=lambda: launcher.stop._raise(signal.SIGINT, None))
    with pytest.raises(slurm.Interrupted, match="could not cancel job 7"):
        launcher._watch("7")
    assert slurm.waiting_job(launcher.paths) == "7"


def test_launcher__job_cancelled_in_the_queue__leaves_no_job_that_waits(cluster, launcher, monkeypatch):
    monkeypatch.setattr(launcher, "_attach_or_submit", lambda: "7")
    launcher._remember("7", 1.0)
    cluster.show("PENDING", "CANCELLED", "CANCELLED")
    with pytest.raises(LaunchError, match="job 7 was cancelled"):
        launcher.run()
    assert slurm.waiting_job(launcher.paths) is None


def test_watch__what_happens_to_a_job__is_said_once_each(cluster, launcher, caplog):
    jobs = [
        Job("7", "PENDING", "Priority", "", "job", ""),
        Job("7", "PENDING", "QOSMaxJobs", "", "job", ""),
        Job("7", "RUNNING", "None", "n1", "job", ""),
        Job("7", "PENDING", "BeginTime", "", "job", ""),
        Job("7", "RUNNING", "None", "n2", "job", ""),
        Job("7", "RUNNING", "None", "n3", "job", ""),
    ]
    reach(launcher, 20)
    with caplog.at_level(logging.INFO):
        for job in [job for job in jobs for _ in range(2)]:
            launcher._tell_state(job)
    back = "job 7 is back in the queue (without a message, as when a node is lost), after step 20"
    assert caplog.messages == [
        "job 7 is pending: QOSMaxJobs",
        "job 7 runs on n1",
        back,
        "job 7 runs on n2",
        back,
        "job 7 runs on n3",
    ]


# Jobs that end without the run being finished


@pytest.mark.parametrize(
    ("steps", "num_jobs", "furthest"),
    [
        ([10], 3, 10),
        ([10, 20], 5, 20),
        ([10, 10, 20], 6, 20),
        ([4, 8, 4, 8, 4, 8], 5, 8),
        ([4, 20, 8, 12, 30, 8, 12, 20], 8, 30),
    ],
    ids=["none", "the second helps", "the third helps", "to and fro", "goes back and overtakes"],
)
def test_launcher__jobs_that_get_no_further__are_three_in_a_row(cluster, launcher, steps, num_jobs, furthest):
    """Only a step beyond all earlier ones starts the count again, but the first job may begin the run anew."""
    reach(launcher, 10)

    def submit():
        job = str(len(cluster.states) + 1)
        cluster.states[job] = "NODE_FAIL"
        reach(launcher, steps[min(len(cluster.states), len(steps)) - 1])
        return job

    launcher._submit = submit
    words = rf"3 jobs in a row ended without a checkpoint beyond step {furthest} \(the last: job {num_jobs}, NODE_FAIL"
    with pytest.raises(LaunchError, match=words):
        launcher.run()
    assert len(cluster.states) == num_jobs


def ended(launcher, code, job="7", **facts):
    outcome = Outcome(**{"job": job, "start": 0, "rank": 0, "code": code, "why": "", "step": 3} | facts)
    write_json(launcher.paths.outcome, outcome.model_dump())


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("CANCELLED", None, r"job 7 was cancelled \(scancel\); nothing is lost: .* continues after step 20"),
        ("CANCELLED", 75, r"job 7 was cancelled"),
        ("OUT_OF_MEMORY", None, r"job 7 ran out of memory with slurm.memory_gb 32 per process; raise it"),
        ("FAILED", 1, r"job 7 failed with exit code 1 \(process 2\):\n--- .*7_2_log.out\nDataError: gone"),
        ("COMPLETED", 1, r"job 7 failed with exit code 1"),
    ],
)
def test_judge__failure_that_would_come_again__is_final_and_says_why(launcher, state, code, words):
    reach(launcher, 20)
    launcher.paths.jobs.mkdir(parents=True)
    (launcher.paths.jobs / "7_2_log.out").write_text("DataError: gone\n")
    if code is not None:
        ended(launcher, code, rank=2)
    with pytest.raises(LaunchError, match=words):
        launcher._judge("7", state)


def test_judge__job_that_left_a_message__is_that_message_without_its_log(launcher):
    ended(launcher, 1, message="DeviceMemoryError: run a needs more")
    with pytest.raises(LaunchError) as error:
        launcher._judge("7", "FAILED")
    assert str(error.value) == "job 7 failed with exit code 1 (process 0):\nDeviceMemoryError: run a needs more"


@pytest.mark.parametrize(
    ("state", "outcome", "why"),
    [
        ("FAILED", {"code": 75, "message": "another process was lost"}, "another process was lost"),
        ("TIMEOUT", {"code": 75, "why": "the time limit is near"}, "the time limit is near"),
        ("PREEMPTED", None, "killed without a message"),
        ("NODE_FAIL", {"code": 1, "job": "6"}, "killed without a message"),
        ("COMPLETED", {"code": 0}, ""),
    ],
    ids=["lost peer", "time limit", "killed", "an earlier job failed", "finished elsewhere"],
)
def test_judge__end_after_which_the_run_can_continue__is_one_line(launcher, caplog, state, outcome, why):
    reach(launcher, 20)
    if outcome:
        ended(launcher, **outcome)
    with caplog.at_level(logging.INFO):
        launcher._judge("7", state)
    assert caplog.messages == [f"job 7 ended ({state}: {why}) after step 20; submitting again"]
