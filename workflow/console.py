"""What the terminal shows of Snakemake: long dry runs are cut short, and Ctrl-C is not reported as errors.

Snakemake's log file still has everything.
"""

import logging
from collections.abc import Callable

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.logging import ColorizingTextHandler, get_event, logger
from snakemake_interface_logger_plugins.common import LogEvent

NUM_LISTED = 20  # jobs of a dry run
INTERRUPTED = "Terminating processes on user request"  # how Snakemake's message begins
END_OF_DRY_RUN = "This was a dry-run"
NOTES = "provenance/metadata so that it in part cannot be used"  # Snakemake's own, which nothing here depends on


class Console(logging.Filter):
    """Sees every message before the terminal does."""

    def __init__(self, is_dry_run: bool, lists_all: bool, when_idle: Callable[[], None]) -> None:
        super().__init__()
        self.is_cut = is_dry_run and not lists_all
        self.when_idle = when_idle if not is_dry_run else lambda: None  # called when there is nothing to do
        self.num_jobs = 0
        self.was_interrupted = False

    def install(self) -> None:
        for handler in logger.handlers:
            if isinstance(handler, ColorizingTextHandler):
                handler.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text == NOTHING_TO_BE_DONE_MSG:
            self.when_idle()
        if NOTES in text:
            return False
        if self.is_cut and get_event(record) == LogEvent.JOB_INFO:
            self.num_jobs += 1
            return self.num_jobs <= NUM_LISTED
        if self.num_jobs > NUM_LISTED and text.startswith(END_OF_DRY_RUN):
            record.msg = (
                f"{self.num_jobs - NUM_LISTED} more jobs; -n -p lists all of them, with their commands.\n{text}"
            )
        if text.startswith(INTERRUPTED):
            self.was_interrupted = True
        # A job that was told to stop did not fail.
        return not (self.was_interrupted and record.levelno >= logging.ERROR)
