"""Files on a port of this machine, with ranges or without, whose connections may be cut and whose answers may fail."""

import hashlib
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What it serves, and what was asked of it."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # path -> content
    has_ranges: bool = True
    has_etags: bool = True
    has_weak_etags: bool = False  # which do not stand for bytes; a date does then
    cuts: list[int] = field(default_factory=list)  # bytes after which the next connections end
    failures: list[int] = field(default_factory=list)  # status of the next answers
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, Range
    sent: int = 0  # bytes of files

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, wanted = request.path.lstrip("/"), request.headers.get("Range", "")
        self.asked.append((path, wanted))
        if self.failures or path not in self.files:
            request.send_error(self.failures.pop(0) if self.failures else 404)
            return
        content = self.files[path]
        etag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        date = formatdate(int(etag[1:8], 16), usegmt=True)  # another one for other content
        is_same = request.headers.get("If-Range", etag) in (etag, date)
        start = int(wanted[len("bytes=") :].rstrip("-")) if wanted and self.has_ranges and is_same else 0
        if start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.has_etags:
            request.send_header("ETag", f"W/{etag}" if self.has_weak_etags else etag)
        if self.has_weak_etags:
            request.send_header("Last-Modified", date)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        body = content[start:][: self.cuts.pop(0) if self.cuts else None]
        self.sent += len(body)
        request.wfile.write(body)


@contextmanager
def file_server():
    server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        server.address = f"http://127.0.0.1:{http.server_port}"
        yield server
        http.shutdown()
