"""GPUs as a resource, without a GPU: devices are numbers that the site names, and jobs are processes that hold them."""

import logging
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from patience import PATIENCE_S, wait_until

from pipeline.core.errors import ConfigError, LaunchError
from pipeline.core.files import LockFile, write_text
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.launch import gpus, local
from pipeline.launch.gpus import gpus_of, hold_gpus, holders
from pipeline.launch.resources import shape_of
from pipeline.site import Site, Slurm

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without devices on which nvidia-smi finds nothing, with a folder for locks of its own."""
    monkeypatch.setattr(gpus, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(gpus, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(gpus, "LOOK_S", 0.01)
    monkeypatch.setattr(gpus, "_found_gpus", dict)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")  # both are as they were afterwards
    monkeypatch.setenv(gpus.VISIBLE, "")
    monkeypatch.delenv(gpus.VISIBLE)


def log_of(job: str) -> Path:
    return Path(f"/results/demo/logs/train_run/{job}.log")


def hold(site: Site, count: int = 1, job: str = "job", stop: StopRequest | None = None):
    """As a job that finds the environment as the user left it."""
    os.environ.pop(gpus.VISIBLE, None)
    return hold_gpus(site, count, log_of(job), stop)


def ids(site: Site) -> list[str]:
    return [gpu.id for gpu in gpus_of(site)]


# Which GPUs a site has


def test_gpus__nothing_said__are_all_that_are_found_or_that_the_environment_allows(monkeypatch):
    assert ids(Site()) == []
    monkeypatch.setattr(gpus, "_found_gpus", lambda: {"0": "GPU-aa", "1": "GPU-bb", "2": "GPU-cc"})
    assert ids(Site()) == ["0", "1", "2"]
    for value, allowed in {
        "2,0": ["2", "0"],
        "": [],
        "-1": [],
        "1,-1,0": ["1"],
        "GPU-cc": ["2"],
        "MIG-1": ["MIG-1"],
        "0,0,GPU-aa,1": ["0", "1"],
        "1,7,0": ["1"],
        "GPU-bb,GPU-xx,0": ["1"],
    }.items():
        monkeypatch.setenv(gpus.VISIBLE, value)
        assert ids(Site()) == allowed, value


def test_gpus__named_by_the_site__are_those_that_the_environment_allows(monkeypatch):
    site = Site(gpus=[3, 1, 3])
    assert ids(site) == ["3", "1"]
    monkeypatch.setenv(gpus.VISIBLE, "0,1")
    assert ids(site) == ["1"]
    monkeypatch.setenv(gpus.VISIBLE, "")
    assert ids(site) == []
    monkeypatch.setenv(gpus.VISIBLE, "0,2")
    with pytest.raises(
        ConfigError, match=r"CUDA_VISIBLE_DEVICES=0,2 has none of the GPUs that the site names \(gpus: "
    ):
        gpus_of(site)


def test_gpus__named_by_the_site_but_not_there__is_an_error_that_lists_them(monkeypatch):
    monkeypatch.setattr(gpus, "_found_gpus", lambda: {"0": "GPU-aa", "1": "GPU-bb"})
    with pytest.raises(ConfigError, match="names 2, and nvidia-smi lists 0, 1; name some"):
        gpus_of(Site(gpus=[0, 2]))


def test_gpus__of_amd_that_nobody_names__is_an_error_that_asks_for_their_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr(gpus, "find_spec", lambda name: SimpleNamespace(origin=f"{tmp_path}/{name}/__init__.py"))
    write_text(tmp_path / "kfd", "")
    assert gpus_of(Site()) == []  # a laptop: its torch computes on the CPU
    write_text(tmp_path / "torch" / "lib" / "libtorch_hip.so", "")
    with pytest.raises(
        ConfigError, match=r"found GPUs of AMD \(.*/kfd\), .*such as `gpus: \[0, 1\]`, or set `device: cpu`"
    ):
        gpus_of(Site())
    assert gpus_of(Site(device="cpu")) == [] and ids(Site(gpus=[1])) == ["1"]
    monkeypatch.setenv(gpus.VISIBLE, "0")
    assert ids(Site()) == ["0"]
    monkeypatch.delenv(gpus.VISIBLE)
    monkeypatch.setattr(gpus, "_found_gpus", lambda: {"0": "GPU-aa"})
    assert ids(Site()) == ["0"]


@pytest.mark.parametrize("site", [Site(gpus=[0], device="cpu"), Site(gpus=[0], slurm=Slurm())], ids=["cpu", "slurm"])
def test_gpus__of_a_cpu_site_or_a_cluster__are_none_to_hold(site):
    assert gpus_of(site) == []
    with hold(site) as slots:
        assert slots == [] and gpus.VISIBLE not in os.environ and not gpus.LOCKS.exists()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine of its own: sets what nvidia-smi does, and the cards that /dev and the driver know (minor: UUID)."""
    monkeypatch.undo()
    for name in ("DEVICES", "DRIVER"):
        monkeypatch.setattr(gpus, name, tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def find(script: str, cards: dict[int, str] | None = None) -> dict[str, str]:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        for number, (minor, uuid) in enumerate((cards or {}).items()):
            write_text(gpus.DEVICES / f"nvidia{minor}", "")
            facts = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
            write_text(gpus.DRIVER / f"0000:0{number}:00.0" / "information", facts)
        return gpus._found_gpus.__wrapped__()

    return find


FAILS = "echo 'NVIDIA-SMI has failed, no driver'; exit 9"


def test_found_gpus__are_those_of_nvidia_smi__and_none_where_it_fails_and_there_is_no_device(driver):
    assert driver("echo '0, GPU-aa'; echo '1, GPU-bb'") == {"0": "GPU-aa", "1": "GPU-bb"}
    assert driver(FAILS) == {}


@pytest.mark.parametrize("problem", [FAILS, "true", "hangs"])
def test_found_gpus__nvidia_smi_says_nothing__have_the_same_names_from_the_driver(driver, monkeypatch, problem):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, 60)

    if problem == "hangs":
        monkeypatch.setattr(subprocess, "run", hang)
    assert driver(problem, {1: "GPU-aa", 0: "GPU-bb"}) == {"0": "GPU-aa", "1": "GPU-bb"}
    (gpus.DEVICES / "nvidia1").unlink()  # as in a container that has one of both
    assert driver(problem) == {"0": "GPU-bb"}


