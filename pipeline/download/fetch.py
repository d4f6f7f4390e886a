"""Downloading one file so that nothing is received twice: a partial file is continued after any interruption.

What was received lies in NAME.part. NAME.part.json has the server's mark of this version of the file (ETag, or the date
of its last change), so that a file that has changed, or a server without ranges, starts over. If a server sends no such
mark, only the checksum notices a file that changed between two attempts.
"""

import errno
import hashlib
import http.client
import json
import logging
import os
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

from tqdm import tqdm

from pipeline.core.errors import DataError
from pipeline.core.files import explained, remove, write_json

log = logging.getLogger(__name__)

CHUNK = 1 << 18
TIMEOUT_S = 30.0
ATTEMPTS = 5  # in a row that bring nothing
# Some servers answer the name of Python's own client with 403.
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; Patchwork)", "Accept-Encoding": "identity"}
TRANSIENT_STATUS_CODES = {408, 425, 429, 500, 502, 503, 504}
RANGE_NOT_SATISFIABLE = 416
NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED)


@dataclass(frozen=True)
class Download:
    """A file of a server, and where it goes."""

    address: str
    target: Path
    size: int | None  # that the server must offer; None: any
    advice: str  # what to do where it cannot be had

    @property
    def part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def note(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    @property
    def received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


class _Interrupted(Exception):
    """The connection ended early; the next attempt continues."""


def fetch(download: Download, progress: bool = True, pause_s: float = 2.0) -> None:
    """Receive a file, over as many connections as it takes; `pause_s` is between two of them, more after failures."""
    attempt = 0
    while True:
        before = download.received
        try:
            _receive(download, progress)
            break
        except _Interrupted as error:
            attempt = 0 if download.received > before else attempt + 1
            if attempt == ATTEMPTS:
                raise DataError(
                    f"{download.address}: {error}; {ATTEMPTS} attempts in a row brought no more than the "
                    f"{download.received:,} bytes that are here. Run the same command later: it continues there"
                ) from None
            log.info("%s: %s; continuing after %s bytes", download.target.name, error, f"{download.received:,}")
            time.sleep(pause_s * 2**attempt)
    with explained(download.target):
        os.replace(download.part, download.target)
    remove(download.note)


def check_digest(path: Path, expected: str, advice: str, progress: bool = True) -> None:
    """Compare a file with its checksum, such as md5:0a1b; a wrong file is deleted."""
    kind, _, wanted = expected.partition(":")
    state = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file, _bar(f"verify {path.name}", path.stat().st_size, 0, progress) as bar:
        while chunk := file.read(CHUNK):
            state.update(chunk)
            bar.update(len(chunk))
    if state.hexdigest() != wanted:
        remove(path)
        raise DataError(
            f"{path.name}: found {kind} {state.hexdigest()}, expected {wanted}: damaged, or another file, so it was "
            f"deleted. Run the same command again; if the checksum is wrong again, {advice}"
        )


def _receive(download: Download, progress: bool) -> None:
    """One connection: append to the partial file, or start over where the server sends the whole file."""
    total: int | None = None
    try:
        # A new opener reads the proxies of today's environment.
        with build_opener().open(_request(download), timeout=TIMEOUT_S) as response:
            start, total = _start_and_total(download, response)
            if total is not None and download.size is not None and total != download.size:
                raise DataError(
                    f"{download.address}: the server offers {total:,} bytes, expected {download.size:,}: this is "
                    f"another file, or an error page; {download.advice}"
                )
            with explained(download.part), download.part.open("ab" if start else "wb") as file:
                if not start:
                    write_json(download.note, _mark_of(response))
                _copy(response, file, _bar(download.target.name, total, start, progress))
    except HTTPError as error:
        _explain_status(download, error)
    except (URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        _explain_connection(download, error)
    if total is not None and download.received < total:
        raise _Interrupted(f"the connection ended after {download.received:,} of {total:,} bytes")


def _request(download: Download) -> Request:
    headers = dict(HEADERS)
    if have := download.received:
        headers["Range"] = f"bytes={have}-"
        if mark := _known_mark(download.note):
            headers["If-Range"] = mark
    return Request(download.address, headers=headers)


def _mark_of(response: Any) -> dict[str, str]:
    """What the server says of this version of the file; a weak ETag does not stand for its bytes."""
    etag = response.headers.get("ETag", "")
    return {"mark": etag if etag.startswith('"') else response.headers.get("Last-Modified", "")}


def _known_mark(note: Path) -> str:
    try:
        return str(json.loads(note.read_bytes())["mark"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _start_and_total(download: Download, response: Any) -> tuple[int, int | None]:
    """Where in the file this answer begins, and the size of the whole file where the server tells it."""
    length = response.headers.get("Content-Length")
    if response.status != http.client.PARTIAL_CONTENT:
        return 0, int(length) if length else None
    start, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    if start.partition("-")[0] != str(download.received):
        remove(download.part)
        raise _Interrupted("the server sent another part of the file than was asked for")
    return download.received, int(total) if total.isdigit() else None


def _copy(response: Any, file: IO[bytes], bar: tqdm) -> None:
    """Write what comes; only errors of writing leave this function as those of the disk."""
    with bar:
        while chunk := _next(response):
            file.write(chunk)
            bar.update(len(chunk))


def _next(response: Any) -> bytes:
    try:
        return response.read1(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"the connection broke ({_words(error)})") from None


def _explain_status(download: Download, error: HTTPError) -> None:
    """An answer that is no file, as what to do about it."""
    if error.code == RANGE_NOT_SATISFIABLE and download.received:
        if download.received == download.size:
            return  # it was complete already
        remove(download.part)
        raise _Interrupted("the file has changed on the server") from None
    if error.code in TRANSIENT_STATUS_CODES:
        raise _Interrupted(f"the server answered {error.code} ({error.reason})") from None
    raise DataError(
        f"{download.address}: the server answered {error.code} ({error.reason}); {download.advice}"
    ) from None


def _explain_connection(download: Download, error: Exception) -> None:
    reason = error.reason if isinstance(error, URLError) else error
    is_hopeless = isinstance(reason, socket.gaierror | ssl.SSLCertVerificationError)
    # Where packets are dropped, as on many compute nodes, nothing ever answers.
    is_hopeless |= isinstance(reason, TimeoutError) and not download.received
    if is_hopeless or (isinstance(reason, OSError) and reason.errno in NO_WAY):
        raise DataError(
            f"{download.address} cannot be reached from this machine ({_words(reason)}). Run this where there is a "
            f"network, such as a login node, or name a proxy in https_proxy and http_proxy, or {download.advice}"
        ) from None
    raise _Interrupted(f"the connection failed ({_words(reason)})") from None


def _words(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _bar(label: str, total: int | None, start: int, progress: bool) -> tqdm:
    return tqdm(desc=label, total=total, initial=start, unit="B", unit_scale=True, disable=not progress)
