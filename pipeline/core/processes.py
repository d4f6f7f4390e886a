"""How processes end: those that others start end with them, and all of them end quickly."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.util import Finalize
from threading import Thread
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # what a job may be asked to stop with


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Processes that are started meanwhile never receive a request to stop; this one receives it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """To be called in a process that works for another one.

    Where that was killed, it would wait for ever for somebody to give it work, or to read what it has found.
    """
    Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _end_children() -> None:
    """Workers of a loader that is still held when this process ends, by the traceback of an error, say.

    multiprocessing would send SIGTERM, which they ignore, and wait for them.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would say that they were killed
    for child in active_children():
        if child.daemon:
            child.kill()


Finalize(None, _end_children, exitpriority=0)  # before multiprocessing ends children


def leave(code: int) -> NoReturn:
    """End this process as an interpreter does, but without taking apart what was imported.

    With torch and timm that takes one second of CPU time, at the end of each of many short jobs.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as an interpreter has it
    os._exit(code)
