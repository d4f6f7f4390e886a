"""The line below Snakemake's messages that says how far the whole workflow is; in a log file, a message now and then.

Snakemake's own handler writes through `Terminal`, which takes the line away before each message and puts it back below.
A thread looks at the trainings and redraws; it takes about a hundredth of one core, however many jobs there are.
"""

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from snakemake.logging import ColorizingTextHandler, get_event, logger
from snakemake.settings.enums import Quietness
from snakemake.workflow import Workflow
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.study.resolve.entries import Graph
from workflow.console import INTERRUPTED
from workflow.planned import earlier_paces, planned_jobs, read_step
from workflow.progress import Progress

REDRAW_S = 1.0
LOOK_S, MOST_OF_A_CORE = 2.0, 0.01  # looks at trainings are at least this far apart, and take at most this share
FIRST_MESSAGE_S, MESSAGES_PER_DOUBLING, MOST_BETWEEN_S = 60.0, 10, 900.0  # in a log file
CLEAR_LINE = "\r\033[K"
LAST_COLUMN = 1  # stays empty: some terminals wrap as soon as it is written


class Terminal:
    """A stream with a line below what is written to it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.lock = threading.RLock()
        self.text = ""
        self.is_drawn = False
        self.is_at_start = True  # of a line: a message that is not finished must not be broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self.lock:
            self._take_away()
            self.is_at_start = text.endswith("\n") if text else self.is_at_start
            return self.stream.write(text)

    def flush(self) -> None:
        with self.lock:
            if self.text and not self.is_drawn:
                self._draw()
            self.stream.flush()

    def show(self, text: str) -> None:
        """Replace the line; an empty one takes it away."""
        with self.lock:
            self.text = text
            self._draw() if text else self._take_away()
            self.stream.flush()

    def width(self) -> int:
        """Columns of the line; 0 while another job has the terminal, as after Ctrl-Z and `bg`."""
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self.stream.fileno()) != os.getpgrp():
                return 0
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self.stream.fileno()).columns - LAST_COLUMN
        return 79

    def _draw(self) -> None:
        if self.is_at_start:
            self.stream.write(CLEAR_LINE + self.text)
            self.is_drawn = True

    def _take_away(self) -> None:
        if self.is_drawn:
            self.stream.write(CLEAR_LINE)
            self.is_drawn = False


class LiveLine(logging.Handler):
    """Follows Snakemake's events from the moment it says which jobs it will run."""

    def __init__(self, workflow: Workflow, graph_of: Callable[[], Graph]) -> None:
        super().__init__()
        self.workflow, self.graph_of = workflow, graph_of
        self.progress: Progress | None = None
        self.left: float | None = None
        self.next_look = self.next_message = 0.0
        self.terminal: Terminal | None = None
        self.guard = threading.Lock()  # of the progress, which the thread reads
        self.is_over = threading.Event()
        self.thread: threading.Thread | None = None

    def install(self) -> None:
        """Nothing is shown where Snakemake was asked to be quiet about progress, or where nothing is run."""
        settings = self.workflow.output_settings
        if not (settings.dryrun or {Quietness.ALL, Quietness.PROGRESS} & {*(settings.quiet or ())}):
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._follow(record, get_event(record), time.monotonic())
        except Exception as error:  # whatever goes wrong here, the jobs go on
            self._give_up(error)

    def _follow(self, record: logging.LogRecord, event: LogEvent | None, now: float) -> None:
        if event == LogEvent.RUN_INFO and self.progress is None:
            self._start(now)
        elif str(record.msg).startswith(INTERRUPTED):
            self._take_away()
        elif self.progress:
            with self.guard:
                self._note(self.progress, event, record.__dict__, now)

    @staticmethod
    def _note(progress: Progress, event: LogEvent | None, said: dict[str, Any], now: float) -> None:
        if event == LogEvent.JOB_STARTED:
            progress.begin(said["jobs"], now)
        elif event == LogEvent.JOB_FINISHED:
            progress.finish(said["job_id"], now)
        elif event == LogEvent.JOB_ERROR:
            progress.fail(said["jobid"], now)

    def _start(self, now: float) -> None:
        graph = self.graph_of()
        jobs = planned_jobs(self.workflow.dag, graph)
        self.results = graph.results
        self.progress = Progress(jobs, now, earlier_paces(graph, {job.rule for job in jobs.values()}))
        self.next_message = now + FIRST_MESSAGE_S
        for handler in logger.handlers:
            if isinstance(handler, ColorizingTextHandler) and handler.is_tty and os.environ.get("TERM") != "dumb":
                self.terminal = Terminal(handler.stream)
                handler.setStream(self.terminal)
        atexit.register(self.stop)
        self.thread = threading.Thread(target=self._keep_up_to_date, name="live line", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Take the line away for good, before the last messages."""
        self._take_away()
        logger.removeHandler(self)
        if self.thread and self.thread is not threading.current_thread():
            self.thread.join()

    def _take_away(self) -> None:
        self.is_over.set()
        if self.terminal:
            self.terminal.show("")

    def _keep_up_to_date(self) -> None:
        try:
            while not self.is_over.wait(REDRAW_S):
                with self.guard:
                    self._look(time.monotonic())
                self._tell(time.monotonic())
        except Exception as error:  # as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._take_away()
        logger.removeHandler(self)
        logger.warning(f"the line with the progress has ended: {type(error).__name__}: {error}")

    def _look(self, now: float) -> None:
        """Read how far trainings are, and estimate anew; seldom where that takes long."""
        if now < self.next_look or self.progress is None:
            return
        for each, job in self.progress.running.items():
            planned = self.progress.jobs[each]
            if planned.rule == "train_run" and (step := read_step(self.results, planned.name, self.graph_of())):
                job.see(step, now)
        self.left = self.progress.seconds_left(now)
        took = time.monotonic() - now
        self.next_look = now + max(LOOK_S, took / MOST_OF_A_CORE)

    def _tell(self, now: float) -> None:
        if self.progress is None:
            return
        if self.terminal:
            width = self.terminal.width()
            with self.guard:
                text = self.progress.line(now, self.left, width) if width > 0 else ""
            with self.terminal.lock:
                if not self.is_over.is_set():
                    self.terminal.show(text)
        elif now >= self.next_message:
            elapsed = now - self.progress.start
            self.next_message = now + min(MOST_BETWEEN_S, max(FIRST_MESSAGE_S, elapsed / MESSAGES_PER_DOUBLING))
            with self.guard:
                text = self.progress.line(now, self.left, width=200)
            logger.info(f"progress: {text}")
