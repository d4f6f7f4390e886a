"""Fixtures that tests of several folders share."""

import os
import shutil
import signal
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# Folders and files that start first: a long one at the end would leave the other processes idle. The other files of
# workflow/ come late, when test_workflow.py has finished the small project that they share.
SLOWEST = ["cluster", "workflow/test_workflow.py", "engine/test_kill.py", "unit/test_methods.py", "engine", "track"]
SLOWEST += ["workflow"]


# A shell that starts the tests in the background makes them ignore Ctrl-C, and every process that they start as well.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    items.sort(key=place_of)


def place_of(item: pytest.Item) -> int:
    path = item.path.relative_to(Path(__file__).parent)
    return next((place for place, start in enumerate(SLOWEST) if path.is_relative_to(start)), len(SLOWEST))


class ByFile(LoadScopeScheduling):
    """Each file in one process for the sake of its fixtures, and all of tests/cluster in one: there is one cluster."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::")[0])
        return str(file.parent if file.parent.name == "cluster" else file)


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


@pytest.fixture(scope="session")
def browser():
    """A real headless Chromium; without one, browser tests are skipped on a laptop and fail in CI."""
    names = ["chromium", "chromium-browser", "google-chrome"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = f"no browser: none of {', '.join(names)} is on PATH; install one, e.g. apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    others = set(psutil.Process().children())
    try:
        playwright = sync_playwright().start()
    except Exception as error:
        reason = f"the browser's driver does not start ({error}); on aarch64 it needs libatomic1"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    driver = set(psutil.Process().children()) - others
    chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
    yield chromium
    with ended_after(60, driver):
        chromium.close()
        playwright.stop()


@contextmanager
def ended_after(seconds: float, processes: set[psutil.Process]):
    """Ends these processes if what is inside waits longer for them: closing a browser has no time limit of its own."""
    timer = threading.Timer(seconds, lambda: [process.kill() for process in processes])
    timer.daemon = True
    timer.start()
    with suppress(Exception):
        yield
    timer.cancel()
