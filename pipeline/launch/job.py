"""Inside a SLURM job: each task is one process of the run.

Told to stop, the run writes its checkpoint. Before a time limit the job then puts itself back into the queue; after
SIGTERM, SLURM does that itself (requeue, preemption), or nobody does (scancel), or the launcher does: it reads the
outcome that is left here.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from pipeline.core.config import Strict, read_yaml
from pipeline.core.errors import LaunchError, PatchworkError
from pipeline.core.files import write_json
from pipeline.core.logs import is_main_process, start_logging
from pipeline.core.processes import leave
from pipeline.engine.signals import CONTINUE_ME, STOP
from pipeline.launch.local import train_here
from pipeline.results import RunFolder
from pipeline.site import load_site

log = logging.getLogger(__name__)


class Outcome(Strict):
    """How a process of a job ended."""

    job: str
    start: int  # how often SLURM had started the job before
    rank: int
    code: int  # exit code
    why: str  # it was asked to stop, if it was
    step: int  # of the newest checkpoint
    message: str = ""  # of an error that the user can fix, or that others may have caused


class TrainJob:
    """What submitit runs in every task of the job."""

    def __init__(self, paths: RunFolder, site: str) -> None:
        self.paths, self.site, self.message = paths, site, ""

    def __call__(self) -> None:
        # Instead of submitit's own handlers, which requeue from within the signal, without a checkpoint.
        STOP.listen()
        before = self.paths.last_step()
        code = self._train()
        is_main = is_main_process()
        if is_main or code not in (0, CONTINUE_ME):
            self._leave_outcome(code)
        if is_main and code == CONTINUE_ME and STOP.signal == signal.SIGUSR2:
            if self.paths.last_step() > before:
                requeue(os.environ["SLURM_JOB_ID"])
            else:  # the launcher counts such jobs; this one would come back for ever
                log.warning("no checkpoint beyond step %d in this job, so it does not requeue itself", before)
        # Not 75 from the others: srun would end the main process for it.
        leave(code if is_main or code != CONTINUE_ME else 0)

    def _train(self) -> int:
        config, scale = self.paths.submitted, self.paths.results.name
        # The command that trains the same by hand: it is written beside the result.
        sys.argv = ["pipeline", "train", "--scale", scale, "--site", self.site, "--config", str(config)]
        os.environ["PATCHWORK_SITE"] = self.site
        try:
            take_place()
            return train_here(read_yaml(config), self.paths, load_site(), STOP)
        except PatchworkError as error:
            self.message = f"{type(error).__name__}: {error}"
            log.error("%s", self.message)
        except Exception as error:  # without an outcome, the launcher would try again what fails again
            from pipeline.engine.parallel.distributed import is_lost_peer

            log.exception("the process ends with an unexpected error")
            if is_lost_peer(error):
                self.message = "another process of the run was lost"
                return CONTINUE_ME
        return 1

    def _leave_outcome(self, code: int) -> None:
        """The first process that failed has the reason; others may have lost it."""
        known = read_outcome(self.paths, os.environ["SLURM_JOB_ID"])
        start = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        if known and known.start == start and known.code not in (0, CONTINUE_ME):
            return
        outcome = Outcome(
            job=os.environ["SLURM_JOB_ID"],
            start=start,
            rank=int(os.environ.get("RANK", 0)),
            code=code,
            why=STOP.why,
            step=self.paths.last_step(),
            message=self.message,
        )
        write_json(self.paths.outcome, outcome.model_dump())


def read_outcome(paths: RunFolder, job: str) -> Outcome | None:
    """What this job's processes said when they ended, if they could."""
    if not paths.outcome.exists():
        return None
    outcome = Outcome.model_validate_json(paths.outcome.read_bytes())
    return outcome if outcome.job == job else None


def take_place() -> None:
    """Give this task its place among its peers, in the variables that torch knows."""
    from submitit import JobEnvironment

    place = JobEnvironment()
    variables = {"RANK": place.global_rank, "LOCAL_RANK": place.local_rank, "WORLD_SIZE": place.num_tasks}
    os.environ.update({name: str(value) for name, value in variables.items()})
    start_logging()
    if place.num_tasks > 1:
        starts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        os.environ["MASTER_ADDR"] = "127.0.0.1" if place.num_nodes == 1 else address_of(place.hostnames[0])
        # Below the ports that systems hand out; another one at each start, in case this one is taken.
        os.environ["MASTER_PORT"] = str(20000 + (int(place.raw_job_id) * 7 + starts * 101) % 10000)


def address_of(node: str) -> str:
    """A node's name, or, where that does not resolve, the address by which SLURM knows it."""
    if resolves(node):
        return node
    command = ["scontrol", "show", "node", node]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"NodeAddr=(\S+)", result.stdout)
    if found is None or not resolves(found[1]):
        raise LaunchError(
            f"node {node} does not resolve, and SLURM's address of it is {found[1] if found else 'unknown'}; expected "
            "one that the other nodes of a run can reach: add it to DNS or /etc/hosts, or set slurm.nodes to 1"
        )
    log.info("node %s does not resolve; using %s, its address in SLURM", node, found[1])
    return found[1]


def resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def requeue(job: str) -> None:
    """Back into the queue; where the cluster refuses, the launcher submits the run again."""
    result = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        log.warning("scontrol requeue %s: %s", job, result.stderr.strip())


def log_tail(folder: Path, job: str, num_lines: int = 20) -> str:
    """The end of what the job's processes wrote, the main one's first; those that wrote nothing are left out."""
    parts = []
    for path in sorted(folder.glob(f"{job}_*_log.out"), key=lambda path: int(path.name.split("_")[1])):
        lines = path.read_text(errors="replace").rstrip().splitlines()[-num_lines:]
        if lines:
            parts.append("\n".join([f"--- {path}", *lines]))
    return "\n".join(parts[:3]) or f"(nothing in {folder})"
