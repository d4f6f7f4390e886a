"""Processes that others start end with them, however those end."""

import os
import time
from threading import Thread


def end_with_parent() -> None:
    """To be called in a process that works for another one.

    Where that was killed, it would wait for ever for somebody to give it work, or to read what it has found.
    """
    Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
