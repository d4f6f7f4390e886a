"""Fixtures that tests of several folders share."""

import os
import shutil

import pytest

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


SLOWEST = ["cluster", "workflow", "track", "engine"]  # folders; the others after them


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """For several processes (`pytest -n 2 --dist loadgroup`): the slowest first, each file in one process for the
    sake of its fixtures, and everything on the cluster in one, so that there is one cluster."""
    order = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(SLOWEST)))
    for item in items:
        folder = item.path.parent
        group = folder if folder.name == "cluster" else item.path
        item.add_marker(pytest.mark.xdist_group(str(group)))


@pytest.fixture(scope="session")
def browser():
    """A real headless Chromium; without one, browser tests are skipped on a laptop and fail in CI."""
    names = ["chromium", "chromium-browser", "google-chrome"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = f"no browser: none of {', '.join(names)} is on PATH; install one, e.g. apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    try:
        playwright = sync_playwright().start()
    except Exception as error:
        reason = f"the browser's driver does not start ({error}); on aarch64 it needs libatomic1"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
    yield chromium
    chromium.close()
    playwright.stop()
