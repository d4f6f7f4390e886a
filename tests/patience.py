"""How long tests wait for other processes."""

import time
from collections.abc import Callable

PATIENCE_S = 900  # for anything, on a busy machine
BUILD_S = 2 * PATIENCE_S  # for a whole workflow


def wait_until(condition: Callable[[], object], what: Callable[[], str] = lambda: "", every_s: float = 0.05) -> None:
    """Wait for the condition; `what` is shown when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {PATIENCE_S} s {what()}"
        time.sleep(every_s)
