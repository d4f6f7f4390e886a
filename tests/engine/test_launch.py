"""The launcher with real processes: a shell script stands where Python would, and does what its rank is told to."""

import os
import signal
import sys
import threading
import time

import pytest
from patience import wait_until

from pipeline.engine.signals import REASONS, StopRequest
from pipeline.launch import local


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs a shell command per rank; returns the launcher's exit code and the seconds it took."""
    handlers = {number: signal.getsignal(number) for number in REASONS}
    monkeypatch.setattr(local, "STOP", StopRequest().listen())
    monkeypatch.setattr(local, "LAST_WORDS_S", 0.5)

    def run(*commands):
        script = tmp_path / "python"
        cases = "\n".join(f"{rank}) {command};;" for rank, command in enumerate(commands))
        script.write_text(f"#!/bin/sh\ncd {tmp_path}\ncase $RANK in\n{cases}\nesac\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        since = time.monotonic()
        return local.run_processes(len(commands), ["train"]), time.monotonic() - since

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_launch__all_succeed__is_zero_and_each_knows_its_place(launch, tmp_path):
    command = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR" > place$RANK'
    assert launch(command, command)[0] == 0
    assert [(tmp_path / f"place{rank}").read_text() for rank in range(2)] == ["0 0 2 127.0.0.1\n", "1 1 2 127.0.0.1\n"]


@pytest.mark.slow
def test_launch__all_killed__is_an_error_code_a_shell_understands(launch):
    assert launch("kill -9 $$", "kill -9 $$")[0] == 9


def test_launch__one_killed_after_the_others_finished__is_not_zero(launch):
    assert launch("exit 0", "kill -9 $$")[0] == 9


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([1, 75], 1), ([75, 0], 75), ([75, -9], 9), ([3, -9, 75], 3), ([0, 0], 0)],
)
def test_launch__processes_that_end_differently__is_the_code_of_the_failure(codes, worst):
    assert local._worst(codes) == worst


def test_launch__told_to_stop_before_there_are_processes__tells_them_and_is_to_be_continued(launch):
    os.kill(os.getpid(), signal.SIGTERM)
    assert launch("exec sleep 5", "exec sleep 5")[0] == 75


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_launch__told_to_stop__every_process_is_told_so(launch, tmp_path, name):
    def tell():
        wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(2)))
        os.kill(os.getpid(), signal.Signals[f"SIG{name}"])

    threading.Thread(target=tell, daemon=True).start()
    command = f"trap 'exit 75' {name}; touch ready$RANK; for look in $(seq 100); do sleep 0.05; done; exit 3"
    assert launch(command, command)[0] == 75


@pytest.mark.slow
def test_launch__one_fails__the_others_are_ended_and_its_code_returned(launch):
    code, seconds = launch("exec sleep 60", "exit 3")
    assert code == 3
    assert seconds < 15


@pytest.mark.slow
def test_launch__main_process_writes_a_large_checkpoint__is_not_killed_because_the_others_are_done(launch, tmp_path):
    code, _ = launch("sleep 1; touch checkpoint; exit 75", "exit 75")
    assert code == 75
    assert (tmp_path / "checkpoint").exists()
