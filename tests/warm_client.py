"""Asks the server of warm_python.py for a command. It imports little: what a command starts goes through it as well."""

import json
import os
import signal
import socket
import sys

PROGRAMS = ("snakemake", "dvc")  # that are modules, too
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def module_of(command: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """The module or the script that a command runs, and its arguments; None if it is another program."""
    program, *arguments = command
    if program in PROGRAMS:
        return program, arguments
    if program == "python" and arguments[:1] == ["-u"]:
        arguments = arguments[1:]
    if program == "python" and arguments[:1] == ["-m"]:
        return arguments[1], arguments[2:]
    if program == "python" and arguments[:1] and is_script(arguments[0]):
        return arguments[0], arguments[1:]
    return None


def is_script(module: str) -> bool:
    return module.endswith(".py")


class Asked:
    """A command that the server runs with these two files as its output; it is killed when this is closed."""

    def __init__(self, place: str, command: tuple[str, list[str]], folder: str, env: dict[str, str], output: list[int]):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(place)
        socket.send_fds(self.connection, [b"."], output)
        request = {"module": command[0], "arguments": command[1], "folder": folder, "env": env}
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        self.answers = self.connection.makefile()
        self.pid = int(self.answers.readline())

    def exit_code(self, timeout_s: float | None = None) -> int | None:
        """None if it takes longer, or if the server has ended."""
        self.connection.settimeout(timeout_s)
        try:
            answer = self.answers.readline()
        except TimeoutError:
            return None
        return int(answer) if answer else None

    def close(self) -> None:
        self.answers.close()
        self.connection.close()


def main(place: str, python: str) -> None:
    """What a program named `python` or `snakemake` does that stands first on PATH."""
    name, *arguments = os.path.basename(sys.argv[0]), *sys.argv[1:]
    command = module_of((name, *arguments))
    if command is None:
        os.execv(python, [python, *arguments])
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    asked = Asked(place, command, os.getcwd(), dict(os.environ), [1, 2])
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(asked.pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = asked.exit_code()
    if code is not None and code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(1 if code is None else code)
