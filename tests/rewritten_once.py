"""The assertions of all test files, rewritten once for all processes of a session.

pytest rewrites every test file to show more of a failed assertion. Each process of xdist would do that by itself, for
some seven seconds, as all of them import the same file at the same time. So the process that starts them does it first,
on all cores. They find the result where pytest keeps it, or, where Python may not write bytecode beside the sources
(PYTHONDONTWRITEBYTECODE), in a folder of the session.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parent


def rewrite_all(config: pytest.Config) -> str:
    """Rewrite the files that will be collected; returns the folder for `find_in`, empty where none is needed."""
    folder = tempfile.mkdtemp(prefix="patchwork-rewritten-") if sys.dont_write_bytecode else ""
    find_in(folder)
    chosen = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    files = [path for pattern in ("test_*.py", "conftest.py") for path in sorted(TESTS.rglob(pattern))]
    files = [path for path in files if any(path.is_relative_to(each) for each in chosen)]
    files = [path for path in files if not config.hook.pytest_ignore_collect(collection_path=path, config=config)]
    cores = len(os.sched_getaffinity(0))
    children = [fork_to_rewrite(files[first::cores], config) for first in range(cores)]
    for child in children:
        os.waitpid(child, 0)  # a file that cannot be rewritten fails again where it is collected
    return folder


def find_in(folder: str) -> None:
    """Make pytest look for rewritten tests in this folder."""
    if folder:
        beside = rewrite.get_cache_dir
        rewrite.get_cache_dir = lambda path: cache_dir(path, Path(folder)) or beside(path)


def cache_dir(path: Path, folder: Path) -> Path | None:
    return folder / path.parent.relative_to(TESTS) if path.is_relative_to(TESTS) else None


def fork_to_rewrite(files: list[Path], config: pytest.Config) -> int:
    child = os.fork()
    if child == 0:
        try:
            for path in files:
                keep_rewritten(path, config)
        finally:
            os._exit(0)
    return child


def keep_rewritten(path: Path, config: pytest.Config) -> None:
    pyc = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, pyc) is None:
        source_hash, code = rewrite._rewrite_test(path, config)
        pyc.parent.mkdir(parents=True, exist_ok=True)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, pyc)
