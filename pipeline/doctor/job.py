"""A job like those that train, of one process: does it start, and what does it see?"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.config import shown
from pipeline.core.files import held, is_held, write_json
from pipeline.doctor.finding import Finding, Subject, failed, not_applicable, ok
from pipeline.launch.job import log_tail
from pipeline.launch.queue import Job, ask
from pipeline.launch.resources import sbatch_options
from pipeline.launch.slurm import forget_own_job, scancel

LIMIT_MIN = 2  # importing torch from a network folder may take one
QUEUE_S = 120  # in a full queue the test job is given up after this
END_S = 30  # a job that has said what it sees ends within a moment
LOOK_S = 1.0
CANNOT_SEE = (
    "the project, its .venv and results must lie at the same path on every node; "
    "try `srun ls` of that folder, and put what a job needs first into slurm.setup"
)
LOCK = "lock"  # held here while the job looks at it
MAKE_LOCKS_CROSS = (
    "set locks in {site} to a shared folder whose locks reach all nodes, such as one in your home, or have results "
    "mounted with them (Lustre with -o flock, not localflock; NFS without nolock and local_lock; BeeGFS with "
    "tuneUseGlobalFileLocks)"
)


def try_job(subject: Subject) -> Iterator[Finding]:
    """Submitted as the launcher submits, with the site's own options."""
    from submitit.core.utils import FailedJobError

    folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=subject.graph.results.folder))
    try:
        findings = _try_in(folder, subject)
    except FailedJobError as error:
        last = (str(error).strip().splitlines() or ["no message"])[-1]
        remedy = f"fix the slurm part of {subject.site_file}; see above"
        findings = [failed("test job", f"sbatch refused it: {last}", remedy)]
    if CANNOT_SEE not in [finding.remedy for finding in findings]:  # its log would be of use
        shutil.rmtree(folder, ignore_errors=True)
    yield from findings


def _try_in(folder: Path, subject: Subject) -> list[Finding]:
    with held(folder / LOCK, "the test of locks"):
        job, path, last = _submit(subject, folder), folder / "seen.json", None
        try:
            last = _wait(job, path)
        finally:
            if not path.exists():
                scancel(job)
    if path.exists():
        _wait_for_end(job)
        return _judge(subject, json.loads(path.read_text()), job)
    if last and last.state == "PENDING":
        return [not_applicable("test job", f"still waited after {QUEUE_S} s ({last.reason}); cancelled, no failure")]
    state = last.state.lower() if last else "gone"
    text = f"job {job} is {state} and left no word in {shown(folder)}:\n{log_tail(folder, job, num_lines=5)}"
    return [failed("test job", text, CANNOT_SEE)]


def _submit(subject: Subject, folder: Path) -> str:
    from submitit import SlurmExecutor

    forget_own_job()
    executor = SlurmExecutor(folder)
    options = sbatch_options(subject.site, nodes=1, processes=1)
    executor.update_parameters(job_name="doctor", **{**options, "time": LIMIT_MIN, "signal_delay_s": 1})
    return executor.submit(look_around, folder / "seen.json").job_id


def look_around(path: Path) -> None:
    """Runs in the job: what a training process would find."""
    seen = {
        "host": socket.gethostname(),
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "python": sys.executable,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "sees_lock": is_held(path.with_name(LOCK)),
        "gpus": _gpus(),
        "nvidia_smi": _nvidia_smi(),
    }
    write_json(path, seen)


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _nvidia_smi() -> str:
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi"
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout or done.stderr).strip()


def _wait(job: str, path: Path) -> Job | None:
    """What the queue said last, once the file exists, the job has ended, or the time is up."""
    deadline, seen = time.monotonic() + QUEUE_S, None
    while not path.exists():
        seen, has_ended = _asked(job, seen)
        if has_ended or (time.monotonic() > deadline and (seen is None or seen.state == "PENDING")):
            # A network folder shows a new file a moment late.
            time.sleep(LOOK_S)
            break
        if time.monotonic() > deadline + 60 * LIMIT_MIN:
            break
        time.sleep(LOOK_S)
    return seen


def _wait_for_end(job: str) -> None:
    """Until then it writes into its folder, which could not be removed."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline and not _asked(job)[1]:
        time.sleep(LOOK_S)


def _asked(job: str, before: Job | None = None) -> tuple[Job | None, bool]:
    """What the queue says of a job, and whether it has ended; what it said `before` where it does not answer."""
    answer = ask()
    if answer.problem:
        return before, False
    seen = answer.jobs.get(job)
    return seen, seen is None or seen.has_ended


def _judge(subject: Subject, seen: dict[str, Any], job: str) -> list[Finding]:
    node, slurm = seen["node"] or seen["host"], subject.site.cluster
    ran = ok("test job", f"job {job} ran on {node} and found the project and {seen['python']}")
    if seen["sees_lock"]:
        locks = ok("locks", f"a lock of this machine holds on {node}, too")
    else:
        text = f"a lock of this machine does not hold on {node}: two jobs could train one run at the same time"
        locks = failed("locks", text, MAKE_LOCKS_CROSS.format(site=subject.site_file))
    if not slurm.gres or subject.site.device == "cpu":
        gpu = not_applicable("GPU in a job", "the site file asks for none")
    elif seen["gpus"]:
        gpu = ok("GPU in a job", f"{', '.join(seen['gpus'])} (CUDA_VISIBLE_DEVICES={seen['visible']})")
    else:
        text = f"torch sees no GPU on {node}; CUDA_VISIBLE_DEVICES={seen['visible']}, {seen['nvidia_smi']}"
        remedy = f"choose a partition with GPUs, or load the driver in slurm.setup of {subject.site_file}"
        gpu = failed("GPU in a job", text, remedy)
    return [ran, locks, gpu]
