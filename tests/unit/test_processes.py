"""Processes end with the one that they work for: none is left after a kill, and none keeps it from ending."""

import signal
import subprocess
import sys

import psutil
import pytest
from patience import PATIENCE_S

WORK = """
import time
from pipeline.data.store.inspection import mapper
from pipeline.data.loader import BatchPlan, train_loader

opened = mapper(2)
found = iter(opened.__enter__()(time.sleep, [0.0] * 1000))
next(found)

numbers = list(range(1000))
view = lambda number: (number, "x" * 2**17)  # results that nobody reads fill the pipe
loader = iter(train_loader(BatchPlan(0, 1000, 1, 100, 2, 1), numbers, view, 0, 0, 1, 2))
next(loader)

print("at work", flush=True)
input()
raise ValueError("whose traceback holds all of it")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "failed"])
def test_workers__of_a_pool_and_a_loader_whose_process_was_killed_or_failed__end_with_it(how):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WORK], text=True, **pipes) as parent:
        assert parent.stdout.readline() == "at work\n"
        workers = psutil.Process(parent.pid).children()
        assert len(workers) == 4  # two of each
        if how == "killed":
            parent.kill()
        _, said = parent.communicate("\n", timeout=PATIENCE_S)
    assert parent.returncode == (-signal.SIGKILL if how == "killed" else 1)
    assert how == "killed" or said.splitlines()[-1] == "ValueError: whose traceback holds all of it"
    _, left = psutil.wait_procs(workers, PATIENCE_S)
    assert not left
