"""Locks between real processes: one holds, another waits and is noticed, and death lets go. Names of drafts."""

import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from pipeline.core.config import CONFIGS
from pipeline.core.errors import LaunchError
from pipeline.core.files import (
    LockFile,
    draft_of,
    held,
    held_in_turn,
    holder_of,
    is_held,
    is_wanted,
    remove_folder,
    write_text,
)

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.core.files import held
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_held__by_a_killed_process__is_free(start, tmp_path):
    holder = start()
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    assert not is_held(tmp_path / "lock")
    with held(tmp_path / "lock", "a run"):
        pass


def test_held_in_turn__free__is_taken_without_a_word(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with held_in_turn(tmp_path / "lock", "a set") as has_waited:
        assert is_held(tmp_path / "lock") and not has_waited
    assert not is_held(tmp_path / "lock") and not caplog.messages


def test_held_in_turn__by_another__waits_and_says_for_whom(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    taken, release = threading.Event(), threading.Event()

    def hold():
        with held(tmp_path / "lock", "a set"):
            taken.set()
            release.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(60)
    threading.Timer(0.1, release.set).start()
    with held_in_turn(tmp_path / "lock", "a set") as has_waited:
        assert has_waited and release.is_set()
    other.join()
    (line,) = caplog.messages
    assert line.startswith("process ") and line.endswith(" is working on a set; waiting for it")


def test_draft_of__asked_twice_by_one_process__is_another_hidden_name(tmp_path, monkeypatch):
    """Processes of two machines may have the same number."""
    monkeypatch.setattr("os.getpid", lambda: 7)
    first, second = draft_of(tmp_path / "a.json"), draft_of(tmp_path / "a.json")
    assert first != second
    for draft in (first, second):
        assert draft.parent == tmp_path and draft.name.startswith(".a.json.") and draft.suffix == ".tmp"


def test_write_text__two_of_the_same_number_at_once__leave_one_whole_file(tmp_path, monkeypatch):
    """The second one writes while the first has its draft open, as on two machines with one file system."""
    monkeypatch.setattr("os.getpid", lambda: 7)
    replace, path = os.replace, tmp_path / "a.txt"

    def replace_late(source, target):
        monkeypatch.setattr("os.replace", replace)
        write_text(path, "the other")
        replace(source, target)

    monkeypatch.setattr("os.replace", replace_late)
    write_text(path, "this one")
    assert path.read_text() == "this one" and [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_remove_folder__while_it_is_deleted__nothing_has_its_name(tmp_path, monkeypatch):
    write_text(tmp_path / "set" / "recipe.json", "{}")
    seen = []
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: seen.append((path.name, (tmp_path / "set").exists())))
    remove_folder(tmp_path / "set")
    ((name, exists),) = seen
    assert name.startswith(".set.") and not exists


def test_remove_folder__that_is_not_there__is_no_problem(tmp_path):
    remove_folder(tmp_path / "set")


def test_lock__where_the_site_names_a_folder_for_locks__lies_there_at_the_same_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHWORK_LOCKS", str(tmp_path / "locks"))
    path = CONFIGS.parent / "results/no-such-scale/lock"
    with held(path, "a run"):
        assert is_held(path) and not path.parent.exists()
        assert holder_of(path) == f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(LaunchError, match=r"holds \S+/locks/\S+/no-such-scale/lock\)"), held(path, "a run"):
            pass
        with closing(LockFile(path)) as other:
            assert not other.take(is_asking=True) and is_wanted(path)
    assert not is_held(path)
    with held(tmp_path / "cache/lock", "a cache on a disk of this node"):
        assert (tmp_path / "cache/lock").exists()
