"""Functions that run in a process of their own, which starts in milliseconds: see warm_python.py."""

import base64
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

from warm_client import Asked
from warm_python import server_of_session


class ForkedProcess:
    """What `multiprocessing.Process` is; a fork of a process that has imported all that is slow and never computed.

    Forks of one that has computed, as that of the tests, hang in oneDNN.
    """

    def __init__(self, target: Callable, args: tuple) -> None:
        self.call, self.exitcode = pickle.dumps((target, args)), None

    def start(self) -> None:
        command = "forked", [base64.b64encode(self.call).decode()]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.asked = Asked(str(server_of_session()), command, str(Path.cwd()), env, [1, 2])
        self.pid = self.asked.pid

    def join(self, timeout_s: float) -> None:
        if self.exitcode is None:
            self.exitcode = self.asked.exit_code(timeout_s)

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def kill(self) -> None:
        self.asked.close()


if __name__ == "__main__":
    target, args = pickle.loads(base64.b64decode(sys.argv[1]))  # noqa: S301  # what `start` wrote
    target(*args)
