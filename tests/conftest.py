"""Fixtures that tests of several folders share."""

import gc
import itertools
import os
import random
import re
import shutil
import signal
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from rewritten_once import find_in, rewrite_all
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


MAX_WORKERS = 4  # each takes up to 2 GB
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each worker and of every process that it starts

# Folders and files that start first: a long one at the end would leave the other processes idle. The other files of
# workflow/ come late, when test_workflow.py has finished the small project that they share.
SLOWEST = ["cluster", "workflow/test_workflow.py", "engine/test_kill.py", "unit/test_methods.py", "engine", "tracking"]
SLOWEST += ["workflow"]
REWRITTEN = pytest.StashKey[str]()
ALL_SLOW = re.compile(r"^pytestmark = .*\bmark\.slow\b", re.M)


# A shell that starts the tests in the background makes them ignore Ctrl-C, and every process that they start as well.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle",
        nargs="?",
        const="new",
        metavar="SEED",
        help="shuffle the tests inside a random third of the files, or with `all` inside every file; SEED repeats that",
    )


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.option.shuffle = config.workerinput["shuffle"]
        find_in(config.workerinput["rewritten"])
    elif config.option.shuffle in ("new", "all"):
        config.option.shuffle = config.option.shuffle.replace("new", "third") + f"-{random.randrange(10**6)}"
    elif not re.fullmatch(r"(third|all)-\d+", config.option.shuffle or "all-0"):
        raise pytest.UsageError(f"--shuffle={config.option.shuffle}: expected all, or a seed such as third-123456")
    config.option.loadscopereorder = False  # the order of files is that of SLOWEST
    os.fsync = lambda descriptor: None  # a quarter of the fast part's time; no test cuts the power


def pytest_xdist_setupnodes(config, specs):
    config.stash[REWRITTEN] = rewrite_all(config)


def pytest_configure_node(node):
    """The processes of xdist collect the tests in one order."""
    node.workerinput |= {"shuffle": node.config.option.shuffle, "rewritten": node.config.stash[REWRITTEN]}


def pytest_unconfigure(config):
    if folder := config.stash.get(REWRITTEN, ""):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_report_header(config):
    seed = config.option.shuffle
    return f"shuffled: --shuffle={seed} repeats the order of these tests" if seed else None


def pytest_ignore_collect(collection_path: Path, config):
    """The fast part does not import a file whose tests are all slow."""
    if "not slow" in config.option.markexpr and collection_path.suffix == ".py":
        return bool(ALL_SLOW.search(collection_path.read_text())) or None
    return None


def pytest_collection():
    """What is imported and collected stays to the end: the garbage collector need not look at it again and again."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # seldom: with the usual ones it takes a tenth of all tests' time
    gc.enable()


def pytest_collection_modifyitems(config, items):
    if seed := config.option.shuffle:
        shuffle(items, seed)
    places = {path: place_of(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: places[item.path])


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Change the order inside files: tests that depend on each other's traces then fail."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for path, group in files.items():
        draw = random.Random(f"{seed} {path.name}")
        if draw.random() < 1 / 3 or seed.startswith("all-"):
            draw.shuffle(group)
    items[:] = itertools.chain.from_iterable(files.values())


def place_of(file: Path) -> int:
    path = file.relative_to(Path(__file__).parent)
    return next((place for place, start in enumerate(SLOWEST) if path.is_relative_to(start)), len(SLOWEST))


class ByFile(LoadScopeScheduling):
    """Each file in one process for the sake of its fixtures, and all of tests/cluster in one: there is one cluster.

    These tests mostly wait for SLURM, so the last process starts with them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::")[0])
        return str(file.parent if file.parent.name == "cluster" else file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scopes = list(self.workqueue)
        if node is self.nodes[-1]:
            scopes.sort(key=lambda scope: Path(scope).name != "cluster")
        else:
            scopes.sort(key=lambda scope: Path(scope).name == "cluster")
        self.workqueue.move_to_end(scopes[0], last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


def pytest_xdist_auto_num_workers(config):
    """One for each core, at most four, and one that waits for the cluster, whose tests are all slow."""
    has_cluster = "not slow" not in config.option.markexpr
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS) + has_cluster


@pytest.fixture(scope="session")
def browser():
    """A real headless Chromium; without one, browser tests are skipped on a laptop and fail in CI."""
    names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = f"no browser: none of {', '.join(names)} is on PATH; install one, e.g. apt-get install {names[0]}"
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
