"""The line of progress where something is unusual: trainings that continue, terminals that are gone, slow disks."""

import json
import logging
import os
import threading
import time
from types import SimpleNamespace

import pytest
import snakemake.api  # noqa: F401 - before its workflow: they import each other
from patience import PATIENCE_S
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.plan import estimate
from pipeline.results import ScaleFolder
from workflow import live_line
from workflow.live_line import LiveLine, Terminal
from workflow.planned import images_ahead
from workflow.progress import PlannedJob, Progress, Running, Step, in_time

KIND = "train_run mjp"
CONFIG = {"optim": {"epochs": 4, "global_batch": 10}, "data": {"num_train": 100}}


def following(folder, jobs=1):
    """A line that follows so many trainings, without a Snakemake and without a thread."""
    runs = {f"mjp-{i}": SimpleNamespace(config=CONFIG) for i in range(jobs)}
    graph = SimpleNamespace(runs=runs, results=ScaleFolder(folder))
    line = LiveLine(SimpleNamespace(), lambda: graph)
    line.results = graph.results
    line.progress = Progress({i: PlannedJob(i, "train_run", f"mjp-{i}", KIND, 400.0) for i in range(jobs)}, 0.0)
    return line


def hear(line, event=None, message="", **said):
    line.handle(logging.makeLogRecord({"msg": message, "event": event, **said}))


def write_steps(line, *steps, name="mjp-0"):
    run = line.results.run(name)
    run.started.parent.mkdir(parents=True, exist_ok=True)
    run.started.write_text(json.dumps({"steps": 40}))
    run.metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))


class Gone:
    """A stream whose terminal is gone."""

    def __init__(self, error):
        self.error = error

    def write(self, text):
        raise self.error

    def flush(self):
        raise self.error


# Trainings that continue


def test_training__continued_after_a_crash__speed_counts_from_its_own_first_step():
    """Its files are those of the earlier attempt for 60 s; then the metrics are cut back to the checkpoint."""
    job = Running(since=0.0, stale=50)
    job.see(Step(50, 100), now=2.0)
    assert job.step is None and job.seconds_left() is None
    for now, step in [(60.0, 40), (61.0, 50), (62.0, 60)]:
        job.see(Step(step, 100), now)
    assert job.seconds_left() == pytest.approx(4.0)


def test_training__steps_cut_back_after_they_were_seen__counts_anew():
    job = Running(since=0.0)
    for now, step in [(1.0, 10), (2.0, 30), (30.0, 20)]:
        job.see(Step(step, 100), now)
    assert job.seconds_left() is None
    job.see(Step(30, 100), now=31.0)
    assert job.seconds_left() == pytest.approx(7.0)


def test_line__training_that_continues__does_not_take_the_old_step_for_a_new_one(tmp_path):
    line = following(tmp_path)
    write_steps(line, 10, 20)
    hear(line, LogEvent.JOB_STARTED, jobs=[0])
    line._look(time.monotonic())
    job = line.progress.running[0]
    assert job.stale == 20 and job.first is None
    write_steps(line, 10, 20, 21)
    line.next_look = 0.0
    line._look(time.monotonic())
    assert job.first[1] == 21


def test_training__with_nothing_left__says_nothing_of_the_pace_of_its_kind(monkeypatch):
    monkeypatch.setattr(estimate, "images_left", lambda graph, name: 0)
    size = images_ahead(SimpleNamespace(), "mjp-0")
    jobs = {0: PlannedJob(0, "train_run", "mjp-0", KIND, size), 1: PlannedJob(1, "train_run", "mjp-1", KIND, 400.0)}
    progress = Progress(jobs, 0.0, earlier={KIND: 0.1})
    progress.begin([0], 0.0)
    progress.finish(0, 30.0)
    assert progress.seconds_left(30.0) == pytest.approx(40.0)


def test_training__with_nothing_left__is_no_reason_to_tell_no_time():
    jobs = {0: PlannedJob(0, "train_run", "mjp-0", KIND, size=0.0)}
    progress = Progress(jobs, 0.0)
    progress.begin([0], 0.0)
    progress.running[0].see(Step(39, 40), now=1.0)
    progress.running[0].see(Step(40, 40), now=2.0)
    assert progress.seconds_left(2.0) == 0.0
    assert Progress(jobs, 0.0).seconds_left(0.0) == pytest.approx(2.0)


# Terminals


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file")])
def test_stop__terminal_is_gone__raises_nothing(tmp_path, error):
    line = following(tmp_path)
    line.terminal = Terminal(Gone(error))
    line.terminal.is_drawn = True
    line.stop()
    assert line.is_over.is_set()


def test_width__terminal_that_was_told_no_size__is_the_usual_one(monkeypatch):
    master, slave = os.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
    with os.fdopen(master), os.fdopen(slave, "w") as stream:
        assert os.get_terminal_size(slave).columns == 0
        assert Terminal(stream).width() == 79


# What Snakemake waits for


def test_look__file_system_that_hangs__events_are_not_held_up(tmp_path, monkeypatch):
    line = following(tmp_path, jobs=2)
    hear(line, LogEvent.JOB_STARTED, jobs=[0, 1])
    is_reading, goes_on = threading.Event(), threading.Event()

    def read_slowly(*_):
        is_reading.set()
        goes_on.wait(PATIENCE_S)
        return Step(10, 40)

    monkeypatch.setattr(live_line, "read_step", read_slowly)
    monkeypatch.setattr(live_line, "REDRAW_S", 0.01)
    line.next_message = float("inf")
    looking = threading.Thread(target=line._keep_up_to_date, daemon=True)
    looking.start()
    assert is_reading.wait(PATIENCE_S)
    finishing = threading.Thread(target=hear, args=(line, LogEvent.JOB_FINISHED), kwargs={"job_id": 0}, daemon=True)
    finishing.start()
    finishing.join(2.0)
    was_heard = 0 in line.progress.done
    line.is_over.set()
    goes_on.set()
    looking.join(PATIENCE_S)
    assert was_heard and list(line.progress.running) == [1]
    assert line.progress.running[1].step == Step(10, 40)


def test_emit__something_goes_wrong__later_handlers_get_the_record(tmp_path):
    line, later, heard = following(tmp_path), logging.Handler(), []
    later.emit = lambda record: heard.append(record.getMessage())
    old_handlers, old_level = logger.handlers, logger.level
    logger.handlers = [line, later]
    logger.setLevel(logging.INFO)
    try:
        logger.info("Execute 1 jobs...", extra={"event": LogEvent.JOB_STARTED})  # without its jobs
        logger.info("the next message")
        line.stop()
        assert logger.handlers == [later]
    finally:
        logger.handlers = old_handlers
        logger.setLevel(old_level)
    assert heard == ["the line with the progress has ended: KeyError: 'jobs'", "Execute 1 jobs...", "the next message"]


def test_line__three_thousand_trainings__takes_a_small_part_of_a_second():
    jobs = {i: PlannedJob(i, "train_run", f"mjp-{i}", KIND) for i in range(3_000)}
    progress = Progress(jobs, 0.0, running={i: Running(0.0, step=Step(5, 10, 4)) for i in jobs})
    start = time.process_time()
    lines = [progress.line(60.0, 600.0, width=200) for _ in range(10)]
    assert (time.process_time() - start) / 10 < 0.03
    assert len(lines[0]) <= 200 and lines[0].count("epoch") == 8


def test_time__almost_a_minute__is_a_minute():
    assert [in_time(seconds) for seconds in (59.4, 59.7, 3_590)] == ["59 s", "1 min", "1 h 0 min"]
