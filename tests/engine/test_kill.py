"""Runs as people start them, `python -m pipeline train`, ended by signals at any moment and started again.

They are processes and sessions of their own, forked from one that has imported torch and timm: see warm_python.py.
"""

import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from patience import PATIENCE_S, wait_until
from tiny_runs import RICH, prepare_in, tiny_config, tiny_run
from warm_client import Asked
from warm_python import ask_with_forks, with_programs

from pipeline.core.config import CONFIGS
from pipeline.core.files import digest, read_lines
from pipeline.results import RunFolder

pytestmark = pytest.mark.slow

CHANGES = RICH, {"optim": {"epochs": 10}}
RUN = tiny_run(*CHANGES)


@dataclass
class Job:
    """One run's folder and the command that trains it."""

    folder: Path
    site: dict
    started: ExitStack

    @property
    def paths(self) -> RunFolder:
        return RunFolder(self.folder / "results" / "test", RUN.name)

    def start(self) -> Asked:
        """A process that leads its own session and group."""
        with self.log.open("w") as log:
            asked = ask_with_forks("pipeline", self.arguments(), self.folder, self.env(), log)
        return self.started.enter_context(closing(asked))

    def start_as_rule(self) -> subprocess.Popen:
        """As Snakemake starts it: by a shell that stays, with the redirection of the rule."""
        rule = (CONFIGS.parent / "workflow/rules/train.smk").read_text()
        (redirection,) = re.findall(r"(>+) \{log\} 2>&1", rule)
        command = ["python", "-m", "pipeline", *self.arguments()]
        line = f"{shlex.join(command)} {redirection} {self.log} 2>&1; exit $?"
        return subprocess.Popen(["sh", "-c", line], env=self.env(), cwd=self.folder, start_new_session=True)

    def arguments(self) -> list[str]:
        config = self.folder / "run.yaml"
        config.write_text(yaml.safe_dump(tiny_config(*CHANGES)))
        return ["train", "--config", str(config), "--scale", "test"]

    def env(self) -> dict[str, str]:
        (self.folder / "site.yaml").write_text(yaml.safe_dump(self.site))
        return with_programs({**os.environ, "PATCHWORK_SITE": str(self.folder / "site.yaml")})

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def finish(self) -> None:
        code = self.start().exit_code(PATIENCE_S)
        assert code == 0, self.log.read_text()

    def start_and_wait_for_checkpoint(self) -> Asked:
        """A process that has written a checkpoint of its own and still runs."""
        known, process = self.checkpoints(), self.start()
        wait_until(lambda: self.checkpoints() - known or not psutil.pid_exists(process.pid), self.log.read_text)
        assert psutil.pid_exists(process.pid), self.log.read_text()
        return process

    def processes(self) -> list[psutil.Process]:
        """All that work in this folder, also those that nobody waits for any more."""
        return [process for process in psutil.process_iter() if works_in(self.folder, process)]

    def checkpoints(self) -> set[str]:
        return {path.name for path in self.paths.state.glob("step-*.pt")}

    def files(self) -> dict[str, str]:
        """Digests of what interruptions must not change; of bytes, pytest would show a difference for minutes."""
        paths = self.paths.encoder, self.paths.heads, self.paths.metrics
        return {path.name: digest(path) for path in paths}


def works_in(folder: Path, process: psutil.Process) -> bool:
    try:
        return process.cwd() == str(folder)
    except psutil.Error:  # it has ended meanwhile, or it is somebody else's
        return False


@pytest.fixture(scope="module")
def new_job(images, tmp_path_factory):
    def make(**site: object) -> Job:
        folder = tmp_path_factory.mktemp("job")
        site = {"data": {"small": str(images)}, "device": "cpu", "checkpoint_s": 0.15, **site}
        job = Job(folder, site, started)
        prepare_in(job.paths.results, images)
        for part in ("pipeline", "configs"):  # results go where the project lies
            shutil.copytree(CONFIGS.parent / part, folder / part)
        return job

    with ExitStack() as started:  # what still runs in the end is killed
        yield make


