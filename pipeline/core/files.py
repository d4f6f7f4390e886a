"""Writing files so that a reader sees the old one or the new one, never half of it; locks, digests, disk space."""

import fcntl
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pipeline.core.config import CONFIGS
from pipeline.core.errors import DataError, LaunchError, PatchworkError

log = logging.getLogger(__name__)

ROOM = 16e6  # bytes for what is small beside weights: metrics, logs, records
LOCKS = "PATCHWORK_LOCKS"  # the variable that names the folder of this project's lock files, where the site has one
_HELD = ExitStack()


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write through a temporary file: fsync, rename, fsync the folder."""
    temporary = draft_of(path)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def draft_of(path: Path) -> Path:
    """A name for a file or a folder that is being written. No other process has it, on this machine or another."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


class LockFile:
    """A lock between processes, with the name of its holder in it.

    The system releases it when the holder ends, however it ends. One who waits may ask the holder to give way.
    """

    def __init__(self, path: Path, holder: str = "") -> None:
        self.path = path = _place_of_lock(path)
        self.holder = holder or f"process {os.getpid()} on {socket.gethostname()}"
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file, self.wanted = path.open("a"), _wanted(path).open("a")

    def take(self, within_s: float = 0, is_asking: bool = False) -> bool:
        """Whether it is ours now; an asking process lets the holder know (`is_wanted`) until it has it or closes."""
        deadline = time.monotonic() + within_s
        while not _locked(self.file):
            if is_asking:
                _locked(self.wanted)
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)
        fcntl.flock(self.wanted, fcntl.LOCK_UN)
        with explained(self.path):
            self.file.truncate(0)
            self.file.write(self.holder)
            self.file.flush()
        return True

    def release(self) -> None:
        """Give it back; it can be taken again."""
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def close(self) -> None:
        self.file.close()
        self.wanted.close()


@contextmanager
def held(path: Path, what: str, patience_s: float = 0) -> Iterator[None]:
    """Hold a lock file while the block runs; with patience, ask its holder to give way and wait for it."""
    with closing(LockFile(path)) as lock:
        if not lock.take(patience_s, is_asking=patience_s > 0):
            raise LaunchError(
                f"another process is working on {what} ({holder_of(path)} holds {lock.path}); wait for it or stop it"
            )
        yield


@contextmanager
def held_in_turn(path: Path, what: str) -> Iterator[bool]:
    """Hold a lock file while the block runs, after its holder if it has one; yields whether there was a wait."""
    with closing(LockFile(path)) as lock:
        has_waited = not lock.take()
        if has_waited:
            log.info("%s is working on %s; waiting for it", holder_of(path), what)
            lock.take(within_s=math.inf)
        yield has_waited


def lock_of(folder: Path) -> Path:
    """The lock of a folder lies next to it: a folder may be replaced, and what it holds may be listed."""
    return folder.with_name(f".{folder.name}.lock")


def hold_for_life(path: Path, what: str) -> None:
    """Hold a lock file until this process ends."""
    # A look at whether it is held takes it for a moment.
    _HELD.enter_context(held(path, what, patience_s=2))


def holder_of(path: Path) -> str:
    """The process that holds a lock file, or held it last."""
    try:
        return _place_of_lock(path).read_text() or "some process"
    except OSError:
        return "some process"


def is_wanted(path: Path) -> bool:
    """Whether another process asks the holder of this lock to give way."""
    return is_held(_wanted(path))


def is_held(path: Path) -> bool:
    """Whether some process holds this lock file now."""
    path = _place_of_lock(path)
    if not path.exists():
        return False
    with path.open("rb") as file:  # also where nothing can be written
        return not _locked(file, fcntl.LOCK_SH)


def _place_of_lock(path: Path) -> Path:
    """Where a lock file lies: as given, or, of this project, at the same path below the site's folder for locks.

    Locks elsewhere, such as that of a cache on a node's own disk, do not concern other nodes.
    """
    folder, path = os.environ.get(LOCKS), path.absolute()
    return Path(folder, *path.parts[1:]) if folder and path.is_relative_to(CONFIGS.parent) else path


