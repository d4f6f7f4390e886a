"""What a SLURM job leaves behind, and what is read from it: how it ended, and the end of its logs."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import yaml
from tiny_runs import tiny_config

from pipeline.core.errors import DataError, LaunchError
from pipeline.core.files import write_json, write_text
from pipeline.engine.signals import StopRequest
from pipeline.launch import job
from pipeline.launch.job import Outcome, TrainJob, address_of, log_tail, read_outcome, take_place
from pipeline.launch.slurm import JobRecord, waiting_job
from pipeline.results import RunFolder
from pipeline.results.records import Inputs

INPUTS = Inputs(data="a" * 64, init=None)


@pytest.fixture
def paths(tmp_path):
    return RunFolder(tmp_path / "demo", "run")


def wrote(folder, job, process, text):
    path = folder / f"{job}_{process}_log.out"
    path.write_text(text)
    return path


def test_log_tail__of_twelve_processes__has_the_first_three_by_number(tmp_path):
    """By text, 10 and 11 would come before 2."""
    paths = [wrote(tmp_path, "7", process, f"I am {process}\n") for process in range(12)]
    wrote(tmp_path, "77", 0, "of another job\n")
    said = "\n".join(f"--- {paths[process]}\nI am {process}" for process in range(3))
    assert log_tail(tmp_path, "7") == said


def test_log_tail__of_long_and_empty_logs__has_the_last_lines_of_those_that_wrote_any(tmp_path):
    wrote(tmp_path, "7", 0, "\n\n")
    path = wrote(tmp_path, "7", 1, "".join(f"line {number}\n" for number in range(50)) + "\n\n")
    assert log_tail(tmp_path, "7", num_lines=2) == f"--- {path}\nline 48\nline 49"
    assert len(log_tail(tmp_path, "7").splitlines()) == 21


def test_log_tail__without_any_log__names_the_folder(tmp_path):
    assert log_tail(tmp_path, "7") == f"(nothing in {tmp_path})"


def ended(paths, job, code=0):
    outcome = Outcome(job=job, start=0, rank=0, code=code, why="time limit", step=3)
    write_json(paths.outcome, outcome.model_dump())
    return outcome


def test_outcome__of_an_earlier_job__is_not_that_of_this_one(paths):
    assert read_outcome(paths, "7") is None
    outcome = ended(paths, "7")
    assert read_outcome(paths, "7") == outcome and read_outcome(paths, "77") is None


def test_waiting_job__is_the_one_submitted_until_it_has_ended_or_the_run_is_finished(paths):
    assert waiting_job(paths) is None
    for number in (None, "7"):  # without a job: a submission that has not come back
        write_json(paths.job, JobRecord(job=number, time=1.0, inputs=INPUTS).model_dump())
        assert waiting_job(paths) == number
    for number, code in (("6", 0), ("7", 75)):  # another one; one that may be back in the queue
        ended(paths, number, code)
        assert waiting_job(paths) == "7"
    for code in (0, 1):
        ended(paths, "7", code)
        assert waiting_job(paths) is None
    ended(paths, "6")
    paths.finished.touch()
    assert waiting_job(paths) is None


# Inside the job


@pytest.mark.parametrize(
    ("rank", "code", "stopped_by", "last_step", "exit_code", "leaves_word", "requeued"),
    [
        (0, 0, None, 9, 0, True, []),
        (0, 75, signal.SIGUSR2, 9, 75, True, ["7"]),
        (0, 75, signal.SIGUSR2, 3, 75, True, []),
        (0, 75, signal.SIGTERM, 9, 75, True, []),
        (0, 1, None, 9, 1, True, []),
        (1, 0, None, 9, 0, False, []),
        (1, 75, signal.SIGUSR2, 9, 0, False, []),
        (1, 1, None, 9, 1, True, []),
    ],
    ids=[
        "main process finished",
        "main process before the time limit",
        "main process before the time limit, no further than the job before",
        "main process told to end",
        "main process failed",
        "another finished",
        "another before the time limit",
        "another failed",
    ],
)
def test_job__end_of_a_process__is_told_once_and_requeued_by_the_main_one_before_a_time_limit(
    paths, monkeypatch, rank, code, stopped_by, last_step, exit_code, leaves_word, requeued
):
    """A job that got no further leaves it to the launcher, which counts: it would come back for ever."""

    def train(self):
        checkpoint(last_step)
        return code

    def checkpoint(step):
        write_text(paths.state / f"step-{step:09d}-0123456789abcdef.pt", "")

    checkpoint(3)
    stop, asked = StopRequest(), []
    stop.signal, stop.why = stopped_by, "told to" if stopped_by else ""
    stop.listen = lambda: stop
    monkeypatch.setattr(job, "STOP", stop)
    monkeypatch.setattr(job, "requeue", asked.append)
    monkeypatch.setattr(TrainJob, "_train", train)
    monkeypatch.setattr("pipeline.launch.job.leave", sys.exit)
    for name, value in {"RANK": rank, "SLURM_JOB_ID": 7, "SLURM_RESTART_COUNT": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit) as end:
        TrainJob(paths, "local")()
    expected = Outcome(job="7", start=2, rank=rank, code=code, why=stop.why, step=last_step)
    assert end.value.code == exit_code and asked == requeued
    assert read_outcome(paths, "7") == (expected if leaves_word else None)


def test_job__trains_what_was_submitted__and_a_mistake_of_the_user_is_one_line_and_exit_code_1(
    paths, monkeypatch, caplog
):
    def refuse(config, folder, site, stop):
        assert (config, folder, os.environ["PATCHWORK_SITE"]) == ({"seed": 3}, paths, "slurm")
        raise DataError("the images are gone")

    write_text(paths.submitted, "seed: 3\n")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("PATCHWORK_SITE", "local")
    monkeypatch.setattr(job, "take_place", lambda: None)
    monkeypatch.setattr(job, "train_here", refuse)
    assert TrainJob(paths, "slurm")._train() == 1
    assert caplog.messages == ["DataError: the images are gone"]
    command = ["pipeline", "train", "--scale", "demo", "--site", "slurm", "--config", str(paths.submitted)]
    assert sys.argv == command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), 1, "DeviceMemoryError: run "),
        (ValueError("a bug"), 1, ""),
        (dist.DistBackendError("NCCL timed out"), 75, "another process of the run was lost"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"), 75, "another process of the run"),
    ],
    ids=["out of memory", "a bug", "nccl", "gloo"],
)
def test_job__that_raises_anything__leaves_an_outcome(paths, monkeypatch, error, code, message):
    def fail(*arguments):
        raise error

    write_text(paths.submitted, yaml.safe_dump(tiny_config()))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(job, "STOP", SimpleNamespace(listen=lambda: None, signal=None, why=""))
    monkeypatch.setattr(job, "take_place", lambda: None)
    monkeypatch.setattr("pipeline.engine.train.train_run", fail)
    monkeypatch.setattr(job, "leave", sys.exit)
    for name, value in {"PATCHWORK_SITE": "local", "RANK": "0", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        TrainJob(paths, "local")()
    outcome = read_outcome(paths, "7")
    assert outcome.code == code and outcome.message.startswith(message) and bool(outcome.message) == bool(message)


def test_outcome__of_processes_that_end_one_after_the_other__is_that_of_the_first_that_failed(paths, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    found = []
    for start, rank, code in [(0, 0, 75), (0, 1, 1), (0, 0, 1), (1, 2, 1)]:  # in the second start, another one
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(start))
        TrainJob(paths, "local")._leave_outcome(code)
        found.append(read_outcome(paths, "7").rank)
    assert found == [0, 1, 1, 2]


PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def placed(monkeypatch, starts=0, **changes):
    """What torch is told in process 3 of 4, on the second of two nodes, or as changed."""
    facts = {"global_rank": 3, "local_rank": 1, "num_tasks": 4, "num_nodes": 2, "hostnames": ["n1", "n2"]}
    monkeypatch.setattr("submitit.JobEnvironment", lambda: SimpleNamespace(raw_job_id="7", **facts | changes))
    monkeypatch.setattr(job, "resolves", lambda name: True)
    monkeypatch.setattr(job, "start_logging", lambda: None)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(starts))
    for name in PLACES:
        monkeypatch.setenv(name, "")
    take_place()
    return [os.environ[name] for name in PLACES]


def test_place__of_a_process_on_two_nodes__is_among_all_of_them_and_they_meet_on_the_first(monkeypatch):
    assert placed(monkeypatch)[:4] == ["3", "1", "4", "n1"]
    assert placed(monkeypatch, num_nodes=1, hostnames=["n1"])[3] == "127.0.0.1"
    assert placed(monkeypatch, global_rank=0, local_rank=0, num_tasks=1) == ["0", "0", "1", "", ""]


def test_place__each_start_of_a_job__has_another_port(monkeypatch):
    ports = {int(placed(monkeypatch, starts)[4]) for starts in range(50)}
    assert len(ports) == 50 and min(ports) >= 20000 and max(ports) < 30000


@pytest.mark.parametrize(
    ("known", "found"), [(["n1", "10.0.0.1"], "n1"), (["10.0.0.1"], "10.0.0.1"), ([], None)], ids=str
)
def test_address__of_a_node__is_its_name_or_slurms_address_or_an_error_that_names_both(monkeypatch, known, found):
    answer = subprocess.CompletedProcess([], 0, "NodeName=n1 Arch=x86_64\n   NodeAddr=10.0.0.1 NodeHostName=n1\n", "")
    monkeypatch.setattr(subprocess, "run", lambda command, **options: answer)
    monkeypatch.setattr(job, "resolves", lambda name: name in known)
    if found:
        assert address_of("n1") == found
    else:
        with pytest.raises(LaunchError, match=r"node n1 does not resolve, and SLURM's address of it is 10\.0\.0\.1;"):
            address_of("n1")
