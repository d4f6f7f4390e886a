"""A real SLURM cluster on this machine, for tests: two nodes with fake GPUs, with or without accounting.

Every daemon runs in the foreground and is known by its process, so that tests can stop one and start it again.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import PATIENCE_S
from slurm_files import CLUSTER, NODES, SEARCH_PATH, Files

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr", "sacct")
# A cluster inside a job of another one must not take that job's variables for its own.
FOREIGN = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_")


def why_not(has_accounting: bool) -> str | None:
    """What keeps a cluster from being started here."""
    wanted = PROGRAMS + (ACCOUNTING_PROGRAMS if has_accounting else ())
    missing = [name for name in wanted if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"no SLURM: {', '.join(missing)} not found; apt-get install munge slurm-wlm slurmdbd mariadb-server"
    return "no SLURM: only root can make the device files of its GPUs" if os.geteuid() else None


class Cluster:
    """munged, mariadbd, slurmdbd, slurmctld and a slurmd per node, all below one folder."""

    def __init__(self, root: Path, has_accounting: bool = False) -> None:
        self.files = Files(root, has_accounting)
        self.has_accounting = has_accounting
        self.daemons: dict[str, subprocess.Popen] = {}
        self.clean = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}

    @property
    def env(self) -> dict[str, str]:
        """What a user of this cluster has in the environment."""
        return {**self.clean, "PATH": f"{self.files.bin}:{SEARCH_PATH}"}

    def run(self, *command: str) -> str:
        """Output of a command on the cluster; these calls are not in the log of calls."""
        env = {**self.clean, "PATH": SEARCH_PATH, "SLURM_CONF": str(self.files.conf)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def start(self) -> None:
        self.files.write()
        self.start_daemon("munged")
        if self.has_accounting:
            self._create_database()
            self.start_daemon("mariadbd")
            self._wait_for("mariadbd", lambda: is_listening(self.files.database_port))
        munge = "munge", f"--socket={self.files.socket}", "--no-input"
        self._wait_for("munged", lambda: self._succeeds(*munge))
        if self.has_accounting:
            self.start_daemon("slurmdbd")
            self._register()
        for name in ("slurmctld", *(f"slurmd-{node}" for node in NODES)):
            self.start_daemon(name)
        self.wait_for_nodes()

    def stop(self) -> None:
        """End the jobs, then the daemons, the last one started first."""
        if "slurmctld" in self.daemons and self._succeeds("scancel", "--user", getpass.getuser()):
            deadline = time.monotonic() + 15
            while self.run("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.2)
        for name in reversed(list(self.daemons)):
            self.stop_daemon(name)

    def start_daemon(self, name: str) -> None:
        log = self.files.root / "log" / f"{name}.log"
        with log.open("ab") as file:
            self.daemons[name] = subprocess.Popen(
                self._command(name),
                env={**self.clean, "PATH": SEARCH_PATH, "SLURM_CONF": str(self.files.conf)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def stop_daemon(self, name: str) -> None:
        self.daemons[name].terminate()
        try:
            self.daemons[name].wait(15)
        except subprocess.TimeoutExpired:
            self.kill_daemon(name)
        del self.daemons[name]

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """A daemon is away for a while; whatever happens meanwhile, it comes back for the tests that follow."""
        self.stop_daemon(name)
        try:
            yield
        finally:
            self.start_daemon(name)
            self.wait_for_nodes()

    def kill_daemon(self, name: str) -> None:
        self.daemons[name].kill()
        self.daemons[name].wait()

    def lose_node(self, node: str) -> None:
        """The node's daemon dies; SLURM is told what it would find out itself after SlurmdTimeout."""
        self.kill_daemon(f"slurmd-{node}")
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def release(self, job: str) -> None:
        """Let a requeued job start now, where SLURM would make it wait for two minutes, unless it has started."""
        self._succeeds("scontrol", "update", f"jobid={job}", "StartTime=now")

    def wait_for_nodes(self) -> None:
        """Until every node takes jobs."""
        states = "sinfo", "--noheader", "--Node", "--partition", "main", "--format", "%T"
        usable = {"idle", "mixed", "allocated"}
        self._wait_for("the nodes", lambda: self._succeeds(*states) and set(self.run(*states).split()) <= usable)

    def _command(self, name: str) -> list[str]:
        files, root = self.files, self.files.root
        if name.startswith("slurmd-"):
            return ["slurmd", "-D", "-N", name.removeprefix("slurmd-"), "-f", str(files.conf)]
        commands = {
            "munged": [
                *("--foreground", "--force", f"--socket={files.socket}", f"--key-file={files.key}"),
                *(f"--{part}-file={root}/run/munged.{part}" for part in ("log", "pid", "seed")),
            ],
            "mariadbd": [
                *("--no-defaults", f"--datadir={root}/database", f"--user={getpass.getuser()}"),
                *(f"--socket={root}/run/mariadb.socket", f"--pid-file={root}/run/mariadb.pid"),
                *(f"--port={files.database_port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
                *(f"--init-file={root}/accounting.sql", "--innodb-flush-log-at-trx-commit=0"),
            ],
            "slurmdbd": ["-D"],
            "slurmctld": ["-D", "-f", str(files.conf)],
        }
        return [name, *commands[name]]

    def _create_database(self) -> None:
        self.run(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.files.root}/database",
            f"--user={getpass.getuser()}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def _register(self) -> None:
        """Make the cluster and this user known; slurmctld gives up on a cluster that slurmdbd does not know."""
        add = "sacctmgr", "--immediate", "add"
        self._wait_for("slurmdbd", lambda: self._succeeds(*add, "cluster", CLUSTER))
        self.run(*add, "account", "lab", f"Cluster={CLUSTER}")
        self.run(*add, "user", getpass.getuser(), "Account=lab")

    def _succeeds(self, *command: str) -> bool:
        try:
            self.run(*command)
        except AssertionError:
            return False
        return True

    def _wait_for(self, what: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_ready():
            dead = [name for name, process in self.daemons.items() if process.poll() is not None]
            assert not dead, f"{dead} ended while waiting for {what}; see {self.files.root}/log"
            assert time.monotonic() < deadline, f"{what} not ready in {PATIENCE_S} s; see {self.files.root}/log"
            time.sleep(0.05)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