def test_found_gpus__devices_whose_uuid_nobody_says__is_an_error(driver):
    words = r"found nvidia0, nvidia1 in .*nvidia-smi \(exit code 9: NVIDIA-SMI has failed, no driver\) .*`device: cpu`"
    with pytest.raises(LaunchError, match=words):
        driver(FAILS, {0: "GPU-aa", 1: "GPU-????????-????"})


def test_shape__of_a_run__has_no_more_processes_than_gpus():
    assert shape_of(8, Site(processes=8, gpus=[0, 1, 2])).processes == 2
    assert shape_of(8, Site(processes=8)).processes == 8


# Slots


def test_hold__jobs_that_share_gpus__are_spread_and_wait_in_no_other_order():
    site, found = Site(gpus=[0, 1, 2], runs_per_gpu=2), []
    with hold(site, 2, "wide") as wide, hold(site) as first, hold(site) as second, hold(site, 2) as third:
        found = [[slot.gpu.id for slot in slots] for slots in (wide, first, second, third)]
        assert os.environ[gpus.VISIBLE] == ",".join(found[3])
        assert sorted(each.gpu for each in holders()) == ["0", "0", "1", "1", "2", "2"]
        assert [each.job for each in holders()].count("wide") == 2
    assert found == [["0", "1"], ["2"], ["0"], ["1", "2"]] and holders() == []


def test_hold__of_a_job_without_gpu__hides_all_of_them_and_waits_for_none():
    site = Site(gpus=[0])
    with hold(site), hold(site, 0) as slots:
        assert slots == [] and os.environ[gpus.VISIBLE] == ""


def test_hold__all_taken__waits_with_one_line_and_ends_when_asked_to(caplog):
    site, stop = Site(gpus=[4, 5]), StopRequest()
    threading.Timer(0.1, lambda: stop._raise(signal.SIGTERM, None)).start()
    with caplog.at_level(logging.INFO), hold(site, 1, "first"):
        caplog.clear()
        with pytest.raises(Requeue, match="asked to stop while waiting for a GPU"), hold(site, 2, stop=stop):
            pass
        assert caplog.messages == ["waiting for 2 of GPUs 4, 5; in use: GPU 4 by first"]
        with hold(site, 1) as slots:  # the one that gave up has left its turn
            assert slots[0].gpu.id == "5"


