"""Jobs that SLURM could not start, with an executor that notes what it is asked to do; tests/cluster has a real one."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.launch.queue import Answer, Job
from workflow import unstarted


@pytest.fixture
def executor(monkeypatch):
    """Snakemake's, as far as it is used here, and what squeue says of job 7."""

    class Executor:
        def __init__(self):
            self.reported, self.submitted, self.reason = [], [], "JobLaunchFailure"

        def report_job_error(self, job_info, msg=None, **kwargs):
            self.reported.append((job_info.job, msg, kwargs))

        def run_job(self, job):
            self.submitted.append(job)

    unstarted.resubmit_unstarted(Executor)
    executor = Executor()
    job = Job("7", "FAILED", "", "n1", "", "")
    monkeypatch.setattr(unstarted, "ask", lambda: Answer(1.0, {"7": job._replace(reason=executor.reason)}))
    return executor


def fail(executor, job, number="7", log=Path("logs/a/7.log")):
    info = SimpleNamespace(job=job, external_jobid=number, aux={"slurm_logfile": log})
    executor.report_job_error(info, msg="failed, reason unavailable", aux_logs=["7.log"])


def test_job__that_could_not_start__is_submitted_again_twice_and_then_reported_with_the_reason(executor, caplog):
    for job in ("a", "b", "a", "a"):
        fail(executor, job)
    assert executor.submitted == ["a", "b", "a"]
    words = "SLURM job 7 could not start on n1 (JobLaunchFailure), as when its log cannot be opened, logs/a/7.log"
    assert [text.startswith(words) and text.endswith("; submitting it again") for text in caplog.messages] == [True] * 3
    assert caplog.records[0].levelno == logging.WARNING
    ((job, message, options),) = executor.reported
    assert job == "a" and message.startswith(words) and "3 tries failed" in message
    assert options == {"aux_logs": ["7.log"]}


@pytest.mark.parametrize(
    ("reason", "number", "log"),
    [
        ("NonZeroExitCode", "7", Path("7.log")),
        ("JobLaunchFailure", "8", Path("7.log")),
        ("JobLaunchFailure", None, Path("7.log")),
        ("JobLaunchFailure", "7", Path(__file__)),
    ],
    ids=["failed", "another job", "not submitted", "has a log"],
)
def test_job__that_failed_otherwise__is_reported_as_it_is(executor, reason, number, log):
    executor.reason = reason
    fail(executor, "a", number, log)
    assert executor.submitted == []
    assert executor.reported == [("a", "failed, reason unavailable", {"aux_logs": ["7.log"]})]
