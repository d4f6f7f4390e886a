"""Locks between real processes: one holds, another waits and is noticed, and death lets go."""

import subprocess
import sys

import pytest

from pipeline.errors import LaunchError
from pipeline.files import held, is_held, is_wanted

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.files import held
with held(Path(sys.argv[1]), "a run", float(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that takes the lock, waiting for it if it may, and keeps it."""
    started = []

    def run(patience_s=0):
        command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock"), str(patience_s)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_held__by_another_process__is_refused_at_once_and_names_it(start, tmp_path):
    holder = start()
    assert holder.stdout.readline() == "held\n"
    assert is_held(tmp_path / "lock") and not is_wanted(tmp_path / "lock")
    words = rf"another process is working on a run \(process {holder.pid} on \S+ holds .*lock\); wait for it or stop it"
    with pytest.raises(LaunchError, match=words), held(tmp_path / "lock", "a run"):
        pass


@pytest.mark.slow
def test_held__wanted_by_a_patient_process__is_noticed_and_handed_over(start, tmp_path):
    path = tmp_path / "lock"
    with held(path, "a run"):
        patient = start(patience_s=60)
        while not is_wanted(path):
            assert patient.poll() is None
    assert patient.stdout.readline() == "held\n"
    assert is_held(path) and not is_wanted(path)


def test_held__by_a_killed_process__is_free(start, tmp_path):
    holder = start()
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    assert not is_held(tmp_path / "lock")
    with held(tmp_path / "lock", "a run"):
        pass