@pytest.mark.parametrize("waits_for", [([0], 1), ([0, 1], 2)], ids=["another", "several"])
def test_hold__while_another_job_waits__it_holds_up_only_those_who_need_the_same(waits_for, caplog):
    (numbers, count), stop, now = waits_for, StopRequest(), StopRequest()
    now.also_when("it had to wait", lambda: True)

    def wait() -> None:
        with suppress(Requeue), hold(Site(gpus=numbers), count, "waits", stop):
            pass

    with caplog.at_level(logging.INFO), hold(Site(gpus=[0])), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        try:
            wait_until(lambda: "waiting for" in caplog.text)
            with hold(Site(gpus=[0, 1, 2]), stop=now) as slots:
                assert slots[0].gpu.id in {"1", "2"} - {*map(str, numbers)}
            if count == 2:  # neither may take the other's last one
                with pytest.raises(Requeue), hold(Site(gpus=[1]), stop=now):
                    pass
        finally:
            stop._raise(signal.SIGTERM, None)
            waiting.result()


def test_hold__two_jobs_that_each_wait_for_a_gpu_of_the_other__do_not_wait_for_ever(caplog):
    """One that may not take enough gives up what it might have taken, until it looks again."""
    stop, has_both = StopRequest(), threading.Event()
    threading.Timer(10, lambda: stop._raise(signal.SIGTERM, None)).start()
    gpus._make_folder()

    def wait() -> None:
        with hold(Site(gpus=[0, 1]), 2, "wide", stop):
            has_both.set()

    with caplog.at_level(logging.INFO), closing(LockFile(gpus.LOCKS / "0.turn")) as turn, ThreadPoolExecutor(1) as pool:
        assert turn.take()
        wide = pool.submit(wait)
        wait_until(lambda: "waiting for 2" in caplog.text)
        with hold(Site(gpus=[1]), stop=stop):
            assert not has_both.is_set()
        turn.release()
        wide.result()


def test_hold__site_that_allows_fewer_runs_on_a_gpu__counts_those_of_another_site():
    with hold(Site(gpus=[0], runs_per_gpu=2)), hold(Site(gpus=[0], runs_per_gpu=2)) as second:
        slots = gpus._take_slots(gpus_of(Site(gpus=[0])), 1, 1, log_of("job"))
    assert slots == [] and second[0].lock.path.name == "0-1.lock"


def test_locks__are_named_after_the_card__and_lie_in_a_folder_of_this_user(monkeypatch):
    monkeypatch.setattr(gpus, "_found_gpus", lambda: {"0": "GPU-aa"})
    with hold(Site()) as slots:
        assert slots[0].lock.path.name == "GPU-aa-0.lock"
        assert stat.S_IMODE(gpus.LOCKS.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: -1)
    with pytest.raises(LaunchError, match="belongs to another user"), hold(Site()):
        pass


def test_hold__card_whose_uuid_is_known__is_what_cuda_is_given_and_jobs_below_find_it(monkeypatch, caplog):
    monkeypatch.setattr(gpus, "_found_gpus", lambda: {"0": "GPU-aa", "1": "GPU-bb"})
    with caplog.at_level(logging.INFO), hold(Site(gpus=[1])):
        assert os.environ[gpus.VISIBLE] == "GPU-bb" and caplog.messages == ["on GPU 1"]
        assert [each.gpu for each in holders()] == ids(Site(gpus=[1])) == ids(Site()) == ["1"]


