"""The line below Snakemake's messages that says how far the whole workflow is; in a log file, a message now and then.

Snakemake's own handler writes through `Terminal`, which takes the line away before each message and puts it back below.
A thread checks the training runs and redraws; it takes about a hundredth of one core, however many jobs there are.
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
from workflow.progress import PlannedJob, Progress, Step

REDRAW_S = 1.0
LOOK_S, MOST_OF_A_CORE = 2.0, 0.01  # checks of training runs are at least this far apart, and take at most this share
FIRST_MESSAGE_S, MESSAGES_PER_DOUBLING, MOST_BETWEEN_S = 60.0, 10, 900.0  # in a log file
MOST_WAIT_S = 2.0  # at the end, for a thread that may be waiting for a file system
CLEAR_LINE = "\r\033[K"
USUAL_COLUMNS = 80
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
            columns = os.get_terminal_size(self.stream.fileno()).columns
            return (columns or USUAL_COLUMNS) - LAST_COLUMN  # 0 where nobody has told the terminal its size
        return USUAL_COLUMNS - LAST_COLUMN

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
        self.guard = threading.Lock()  # of the progress, which the thread reads; never held while a file is read
        self.is_over = threading.Event()
        self.thread: threading.Thread | None = None

    def install(self) -> None:
        """Nothing is shown where Snakemake was asked to be quiet about progress, or where nothing is run."""
        settings = self.workflow.output_settings
        if not (settings.dryrun or {Quietness.ALL, Quietness.PROGRESS} & {*(settings.quiet or ())}):
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_over.is_set():
            return
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
            self._note(self.progress, event, record.__dict__, now)

    def _note(self, progress: Progress, event: LogEvent | None, said: dict[str, Any], now: float) -> None:
        if event == LogEvent.JOB_STARTED:
            steps = {each: self._step_of(progress.jobs[each]) for each in said["jobs"] if each in progress.jobs}
            with self.guard:
                progress.begin(said["jobs"], now, {each: step.step for each, step in steps.items() if step})
        elif event == LogEvent.JOB_FINISHED:
            with self.guard:
                progress.finish(said["job_id"], now)
        elif event == LogEvent.JOB_ERROR:
            with self.guard:
                progress.fail(said["jobid"], now)

    def _step_of(self, job: PlannedJob) -> Step | None:
        return read_step(self.results, job.name, self.graph_of()) if job.rule == "train_run" else None

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
            self.thread.join(MOST_WAIT_S)

    def _take_away(self) -> None:
        self.is_over.set()
        if self.terminal:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the stream is closed
                self.terminal.show("")

    def _keep_up_to_date(self) -> None:
        try:
            while not self.is_over.wait(REDRAW_S):
                self._look(time.monotonic())
                self._tell(time.monotonic())
        except Exception as error:  # as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """The handler stays until `stop`: logging is going through the handlers, and would leave out the next one."""
        self._take_away()
        logger.warning(f"the line with the progress has ended: {type(error).__name__}: {error}")

    def _look(self, now: float) -> None:
        """Read how far training runs are, and estimate again; rarely where that takes long."""
        if now < self.next_look or self.progress is None:
            return
        with self.guard:
            running = [(each, job, self.progress.jobs[each]) for each, job in self.progress.running.items()]
        found = [(each, job, self._step_of(planned), time.monotonic()) for each, job, planned in running]
        with self.guard:
            for each, job, step, seen in found:
                if step and self.progress.running.get(each) is job:  # it has not ended meanwhile
                    job.see(step, seen)
            self.left = self.progress.seconds_left(time.monotonic())
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