@pytest.fixture(scope="module")
def uninterrupted(new_job):
    """In a new interpreter, as the forks must do what that does."""
    job = new_job()
    with job.log.open("w") as log:
        command = [sys.executable, "-m", "pipeline", *job.arguments()]
        done = subprocess.run(command, env=job.env(), cwd=job.folder, stderr=log, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, job.log.read_text()
    return job


def test_train__uninterrupted__has_every_step_once(uninterrupted):
    records = read_lines(uninterrupted.paths.metrics)
    total = RUN.total_steps
    assert [r["step"] for r in records if "loss" in r] == sorted({*range(4, total + 1, 4), total})
    assert [r["step"] for r in records if "val_top1" in r] == list(range(6, total + 1, 6))


def test_kill__at_random_moments__ends_with_the_same_bytes(uninterrupted, new_job):
    job, seed = new_job(), time.time_ns()
    print(f"random moments seeded with {seed}")
    rng = random.Random(seed)
    for _ in range(2):
        process = job.start_and_wait_for_checkpoint()
        time.sleep(rng.uniform(0, 0.4))
        os.killpg(process.pid, signal.SIGKILL)
        assert process.exit_code(PATIENCE_S) == -signal.SIGKILL
        assert not job.paths.done.exists()
    job.finish()
    assert job.files() == uninterrupted.files()


def test_sigterm__to_the_whole_job_with_loader_workers__checkpoints_and_continues(uninterrupted, new_job):
    # As a time limit does: the loader's workers get the signal too.
    job = new_job(workers=2)
    process = job.start_and_wait_for_checkpoint()
    os.killpg(process.pid, signal.SIGTERM)
    code, message = process.exit_code(PATIENCE_S), job.log.read_text()
    assert code == 75, message
    stopped_at = max(int(name.split("-")[1]) for name in job.checkpoints())
    assert (
        f"asked to stop: checkpoint after step {stopped_at} of {RUN.total_steps}; the same command continues" in message
    )
    assert "Traceback" not in message
    job.finish()
    assert f"resuming at step {stopped_at}" in job.log.read_text()
    assert job.files() == uninterrupted.files()


@dataclass
class TwoProcesses:
    """What happened to a run of two processes that was stopped, lost a process, and was finished."""

    job: Job
    code_after_sigterm: int
    message_after_sigterm: str
    code_after_kill: int
    seconds_after_kill: float
    survivors: list[psutil.Process]


@pytest.fixture(scope="module")
def two_processes(new_job):
    job = new_job(processes=2)
    launcher = job.start_and_wait_for_checkpoint()
    os.kill(launcher.pid, signal.SIGTERM)
    stopped, message = launcher.exit_code(PATIENCE_S), job.log.read_text()

    launcher = job.start_and_wait_for_checkpoint()
    os.kill(processes_of(launcher.pid)[1], signal.SIGKILL)
    since = time.monotonic()
    killed = launcher.exit_code(PATIENCE_S)
    _, survivors = psutil.wait_procs(job.processes(), 5)
    seconds = time.monotonic() - since

    job.finish()
    return TwoProcesses(job, stopped, message, killed, seconds, survivors)


def processes_of(launcher: int) -> dict[int, int]:
    """Rank -> process id."""
    ranks = {}
    for pid in children_of(launcher):
        variables = dict(entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if entry)
        ranks[int(variables["RANK"])] = pid
    assert sorted(ranks) == [0, 1]
    return ranks


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(child) for child in found.stdout.split()]


def test_two_processes__sigterm_to_the_launcher__checkpoint_and_say_continue(two_processes):
    assert two_processes.code_after_sigterm == 75, two_processes.message_after_sigterm
    assert "the same command continues" in two_processes.message_after_sigterm
    assert "Traceback" not in two_processes.message_after_sigterm


def test_two_processes__one_killed__the_job_ends_with_an_error_within_seconds(two_processes):
    assert two_processes.code_after_kill not in (0, 75)
    assert two_processes.seconds_after_kill < 20
    assert two_processes.survivors == []


def test_two_processes__interrupted_twice__have_the_losses_of_one_process(two_processes, uninterrupted):
    ours, theirs = (read_lines(job.paths.metrics) for job in (two_processes.job, uninterrupted))
    assert [record.keys() for record in ours] == [record.keys() for record in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=1e-5), one["step"]


def test_train__after_kill_of_the_shell_that_started_it__waits_for_the_orphan_and_keeps_its_log(uninterrupted, new_job):
    """As after `kill -9` of a local Snakemake: the training lives on, and the restarted rule must not fail."""
    job = new_job()
    shell = job.start_as_rule()
    wait_until(job.checkpoints, job.log.read_text)
    (orphan,) = (each.pid for each in job.processes() if os.getsid(each.pid) == each.pid != shell.pid)
    os.kill(orphan, signal.SIGSTOP)  # it must not finish before the second one has looked
    shell.kill()
    shell.wait()
    said = job.log.read_text()

    second = job.start_as_rule()
    words = f"process {orphan} on {socket.gethostname()} is working on {RUN.name}; waiting for it"
    wait_until(lambda: words in job.log.read_text(), job.log.read_text)
    assert not job.paths.done.exists()
    os.kill(orphan, signal.SIGCONT)

    assert second.wait(PATIENCE_S) == 0, job.log.read_text()
    log = job.log.read_text()
    assert log.startswith(said) and log.rstrip().endswith(f"{RUN.name} is finished already")
    assert job.paths.done.exists() and job.files() == uninterrupted.files()