def test_hold__cards_known_by_number_only__are_numbered_as_nvidia_smi_does_whatever_the_user_said(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with hold(Site(gpus=[1])):
        assert (os.environ[gpus.VISIBLE], os.environ["CUDA_DEVICE_ORDER"]) == ("1", "PCI_BUS_ID")


# Many jobs, two schedulers, kills

NUM_GPUS, NUM_JOBS = 8, 40


def work(folder: Path, site: Site, number: int) -> None:
    """A job: prints its devices while it has them, and must be alone there. Every fifth is killed in the middle."""
    with hold(site, 2 if number > 16 and number % 7 == 0 else 1, f"job{number}"):
        marks = [folder / f"busy-{gpu}" for gpu in os.environ[gpus.VISIBLE].split(",")]
        for mark in marks:
            mark.touch(exist_ok=False)  # FileExistsError: two on one slot
        with (folder / "devices").open("a") as file:
            file.write(f"{number} {os.environ[gpus.VISIBLE]}\n")
        all_busy = folder / "all-busy"
        while not all_busy.exists():
            if len([*folder.glob("busy-*")]) == NUM_GPUS:
                all_busy.touch()
            time.sleep(0.01)
        time.sleep(0.05)
        for mark in marks:
            mark.unlink()
        if number % 5 == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def run_job(folder: Path, site: Site, number: int) -> int:
    """In a process of its own; returns its exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work(folder, site, number)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
def test_gpus__forty_jobs_of_two_schedulers_some_killed__never_share_a_slot_and_use_all(tmp_path):
    site, numbers = Site(gpus=[*range(NUM_GPUS)]), range(NUM_JOBS)
    with ThreadPoolExecutor(NUM_GPUS) as one, ThreadPoolExecutor(NUM_GPUS) as other:
        first = one.map(lambda number: run_job(tmp_path, site, number), numbers[::2])
        second = other.map(lambda number: run_job(tmp_path, site, number), numbers[1::2])
    codes = [*first, *second]
    assert sorted(codes) == [-signal.SIGKILL] * 8 + [0] * 32
    lines = [line.split() for line in (tmp_path / "devices").read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == [*numbers]
    assert {gpu for _, devices in lines for gpu in devices.split(",")} == {*map(str, range(NUM_GPUS))}
    assert (tmp_path / "all-busy").exists() and holders() == []


# Whose death frees a slot


@pytest.fixture
def started():
    """Processes to end with the test."""
    found: list[psutil.Process] = []
    yield found
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def hold_and_fork(folder: Path, site: Site) -> None:
    with hold(site):
        worker = FORK.Process(target=time.sleep, args=(PATIENCE_S,))
        worker.start()
        (folder / "worker").write_text(str(worker.pid))
        time.sleep(PATIENCE_S)


@pytest.mark.slow
def test_slot__of_a_killed_process_whose_loader_worker_lives_on__is_free(tmp_path, started):
    process = FORK.Process(target=hold_and_fork, args=(tmp_path, Site(gpus=[0])))
    process.start()
    wait_until(lambda: (tmp_path / "worker").exists() and (tmp_path / "worker").read_text())
    started.append(psutil.Process(int((tmp_path / "worker").read_text())))
    wait_until(holders)
    process.kill()
    process.join()
    assert holders() == [] and started[0].is_running()


def launch_two(site: Site) -> None:
    with hold(site, 2, "run") as slots:
        local.run_processes(2, ["train"], slots)


def test_slots__of_a_killed_launcher__are_held_by_its_processes_one_each(tmp_path, started, monkeypatch):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$$ $CUDA_VISIBLE_DEVICES" > {tmp_path}/rank$RANK\nexec sleep {PATIENCE_S}\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    launcher = FORK.Process(target=launch_two, args=(Site(gpus=[6, 7]),))
    launcher.start()
    files = [tmp_path / f"rank{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    started.extend(psutil.Process(int(file.read_text().split()[0])) for file in files)
    assert {file.read_text().split()[1] for file in files} == {"6,7"}
    launcher.kill()
    launcher.join()
    assert [each.gpu for each in holders()] == ["6", "7"]
    started[0].kill()
    wait_until(lambda: [each.gpu for each in holders()] == ["7"])


def test_inherited_lock__is_held_until_the_process_ends_and_not_by_what_it_forks(monkeypatch):
    monkeypatch.setattr(gpus, "_held", [])
    with hold(Site(gpus=[0])) as slots:
        monkeypatch.setenv(gpus.INHERITED, str(os.dup(slots[0].lock.file.fileno())))
        gpus.keep_inherited_lock()
    assert len(holders()) == 1 and gpus.INHERITED not in os.environ
    gpus._let_go()
    assert holders() == []
