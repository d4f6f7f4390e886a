"""What goes wrong on a cluster, done to real jobs: whatever it is, a run ends with the bytes of an undisturbed one.

Most of the time is waiting, so all faults are done at once, each to a run of its own; a test then waits for its own.
One node is for the fault that takes a node away, the other one for all the rest.
"""

import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import pytest
from bench import Trial, files_of
from patience import wait_until

pytestmark = pytest.mark.slow

QUIET_NODE = {"options": {"nodelist": "n2"}}
THE_GPUS = Lock()  # two who preempt each other's jobs would prove nothing
URGENT = (
    *("sbatch", "--parsable", "--partition=urgent", "--nodelist=n2", "--gres=gpu:2", "--output=/dev/null"),
    *("--wrap", "sleep 600"),
)


@pytest.fixture(scope="module")
def faults(new_trial):
    """Fault -> the trial it was done to, or the error that came of it."""
    with ThreadPoolExecutor(max_workers=5) as pool:
        yield {scenario.__name__: pool.submit(scenario, new_trial(is_cold=True)) for scenario in SCENARIOS}
        pool.shutdown(cancel_futures=True)


def time_limit(trial: Trial) -> Trial:
    """SLURM looks every 30 s, and warns 30 s too early rather than too late: 20 to 50 s after the start here."""
    trial.pace(3.0)
    launcher = trial.start(**QUIET_NODE, hours=2 / 60, warning_s=70)
    trial.wait_for_words("is back in the queue")
    trial.cluster.run("scontrol", "update", f"jobid={trial.job}", "TimeLimit=60")  # once is enough
    trial.finish(launcher)
    return trial


def requeue(trial: Trial) -> Trial:
    launcher = trial.start(**QUIET_NODE)
    trial.wait_for_steps()
    trial.cluster.run("scontrol", "requeue", trial.job)
    trial.wait_for_words("is back in the queue")
    trial.finish(launcher)
    return trial


def preemption(trial: Trial) -> Trial:
    return preempted(trial, "main")


def preemption_with_grace(trial: Trial) -> Trial:
    return preempted(trial, "grace")


def preempted(trial: Trial, partition: str) -> Trial:
    """GPUs are what this job alone has here: whoever needs all of them takes its place."""
    with THE_GPUS:
        launcher = trial.start(**QUIET_NODE, partition=partition, gres="gpu")
        trial.wait_for_steps()
        urgent = trial.cluster.run(*URGENT)
        trial.wait_for_words("after step")
        trial.cluster.run("scancel", urgent)
        trial.finish(launcher)
    return trial


def cancellation(trial: Trial) -> Trial:
    launcher = trial.start(**QUIET_NODE)
    trial.wait_for_steps()
    trial.cluster.run("scancel", trial.job)
    assert launcher.wait() == 1, trial.evidence()
    trial.finish(trial.start(**QUIET_NODE))
    return trial


def lost_node(trial: Trial) -> Trial:
    """The daemon dies and the job's processes go on, as behind a broken switch."""
    trial.pace(4.0)
    launcher = trial.start()
    trial.wait_for_words("runs on n1")
    trial.wait_for_steps()
    trial.cluster.lose_node("n1")
    try:
        trial.release_when_queued()
        wait_until(lambda: "another job has taken over" in trial.evidence(), trial.evidence, every_s=1)
        trial.finish(launcher)
    finally:
        trial.cluster.start_daemon("slurmd-n1")  # for the tests that follow
    return trial


def death_before_rename(trial: Trial) -> Trial:
    launcher = trial.start(**QUIET_NODE)
    trial.wait_for_steps()
    (trial.project.root / "die_once").touch()
    trial.finish(launcher)
    return trial


def full_disk(trial: Trial) -> Trial:
    with small_disk(trial) as folder:
        launcher = trial.start(**QUIET_NODE)
        trial.wait_for_steps()
        while launcher.poll() is None:  # again and again: an old checkpoint that is removed leaves room for the next
            fill(folder / "ballast")
            time.sleep(0.1)
        assert launcher.returncode == 1, trial.evidence()
        (folder / "ballast").unlink()
        trial.finish(trial.start(**QUIET_NODE))
    return trial


@contextmanager
def small_disk(trial: Trial):
    """The run's state on a file system of its own."""
    folder = trial.paths.state
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    """Leave room for a few words, and none for a checkpoint."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size - 40_000)


def killed_launcher(trial: Trial) -> Trial:
    launcher = trial.start(**QUIET_NODE)
    trial.wait_for_steps()
    trial.hold()  # else the job could end before the new launcher looks
    assert trial.interrupt(launcher, signal.SIGKILL) == -signal.SIGKILL
    launcher = trial.start(**QUIET_NODE)
    trial.wait_for_words("submitted earlier")
    trial.finish(launcher)
    return trial


SCENARIOS = (
    lost_node,
    preemption_with_grace,
    time_limit,
    requeue,
    cancellation,
    death_before_rename,
    full_disk,
    killed_launcher,
    preemption,
)
# Fault -> number of jobs, and what the launcher says of it.
EXPECTED = {
    "time_limit": (1, "is back in the queue (the time limit is near), after step"),
    "requeue": (1, "is back in the queue"),
    "preemption": (1, "is back in the queue"),
    "preemption_with_grace": (2, "(FAILED: asked to stop) after step"),
    "cancellation": (2, "was cancelled (scancel); nothing is lost: the same command continues after step"),
    "lost_node": (1, "is back in the queue"),
    "death_before_rename": (2, "killed without a message"),
    "full_disk": (2, "No space left on device; free space"),
    "killed_launcher": (1, "submitted earlier"),
}


@pytest.mark.parametrize("fault", EXPECTED)
def test_run__after_fault__ends_with_the_bytes_of_an_undisturbed_one(faults, fault, undisturbed):
    trial = faults[fault].result()
    assert trial.files() == files_of(undisturbed, trial.paths.name), trial.evidence()


@pytest.mark.parametrize("fault", EXPECTED)
def test_launcher__after_fault__has_lost_no_job_and_says_in_one_line_what_happened(faults, fault):
    trial = faults[fault].result()
    num_jobs, words = EXPECTED[fault]
    jobs = trial.jobs()
    # Where the message of the first start's end is late, SLURM takes it for the end of the job that it has put back.
    put_back, failed = (
        {*re.findall(rf"job (\d+) {found}", trial.said())} for found in (r"is back in the queue", r"ended \(FAILED")
    )
    assert len(jobs) == num_jobs + len(put_back & failed), trial.evidence()
    assert [line for line in trial.said().splitlines() if words in line], trial.evidence()
    assert "Traceback" not in trial.said()
