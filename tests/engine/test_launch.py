"""The launcher with real processes: a shell script stands where Python would, and does what its rank is told to."""

import signal
import sys
import time

import pytest

from pipeline.launch.local import run_processes


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs a shell command per rank; returns the launcher's exit code and the seconds it took."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*commands):
        script = tmp_path / "python"
        cases = "\n".join(f"{rank}) {command};;" for rank, command in enumerate(commands))
        script.write_text(f"#!/bin/sh\ncd {tmp_path}\ncase $RANK in\n{cases}\nesac\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        since = time.monotonic()
        return run_processes(len(commands), ["train"]), time.monotonic() - since

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_launch__all_succeed__is_zero_and_each_knows_its_place(launch, tmp_path):
    command = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR" > place$RANK'
    assert launch(command, command)[0] == 0
    assert [(tmp_path / f"place{rank}").read_text() for rank in range(2)] == ["0 0 2 127.0.0.1\n", "1 1 2 127.0.0.1\n"]


def test_launch__all_killed__is_an_error_code_a_shell_understands(launch):
    assert launch("kill -9 $$", "kill -9 $$")[0] == 9


@pytest.mark.slow
def test_launch__one_fails__the_others_are_ended_and_its_code_returned(launch):
    code, seconds = launch("exec sleep 60", "exit 3")
    assert code == 3
    assert seconds < 15


@pytest.mark.slow
def test_launch__main_process_writes_a_large_checkpoint__is_not_killed_because_the_others_are_done(launch, tmp_path):
    code, _ = launch("sleep 6; touch checkpoint; exit 75", "exit 75")
    assert code == 75
    assert (tmp_path / "checkpoint").exists()
