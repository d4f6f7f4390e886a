"""What SLURM says of our jobs: one `squeue` per interval for all launchers on this machine, whatever their number.

The answer is kept in a file. A launcher that finds it too old asks anew and keeps it for the others, which wait
for it meanwhile. squeue serves clusters with and without accounting; jobs that have ended are in its answer for
as long as slurmctld remembers them (MinJobAge, five minutes by default).
"""

import fcntl
import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.files import explained, write_json

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


@dataclass(frozen=True)
class Answer:
    """What squeue said and when, or why it said nothing."""

    time: float
    jobs: dict[str, Job] = field(default_factory=dict)
    problem: str = ""

    def active(self, name: str, folder: Path) -> Job | None:
        """The job of this name, submitted from this folder, that waits or runs."""
        ours = [job for job in self.jobs.values() if (job.name, job.folder) == (name, str(folder))]
        return next((job for job in ours if not job.has_ended), None)


class Queue:
    """The queue as seen by every launcher below one results folder."""

    def __init__(self, path: Path, poll_s: float) -> None:
        self.path, self.poll_s = path, poll_s

    def look(self, newer_than: float = 0.0) -> Answer:
        """An answer from after the given time, and not older than the interval."""
        with self._open_lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = self._read()
            if kept and kept.time > newer_than and time.time() - kept.time < self.poll_s:
                return kept
            answer = ask()
            jobs = [list(job) for job in answer.jobs.values()]
            write_json(self.path, {"time": answer.time, "jobs": jobs, "problem": answer.problem})
            return answer

    def _open_lock(self) -> IO:
        path = self.path.with_suffix(".lock")
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a")

    def _read(self) -> Answer | None:
        try:
            kept = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        return Answer(kept["time"], {fields[0]: Job(*fields) for fields in kept["jobs"]}, kept["problem"])


def ask() -> Answer:
    """One call for all jobs of this user."""
    command = ["squeue", "--me", "--noheader", "--states=all", f"--format={FORMAT}"]
    asked_at = time.time()
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Answer(asked_at, problem="squeue did not answer within a minute")
    except OSError as error:
        return Answer(asked_at, problem=f"squeue does not start ({error.strerror})")
    if result.returncode:
        return Answer(asked_at, problem=(result.stderr.strip().splitlines() or ["squeue failed"])[-1])
    jobs = [Job(*line.split("|", 5)) for line in result.stdout.splitlines() if line.count("|") >= 5]
    return Answer(asked_at, {job.id: job for job in jobs})
