"""Starting the processes of one training run: in this process, or one process per GPU on this node."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from pipeline.core.config import Layers
from pipeline.core.errors import LaunchError
from pipeline.core.files import LockFile
from pipeline.engine.signals import CONTINUE_ME, STOP, Requeue, StopRequest
from pipeline.launch.gpus import INHERITED, Slot
from pipeline.launch.memory import explain_memory
from pipeline.results import RunFolder
from pipeline.site import Site

log = logging.getLogger(__name__)

TAKEOVER_S = 600  # a checkpoint on a slow file system takes a while
LAST_WORDS_S = 5.0  # when a process has failed, the others may be about to say what is wrong


def is_placed() -> bool:
    """Whether this process has its place among others already, rather than being the one that starts them."""
    return "RANK" in os.environ


def train_here(config: dict[str, Any], paths: RunFolder, site: Site, stop: StopRequest) -> int:
    """Train in this process, alone or as one of several; returns the exit code."""
    from pipeline.engine.run import parse_run
    from pipeline.engine.train import train_run

    run = parse_run(Layers((paths.name, config)))
    # A requeued job may find that the one before it has not ended yet, on a node that SLURM gave up. On one machine it
    # is a training run that outlived the command that started it: that one ends by itself.
    takeover_s = TAKEOVER_S if "SUBMITIT_EXECUTOR" in os.environ else None
    try:
        with explain_memory(f"run {run.name}", site, run.optim.micro_batch):
            train_run(run, paths, site, stop, takeover_s)
    except Requeue as request:
        log.info("%s; the same command continues", request)
        return CONTINUE_ME
    return 0


def run_processes(count: int, arguments: list[str], slots: Sequence[Slot] = ()) -> int:
    """Run `python -m pipeline <arguments>` in `count` processes that find each other; returns the worst exit code.

    SIGTERM and SIGINT are passed on, so that the processes write their checkpoint; when one fails, the others, which
    would wait for it for ever, are ended. Each shares the lock of its GPU: it may outlive this process.
    """
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    children: list[subprocess.Popen] = []
    told: set[int] = set()

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.add(number)
        for child in children:
            child.send_signal(number)

    for rank in range(count):
        place = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        children.append(_start(arguments, place, slots[rank].lock if slots else None))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    if STOP.is_raised:  # before there was anybody to tell
        pass_on(STOP.signal or signal.SIGTERM, None)
    while None in [child.poll() for child in children]:
        # Some failed, some still run. To stop on request is no failure: the main process may be writing the checkpoint.
        if any(child.returncode not in (None, 0, CONTINUE_ME) for child in children):
            time.sleep(LAST_WORDS_S)
            for child in children:
                child.kill()
        time.sleep(0.2)
    # Told to stop before it listens, a process ends at once: it has done nothing yet.
    return _worst([CONTINUE_ME if -child.returncode in told else child.returncode for child in children])


def _worst(codes: list[int]) -> int:
    """A failure counts, whatever the others say; of failures the one of a process that was not killed."""
    codes = [code for code in codes if code not in (0, CONTINUE_ME)] or codes
    return max(codes) if max(codes) > 0 else -min(codes)  # a killed process has a negative code


def _start(arguments: list[str], variables: dict[str, str], lock: LockFile | None) -> subprocess.Popen:
    command = [sys.executable, "-m", "pipeline", *arguments]
    descriptors = [lock.file.fileno()] if lock else []
    if lock:
        variables = {**variables, INHERITED: str(lock.file.fileno())}
    try:
        # A session of its own: Ctrl-C then reaches the processes once, through the launcher.
        return subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True, pass_fds=descriptors)
    except OSError as error:
        raise LaunchError(f"could not start {' '.join(command)}: {error}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
