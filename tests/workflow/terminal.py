"""A pseudo-terminal: what a program writes to it, and what a person then sees."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

COLOUR = re.compile(r"\x1b\[[\d;]*m")
CLEAR = "\x1b[K"


class Terminal:
    """A program that believes a person watches it."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str], columns: int, is_fork=False) -> None:
        """`is_fork`: the program asks for a fork of warm_python.py, and that takes the terminal."""
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env | {"TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=None if is_fork else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.written = ""

    def read_until(self, pattern: str, patience_s: float) -> None:
        """Return when what was written has this; the end of the program is an error."""
        end = time.monotonic() + patience_s
        while not re.search(pattern, self.written):
            assert time.monotonic() < end and self._read(), f"{pattern!r} was not written:\n{self.written}"

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def exit_code(self, patience_s: float) -> int:
        end = time.monotonic() + patience_s
        while self._read():
            if time.monotonic() > end:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise AssertionError(f"did not end within {patience_s} s:\n{self.written}")
        os.close(self.master)
        return self.process.wait(patience_s)

    def _read(self) -> bool:
        try:
            self.written += os.read(self.master, 100_000).decode(errors="replace")
        except OSError:  # the last program that had it open has ended
            return False
        return True

    def drawn(self) -> list[str]:
        """Every state of a line that was drawn over."""
        return [text for text in re.findall(r"\r\x1b\[K([^\r\n\x1b]+)", self.written) if text]

    def screen(self) -> list[str]:
        """The lines that are left, as an endlessly high screen shows them."""
        lines, line, column = [], "", 0
        for part in re.findall(r"\x1b\[K|\r|\n|[^\r\n\x1b]+", COLOUR.sub("", self.written)):
            if part == "\n":
                lines.append(line)
                line, column = "", 0
            elif part == "\r":
                column = 0
            elif part == CLEAR:
                line = line[:column]
            else:
                line = line[:column].ljust(column) + part + line[column + len(part) :]
                column += len(part)
        return [*lines, line]
