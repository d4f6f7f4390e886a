"""The process that follows the results, as a test starts it."""

import os
import subprocess

from project import Project
from warm_python import with_programs

from pipeline.study.resolve.entries import Graph


class FollowerProcess(subprocess.Popen):
    """The command that Snakemake starts, and what it has logged so far."""

    def __init__(self, copy: Project, graph: Graph, **env: str) -> None:
        self.log = os.memfd_create("log", os.MFD_CLOEXEC)
        command = ["python", "-m", "pipeline", "track", "--scale", graph.scale, "--follow"]
        env = with_programs({**copy.env, **env})
        super().__init__(command, cwd=copy.root, env=env, stdout=self.log, stderr=self.log)

    def output(self) -> str:
        return os.pread(self.log, 100_000, 0).decode()
