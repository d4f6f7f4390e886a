"""What the jobs of each rule depend on and ask for, looked up in the graph that the studies make.

Snakemake calls these functions with the wildcards of a job. They are plain Python, so that tests call them without
running a workflow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from snakemake.exceptions import WorkflowError
from snakemake.io import ancient

from pipeline.core.errors import PatchworkError, storage_problem
from pipeline.data.kind import reference_run
from pipeline.evals.needs import Needs
from pipeline.freshness.outputs import claims_file, data_file, job_file, report_file, run_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.launch.gpus import gpus_of
from pipeline.launch.resources import shape_of
from pipeline.site import Site, Slurm
from pipeline.study.resolve.entries import EvalJob, Graph
from pipeline.study.resolve.graph_configs import data_of

PRIORITY_OF_DATA, PRIORITY_OF_STARTS, PRIORITY_OF_RUNS = 30, 20, 10


class Wildcards(Protocol):
    """Wildcards of a job; each rule has some of these."""

    scale: str
    rows: str
    data: str
    run: str
    job: str
    table: str
    study: str


def or_message(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function; a user's mistake stops the workflow with its message, without a traceback."""
    try:
        return function(*arguments)
    except PatchworkError as error:
        raise WorkflowError(str(error)) from None
    except OSError as error:
        if not (problem := storage_problem(error)):
            raise
        raise WorkflowError(problem) from None


@dataclass(frozen=True)
class Dependencies:
    """Inputs and resources of every rule's jobs, on one site.

    What must be made again is decided by `Freshness`, and not by the times of files: a fresh file has nothing but
    `ancient` inputs, and a stale one is forced.
    """

    freshness_of: Callable[[str], Freshness]  # scale -> what is fresh there
    site: Site
    force: Callable[[str], None]  # make a file again that is there

    def graph_of(self, scale: str) -> Graph:
        return self.freshness_of(scale).graph

    def _inputs(self, scale: str, file: str) -> list[Any]:
        """List what a file is made from. A weight file from elsewhere that is missing is left out: its job names it."""
        freshness = self.freshness_of(scale)
        is_stale = or_message(freshness.why, file)
        inputs = or_message(freshness.inputs_of if is_stale else freshness.inputs_here, file)
        inputs = [f"results/{scale}/{each}" for each in inputs]
        inputs += [str(path) for path in or_message(freshness.files_elsewhere, file) if path.exists()]
        if is_stale:
            self.force(f"results/{scale}/{file}")
            return inputs
        return [ancient(each) for each in inputs]

    @property
    def slurm(self) -> Slurm:
        return self.site.slurm or Slurm()

    # Data

    def prepare_inputs(self, wildcards: Wildcards) -> list[Any]:
        return self._inputs(wildcards.scale, data_file(wildcards.data))

    def prepare_priority(self, wildcards: Wildcards) -> int:
        """Sets that runs train on come first: a training run that starts last would run by itself."""
        return PRIORITY_OF_DATA if wildcards.data in self.graph_of(wildcards.scale).trained_on else 0

    def prepare_gpus(self, wildcards: Wildcards) -> int:
        """A set whose samples a trained run chooses needs one, on a machine that has any."""
        data = or_message(data_of, self.graph_of(wildcards.scale), wildcards.data)
        return int(bool(gpus_of(self.site)) and reference_run(data) is not None)

    # Training

    def train_inputs(self, wildcards: Wildcards) -> list[Any]:
        return self._inputs(wildcards.scale, run_file(wildcards.run))

    def train_priority(self, wildcards: Wildcards) -> int:
        """Runs that others start from come first: a chain that begins last would run by itself."""
        return PRIORITY_OF_STARTS if wildcards.run in self.graph_of(wildcards.scale).starts else PRIORITY_OF_RUNS

    def train_gpus(self, wildcards: Wildcards) -> int:
        return self._processes(wildcards) if gpus_of(self.site) else 0

    def train_threads(self, wildcards: Wildcards) -> int:
        """On a cluster, the process of a training run here only waits for its job."""
        return 1 if self.site.slurm else self.site.threads * self._processes(wildcards)

    def _processes(self, wildcards: Wildcards) -> int:
        optim = or_message(self.graph_of(wildcards.scale).run, wildcards.run).config["optim"]
        return shape_of(optim["global_batch"] // optim["micro_batch"], self.site).processes

    # Evaluations

    def evaluate_inputs(self, wildcards: Wildcards) -> list[Any]:
        return self._inputs(wildcards.scale, job_file(wildcards.job))

    def evaluate_gpus(self, wildcards: Wildcards) -> int:
        return int(bool(gpus_of(self.site)) and self._needs(wildcards).gpu)

    def evaluate_gres(self, wildcards: Wildcards) -> str:
        return f"{self.slurm.gres}:1" if self.slurm.gres and self._needs(wildcards).gpu else ""

    def evaluate_partition(self, wildcards: Wildcards) -> str:
        return (self.slurm.partition or "") if self._needs(wildcards).gpu else self.cpu_partition

    def evaluate_memory(self, wildcards: Wildcards) -> int:
        return 1000 * (self._needs(wildcards).memory_gb or self.slurm.memory_gb)

    def evaluate_minutes(self, wildcards: Wildcards) -> int:
        return math.ceil(60 * self._needs(wildcards).hours)

    def _eval_job(self, wildcards: Wildcards) -> EvalJob:
        return or_message(self.graph_of(wildcards.scale).eval_job, wildcards.job)

    def _needs(self, wildcards: Wildcards) -> Needs:
        return self._eval_job(wildcards).needs

    # Tables, claims, the report

    def table_inputs(self, wildcards: Wildcards) -> list[Any]:
        return self._inputs(wildcards.scale, table_file(wildcards.table, wildcards.rows))

    def claims_inputs(self, wildcards: Wildcards) -> list[Any]:
        return self._inputs(wildcards.scale, claims_file(wildcards.study, wildcards.rows))

    def report_inputs(self, wildcards: Wildcards) -> list[Any]:
        return self._inputs(wildcards.scale, report_file(wildcards.rows))

    # The queue

    @property
    def cpu_partition(self) -> str:
        return self.slurm.cpu_partition or self.slurm.partition or ""

    @property
    def queue(self) -> dict[str, Any]:
        """Resources of a job, in the words of Snakemake's SLURM executor."""
        return {
            "slurm_partition": self.slurm.partition or "",
            "slurm_account": self.slurm.account or "",
            "slurm_extra": " ".join(f"--{key}={value}" for key, value in self.slurm.options.items()),
            "mem_mb": self.slurm.memory_gb * 1000,
        }