def _locked(file: IO, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wanted(path: Path) -> Path:
    return path.with_name(f"{path.name}.wanted")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """A full disk or a missing permission, while writing this file, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise PatchworkError(
            f"could not write {path}: {error.strerror}; free space or fix the permissions, then start again: "
            "nothing that was there before is lost"
        ) from error


def remove(path: Path) -> None:
    """Delete a file if there is one."""
    with explained(path):
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Delete a folder if there is one; nobody sees half of it."""
    draft = draft_of(path)
    with explained(path):
        if path.exists():
            path.rename(draft)
            shutil.rmtree(draft)


def remove_drafts(path: Path) -> None:
    """Delete what killed processes left of a folder that they wrote; for the one who holds its lock."""
    for draft in path.parent.glob(f".{path.name}.*.tmp"):
        shutil.rmtree(draft, ignore_errors=True)


def require_space(folder: Path, num_bytes: float, what: str) -> None:
    """Refuse to begin what the disk has no room for: it would fail later, and its log could not say why."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free, needed = shutil.disk_usage(nearest).free, num_bytes + ROOM
    if free < needed:
        raise PatchworkError(
            f"{folder} has {free / 1e6:,.1f} MB of free space, {what} needs {needed / 1e6:,.1f} MB; free some, then "
            "start again: nothing that was there before is lost"
        )


def write_text(path: Path, text: str) -> None:
    write_atomic(path, text.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, sort_keys=False, allow_nan=False) + "\n")


def write_cache(path: Path, text: str, what: str) -> None:
    """Write what only saves time; where that is not possible, as among results of somebody else, say so and go on."""
    try:
        write_text(path, text)
    except PatchworkError as error:
        log.warning("%s are not kept for the next command: %s", what, error)


SEAL = ',\n  "digest": "'


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """JSON whose last entry is a digest of the others: who changes a number by hand, or half of a file, is noticed."""
    text = json.dumps(content, indent=2, allow_nan=False).removesuffix("\n}")
    write_text(path, f'{text}{SEAL}{_digest_of_text(text)}"\n}}\n')


def read_sealed(path: Path) -> bytes:
    """The JSON of a file without its digest, which is compared; a file from before there were digests has none."""
    content = path.read_bytes()
    text, seal, known = content.decode(errors="replace").rpartition(SEAL)
    if not seal:
        return content
    if known != f'{_digest_of_text(text)}"\n}}\n':
        raise DataError(f"{path} was changed or damaged after it was written; run the workflow to compute it again")
    return f"{text}\n}}".encode()


def _digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file; what follows its last newline is still being written and left out."""
    return parse_lines(path.read_bytes(), path)


def parse_lines(content: bytes, path: Path, first: int = 1) -> list[dict[str, Any]]:
    """The records of a part of a JSONL file, of which `first` is the number of the first line."""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=first):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise DataError(
                f"{path}, line {number}: found {line[:80].decode(errors='replace')!r}, expected one JSON object; "
                "restore the file"
            ) from None
    return records


def last_line(path: Path) -> str:
    """The last complete line of a text file that another process may be writing; empty without one."""
    lines = read_end(path, 100_000).split(b"\n")[:-1] if path.exists() else []
    return lines[-1].decode() if lines else ""


def read_end(path: Path, most_bytes: int) -> bytes:
    """The last bytes of a file, which may begin inside a line."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read()


def digest(path: Path) -> str | None:
    """SHA-256 of a file, or None without one."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Digests:
    """SHA-256 of files; one is read again only when `stat_stamp` has changed since it was read last.

    `path` keeps them from one process to the next. Without it every file is read once.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.kept: dict[str, list] = {}
        self.has_changed = False
        if path and path.exists():
            with suppress(ValueError):
                self.kept = json.loads(path.read_text())

    def of(self, path: Path) -> str | None:
        try:
            stamp = stat_stamp(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        key = str(path)
        known = self.kept.get(key)
        if known is None or known[:-1] != stamp:
            self.kept[key] = known = [*stamp, digest(path)]
            self.has_changed = True
        return known[-1]

    def keep_state(self, key: str, state: list) -> None:
        """Something else that was looked at and need not be again while it is in this state."""
        self.kept[key], self.has_changed = state, True

    def keep(self) -> None:
        """For the next process that asks."""
        if self.path and self.has_changed:
            write_json(self.path, self.kept)


_ASKED_HERE = Digests()


def digest_by_stat(path: Path) -> str | None:
    """SHA-256 of a file that is asked for often in one process."""
    return _ASKED_HERE.of(path)


def stat_stamp(path: Path) -> list[int]:
    """What changes with a file's content: also where another file took its place, or its time was set back."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
