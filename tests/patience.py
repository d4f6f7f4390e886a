"""How long tests wait for what other processes do."""

import time
from collections.abc import Callable

PATIENCE_S = 900  # for anything, on a busy machine


def wait_until(condition: Callable[[], object], what: Callable[[], str] = lambda: "", every_s: float = 0.05) -> None:
    """`what` is said when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {PATIENCE_S} s {what()}"
        time.sleep(every_s)
