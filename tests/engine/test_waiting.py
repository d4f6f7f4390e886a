"""Processes that wait for a run's lock: together, for longer than a collective operation may take, and not for ever."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from forked import ForkedProcess
from patience import PATIENCE_S, wait_until
from tiny_runs import tiny_run

from pipeline.core.config import Layers
from pipeline.core.files import held, is_wanted
from pipeline.engine import train
from pipeline.engine.parallel import distributed
from pipeline.engine.run import parse_run
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.engine.train import train_run
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow

RUN = tiny_run({"optim": {"epochs": 1, "warmup_epochs": 0}})
TIMEOUT_S = 15  # of a collective operation


@contextmanager
def two_processes(results, images, **options):
    """Two processes that train the run, once they have joined; each leaves its last words in rank<rank>.txt."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = port, RUN.model_dump(mode="json"), results, images, options
    children = [ForkedProcess(target=_train_as_rank, args=(rank, *arguments)) for rank in range(2)]
    for child in children:
        child.start()
    try:
        wait_until(lambda: all((results / f"joined{rank}").exists() for rank in range(2)))
        yield children
    finally:
        for child in children:
            child.kill()


def _train_as_rank(rank, port, config, results, images, options):
    places = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    distributed.TIMEOUT_S, train.MEET_S = TIMEOUT_S, 0.5
    join = distributed.join_world

    def join_and_tell(device):
        world = join(device)
        (results / f"joined{rank}").touch()
        return world

    train.join_world = join_and_tell
    run, stop = parse_run(Layers(("test", config))), StopRequest()
    stop.also_when("asked to stop", lambda: (results / f"stop{rank}").exists())
    try:
        site = Site(device="cpu", data={"small": images})
        train_run(run, RunFolder(results, run.name), site, stop, options.get("takeover_s"))
        words = "done"
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    (results / f"rank{rank}.txt").write_text(words)


def last_words(results, children):
    """What each process said when it had ended by itself."""
    for child in children:
        child.join(PATIENCE_S)
    assert [child.exitcode for child in children] == [0, 0]
    return [(results / f"rank{rank}.txt").read_text() for rank in range(2)]


@pytest.fixture
def paths(results):
    return RunFolder(results, RUN.name)


@pytest.fixture
def lock(paths):
    """The run's lock, held by this process until it is closed."""
    with ExitStack() as stack:
        stack.enter_context(held(paths.lock, "a test"))
        yield stack


def test_two_processes__lock_held_for_longer_than_a_collective_may_take__train_in_the_end(images, paths, lock):
    with two_processes(paths.results, images) as children:
        time.sleep(1.5 * TIMEOUT_S)
        assert all(child.is_alive() for child in children)
        assert not is_wanted(paths.lock)
        lock.close()
        assert last_words(paths.results, children) == ["done", "done"]
    assert paths.record().provenance["processes"] == 2


def test_two_processes__lock_not_obtained__both_end_and_say_who_holds_it(images, paths, lock):
    with two_processes(paths.results, images, takeover_s=3) as children:
        wait_until(lambda: is_wanted(paths.lock))
        since = time.monotonic()
        wait_until(lambda: all((paths.results / f"rank{rank}.txt").exists() for rank in range(2)))
        assert time.monotonic() - since < 3 + TIMEOUT_S
        words = last_words(paths.results, children)
    for said in words:
        assert said.startswith(f"LaunchError: process {os.getpid()} on {socket.gethostname()} is working on {RUN.name}")
        assert said.endswith("did not stop within 3 s; stop it, then start again")


def test_two_processes__one_asked_to_stop_while_both_wait__both_leave(images, paths, lock):
    with two_processes(paths.results, images) as children:
        (paths.results / "stop1").touch()
        words = last_words(paths.results, children)
    assert words[0].startswith("Requeue: a peer was asked to stop while process")
    assert words[1].startswith("Requeue: asked to stop while process")


def test_train__holder_of_the_lock_is_killed__goes_on_in_its_place(images, paths):
    program = "import sys, time; from pathlib import Path; from pipeline.core.files import LockFile\n"
    program += "assert LockFile(Path(sys.argv[1])).take(); print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, str(paths.lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        threading.Timer(1, holder.kill).start()
        train_run(RUN, paths, Site(device="cpu", data={"small": images}), StopRequest())
    assert paths.record().provenance["resumed_at_step"] == 0


def test_train__asked_to_stop_while_it_waits__leaves_and_says_for_whom_it_waited(images, paths, lock):
    stop = StopRequest()
    stop.why = "interrupted"
    with pytest.raises(Requeue, match=rf"interrupted while process {os.getpid()} on \S+ worked on {RUN.name}"):
        train_run(RUN, paths, Site(device="cpu", data={"small": images}), stop)
