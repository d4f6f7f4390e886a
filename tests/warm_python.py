"""Python processes that start in milliseconds: forks of one process that has imported the slow libraries.

Importing torch or Snakemake takes longer than most commands that the tests run. A command that is started here is still
a process of its own, with its own folder, environment, output and exit code, and it imports the project's code anew
from the folder it runs in. Only the libraries are there already, imported under the environment of the server. All
processes of a test session share one server, which ends with the session.
"""

import fcntl
import functools
import gc
import importlib.util
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import traceback
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple

from warm_client import Asked, is_script

LIBRARIES = (
    *("snakemake.cli", "snakemake_executor_plugin_slurm", "snakemake.executors.local", "snakemake.persistence.file"),
    *("torch", "timm", "torchvision", "safetensors.torch", "pandas", "scipy", "jinja2", "matplotlib.pyplot"),
    *("transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2"),
    *("pydantic", "yaml", "tqdm", "dvc.cli", "dvc.repo", "dvc.commands.repro"),
    *("mlflow", "mlflow.store.tracking.sqlalchemy_store"),
)

EXECUTABLE = "WARM_PYTHON_EXECUTABLE"  # in the environment: what stands for the interpreter in forks


def run_module(
    command: tuple[str, list[str]], folder: Path, env: dict[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a module, or of a script, with arguments.

    What it starts as `python` or `snakemake` is a fork of the server as well.
    """
    streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
    place = str(server_of_session())
    try:
        with closing(Asked(place, command, str(folder), with_programs(env), streams)) as asked:
            code = asked.exit_code(timeout_s)
        stdout, stderr = (os.pread(stream, os.fstat(stream).st_size, 0).decode() for stream in streams)
        assert code is not None, f"{command} did not end within {timeout_s} s, or its server did:\n{stdout}{stderr}"
        return code, stdout, stderr
    finally:
        for stream in streams:
            os.close(stream)


def with_programs(env: dict[str, str]) -> dict[str, str]:
    """An environment in which `python` and `snakemake` are forks of the server; a signal to one reaches the fork."""
    return {**env, "PATH": f"{server_of_session().parent}:{env['PATH']}"}


def with_executable(env: dict[str, str]) -> dict[str, str]:
    """The same for what a fork starts with its own interpreter; not for what leaves this machine's processes."""
    return {**with_programs(env), EXECUTABLE: warm_executable()}


def warm_executable() -> str:
    """What stands for `sys.executable` where the modules and scripts that it starts shall be forks of the server."""
    return str(server_of_session().parent / "python")


def ask_with_forks(module: str, arguments: list[str], folder: Path, env: dict[str, str], log: IO) -> Asked:
    """A module that runs with this file as its output; what it starts as `sys.executable` is a fork, too."""
    command = module, arguments
    return Asked(str(server_of_session()), command, str(folder), with_executable(env), [log.fileno()] * 2)


@functools.cache
def server_of_session() -> Path:
    """The socket of the server, which the first process that needs it starts."""
    from patience import PATIENCE_S, wait_until

    from pipeline.core.files import held

    session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"patchwork-tests-{session}"
    folder.mkdir(mode=0o700, exist_ok=True)
    place, log = folder / "socket", folder / "log"
    with held(folder / "lock", "the server for tests", patience_s=PATIENCE_S):
        if not is_listening(place):
            place.unlink(missing_ok=True)
            for name in ("python", "snakemake"):
                write_program(folder / name, place)
            command = [sys.executable, __file__, str(place), str(session)]
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            wait_until(lambda: is_listening(place) or process.poll() is not None, log.read_text)
            assert process.poll() is None, log.read_text()
    return place


def write_program(path: Path, place: Path) -> None:
    """A program that asks the server to run a module. `-IS`: Python starts quickly, as it looks for no packages."""
    tests = str(Path(__file__).parent)
    start = f"import sys\nsys.path.insert(0, {tests!r})\nfrom warm_client import main\n"
    path.write_text(f"#!{sys.executable} -IS\n{start}main({str(place)!r}, {sys.executable!r})\n")
    path.chmod(0o700)


def is_listening(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(place)) == 0


def serve(place: Path, session: int) -> dict | None:
    """Fork for every request until the session has ended. In a fork for a command, return its request."""
    for name in LIBRARIES:
        __import__(name)
    sys.modules["snakemake.cli"].get_argument_parser()  # looks through all packages for plug-ins, and imports them
    gc.collect()
    gc.freeze()  # or every fork would walk through, and so copy, all that was imported
    gc.set_threshold(20_000)  # as `python -m pipeline` does; Snakemake then starts faster, too
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(64)
        forks: list[Fork] = []
        while Path(f"/proc/{session}").exists():
            watched = [listener, *(fork.end for fork in forks), *(fork.connection for fork in forks)]
            ready = select.select(watched, [], [], 1.0)[0]
            ended = [fork for fork in forks if fork.end in ready or fork.connection in ready]
            for fork in ended:
                fork.finish()
            forks = [fork for fork in forks if fork not in ended]
            if listener in ready and (found := read_request(listener.accept()[0])):
                request, streams, connection = found
                pid = os.fork()
                if pid == 0:
                    for each in (listener, connection, *(fork.connection for fork in forks)):
                        each.close()
                    return begin(request, streams)
                for stream in streams:
                    os.close(stream)
                with suppress(OSError):
                    connection.sendall(f"{pid}\n".encode())
                forks.append(Fork(pid, os.pidfd_open(pid), connection))
    shutil.rmtree(place.parent, ignore_errors=True)
    return None


class Fork(NamedTuple):
    pid: int
    end: int  # a descriptor that can be read once the process has ended
    connection: socket.socket  # of whoever asked for it; it can be read once they are gone

    def finish(self) -> None:
        """Send the exit code, or end a process that nobody waits for."""
        if not select.select([self.end], [], [], 0)[0]:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        with suppress(OSError), self.connection:
            self.connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(self.end)


def read_request(connection: socket.socket) -> tuple[dict, list[int], socket.socket] | None:
    """What to run, its output, and who asked; None if somebody only wanted to know whether the server is there."""
    sent, streams, _, _ = socket.recv_fds(connection, 1, 2)
    if not sent:
        connection.close()
        return None
    return json.loads(connection.makefile().readline()), streams, connection


def begin(request: dict, streams: list[int]) -> dict:
    """In the fork: a group of its own, to be killed as a whole, and the output."""
    os.setsid()
    for target, stream in enumerate(streams, start=1):
        os.dup2(stream, target)
        os.close(stream)
    if os.isatty(1):
        take_terminal()
    return request


def take_terminal() -> None:
    """As the program that a terminal was opened for has it; not where it belongs to another session."""
    with suppress(OSError):
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
    sys.modules["colorama"].deinit()  # imported by DVC; it keeps from its streams what only terminals understand


def become(request: dict) -> None:
    """Run the module or the script as a new interpreter would."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    added = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    first = os.path.dirname(request["module"]) if is_script(request["module"]) else request["folder"]
    sys.path[:] = [first, *filter(None, added), *sys.path[1:]]
    sys.argv = [request["module"], *request["arguments"]]
    sys.executable = request["env"].get(EXECUTABLE, sys.executable)
    code: object = 0
    try:
        if any(Path(folder, "sitecustomize.py").exists() for folder in filter(None, added)):
            sys.modules.pop("sitecustomize", None)  # that of the server
            importlib.import_module("sitecustomize")
        if is_script(request["module"]):
            runpy.run_path(request["module"], run_name="__main__")
        else:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as asked:
        code = asked.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    processes().leave(code if isinstance(code, int) else int(code is not None))


def processes() -> ModuleType:
    """This project's `pipeline.core.processes`, under another name: the command may have imported that of a copy."""
    spec = importlib.util.spec_from_file_location("processes", Path(__file__).parents[1] / "pipeline/core/processes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    if (asked := serve(Path(sys.argv[1]), int(sys.argv[2]))) is not None:
        become(asked)
