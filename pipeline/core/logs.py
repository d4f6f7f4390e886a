"""How every process of this program logs: to standard error, and from the main process of a run alone."""

import logging
import os
import sys


def start_logging() -> None:
    level = logging.INFO if is_main_process() else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
