"""What a small SLURM cluster is started from, below one folder: configuration, key, fake GPUs, client commands."""

import getpass
import os
import random
import secrets
import shutil
import socket
import stat
from pathlib import Path

CLUSTER = "testbed"
NODES = ("n1", "n2")
GPUS, CPUS, MEMORY_MB = 2, 4, 8000
CLIENTS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr")
# Daemons lie in /usr/sbin, which an ordinary shell does not look into.
SEARCH_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
ACCOUNTING_SQL = """CREATE DATABASE accounting;
CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON accounting.* TO 'slurm'@'127.0.0.1';
"""


class Files:
    """Where everything of one cluster lies, and the ports its daemons listen on."""

    def __init__(self, root: Path, has_accounting: bool) -> None:
        self.root, self.has_accounting = root, has_accounting
        self.database_port, self.accounting_port, self.controller_port, *self.node_ports = free_ports(3 + len(NODES))
        self.conf = root / "slurm.conf"
        self.socket = root / "munge" / "socket"
        self.key = root / "munge" / "key"
        self.bin = root / "bin"
        self.calls = root / "calls.log"

    def write(self) -> None:
        for folder in ("state", "log", "run", "gpu", "munge", "bin"):
            (self.root / folder).mkdir(parents=True, mode=0o755)
        self.key.write_bytes(secrets.token_bytes(128))
        self.key.chmod(0o400)
        self._make_gpus()
        (self.root / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.conf.write_text(self._slurm_conf())
        for name in CLIENTS:
            self._write_client(name)
        if self.has_accounting:
            self._write_accounting()

    def _make_gpus(self) -> None:
        """SLURM takes nothing but character devices for GPUs, so these are copies of /dev/null."""
        for index in range(GPUS):
            os.mknod(self.root / "gpu" / str(index), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        nodes = ",".join(NODES)
        (self.root / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName={nodes} Name=gpu File={self.root}/gpu/[0-{GPUS - 1}]\n"
        )

    def _write_client(self, name: str) -> None:
        """A command that knows its cluster whatever the environment says, and that can be counted."""
        real = shutil.which(name, path=SEARCH_PATH)
        path = self.bin / name
        path.write_text(
            f'#!/bin/sh\necho "{name} $*" >>{self.calls}\nexport SLURM_CONF={self.conf}\nexec {real} "$@"\n'
        )
        path.chmod(0o755)

    def _slurm_conf(self) -> str:
        user, root = getpass.getuser(), self.root
        nodes = "\n".join(
            f"NodeName={name} NodeHostName=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} "
            f"RealMemory={MEMORY_MB} Gres=gpu:{GPUS} Weight={weight} State=UNKNOWN"
            for weight, (name, port) in enumerate(zip(NODES, self.node_ports, strict=True))
        )
        return f"""ClusterName={CLUSTER}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={self.controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={self.socket}
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
MessageTimeout=30
KillWait=10
MinJobAge=3600
JobRequeue=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{self._accounting_lines()}
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=REQUEUE GraceTime=0 DefMemPerCPU=200
PartitionName=grace Nodes=ALL PriorityTier=10 PreemptMode=REQUEUE GraceTime=20 DefMemPerCPU=200
PartitionName=urgent Nodes=ALL PriorityTier=100 PreemptMode=OFF DefMemPerCPU=200
"""

    def _accounting_lines(self) -> str:
        if not self.has_accounting:
            return "AccountingStorageType=accounting_storage/none"
        # Towards slurmdbd the munge socket is looked up here and not in AuthInfo.
        return f"""AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self.accounting_port}
AccountingStoragePass={self.socket}
AccountingStorageTRES=gres/gpu"""

    def _write_accounting(self) -> None:
        (self.root / "accounting.sql").write_text(ACCOUNTING_SQL)
        path = self.root / "slurmdbd.conf"
        path.write_text(f"""AuthType=auth/munge
AuthInfo=socket={self.socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={self.accounting_port}
SlurmUser={getpass.getuser()}
PidFile={self.root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=accounting
""")
        path.chmod(0o600)  # slurmdbd refuses anything else


def free_ports(count: int) -> list[int]:
    """Ports below those that the system hands out by itself."""
    ports: list[int] = []
    for port in random.sample(range(20000, 32000), 200):
        with socket.socket() as probe:
            if len(ports) < count and probe.connect_ex(("127.0.0.1", port)):
                ports.append(port)
    return ports
