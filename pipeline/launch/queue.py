"""What SLURM says of our jobs: one `squeue` per interval for all launchers on this machine, whatever their number.

The answer is kept in a file. A launcher that finds it too old asks anew and keeps it for the others, which wait
for it meanwhile. squeue may be slow, or hang: its answer is as old as the moment it came, and whoever waits for one
can be interrupted. squeue serves clusters with and without accounting; jobs that have ended are in its answer for
as long as slurmctld remembers them (MinJobAge, five minutes by default).
"""

import json
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pipeline.core.files import LockFile, write_json
from pipeline.engine.signals import StopRequest

ANSWER_S = 60.0  # squeue is given up after this
LOOK_S = 0.2  # between two looks for the answer and for Ctrl-C
FORMAT = "%i|%T|%r|%N|%j|%Z"
ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "REVOKED",
}
# Reasons with which SLURM puts a job that it could not start back into the queue, and never starts it by itself.
GIVEN_UP = {"launch failed requeued held", "launch_failed_requeued_held", "JobHoldMaxRequeue"}


class Job(NamedTuple):
    """A line of squeue."""

    id: str
    state: str
    reason: str
    nodes: str
    name: str
    folder: str

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_given_up(self) -> bool:
        """Whether it waits for somebody to release it, after SLURM failed to start it."""
        return self.state == "PENDING" and self.reason in GIVEN_UP


@dataclass(frozen=True)
class Answer:
    """What squeue said and when, or why it said nothing."""

    time: float  # of the question: what was submitted later may be missing
    jobs: dict[str, Job] = field(default_factory=dict)
    problem: str = ""
    came_at: float = 0.0

    def active(self, name: str, folder: Path) -> Job | None:
        """The job of this name, submitted from this folder, that waits or runs."""
        ours = [job for job in self.jobs.values() if (job.name, job.folder) == (name, str(folder))]
        return next((job for job in ours if not job.has_ended), None)


class Queue:
    """The queue as seen by every launcher below one results folder."""

    def __init__(self, path: Path, poll_s: float, stop: StopRequest | None = None) -> None:
        self.path, self.poll_s, self.stop = path, poll_s, stop or StopRequest()

    def look(self, newer_than: float = 0.0) -> Answer:
        """An answer to a question from after the given time that came within the interval.

        When this process is asked to stop, that is the problem that the answer names.
        """
        with closing(LockFile(self.path.with_suffix(".lock"))) as lock:
            if not self.stop.wait_for(lock.take, LOOK_S):
                return Answer(time.time(), problem=self.stop.why)
            kept = self._read()
            if kept and kept.time > newer_than and time.time() - kept.came_at < self.poll_s:
                return kept
            answer = ask(self.stop)
            if not self.stop.is_raised:
                self._keep(answer)
            return answer

    def _keep(self, answer: Answer) -> None:
        jobs = [list(job) for job in answer.jobs.values()]
        times = {"time": answer.time, "came_at": answer.came_at}
        write_json(self.path, {**times, "jobs": jobs, "problem": answer.problem})

    def _read(self) -> Answer | None:
        try:
            kept = json.loads(self.path.read_text())
            jobs = {fields[0]: Job(*fields) for fields in kept["jobs"]}
            return Answer(kept["time"], jobs, kept["problem"], kept["came_at"])
        except (OSError, ValueError, KeyError):
            return None


def ask(stop: StopRequest | None = None) -> Answer:
    """One call for all jobs of this user."""
    command = ["squeue", "--me", "--noheader", "--states=all", f"--format={FORMAT}"]
    asked_at = time.time()
    try:
        code, said, error = _call(command, stop or StopRequest())
    except OSError as failure:
        code, said, error = 1, "", f"squeue does not start ({failure.strerror})"
    if code:
        problem = (error.strip().splitlines() or ["squeue failed"])[-1]
        return Answer(asked_at, problem=problem, came_at=time.time())
    jobs = [Job(*line.split("|", 5)) for line in said.splitlines() if line.count("|") >= 5]
    return Answer(asked_at, {job.id: job for job in jobs}, came_at=time.time())


def _call(command: list[str], stop: StopRequest) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that ends by itself, in time, or when we are asked to stop."""
    deadline = time.monotonic() + ANSWER_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                said, error = process.communicate(timeout=min(LOOK_S, ANSWER_S))
                return process.returncode, said, error
            except subprocess.TimeoutExpired:
                if stop.is_raised or time.monotonic() > deadline:
                    process.kill()
                    return 1, "", stop.why or f"{command[0]} did not answer within {ANSWER_S:g} s"
