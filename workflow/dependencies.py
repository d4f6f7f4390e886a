"""What the jobs of each rule depend on and ask for, looked up in the graph that the studies make.

Snakemake calls these functions with the wildcards of a job. They are plain Python, so that tests call them without
running a workflow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from snakemake.exceptions import WorkflowError

from pipeline.data.kind import kind_of, made_from, made_with
from pipeline.data.opening import prepared_from
from pipeline.errors import PatchworkError, storage_problem
from pipeline.evals.needs import Needs
from pipeline.report.freshness import claims_fingerprint, report_fingerprint, table_fingerprint
from pipeline.results import drawn_in
from pipeline.site import Site, Slurm, named_folder, site_file, weights_path
from pipeline.study.entries import EvalJob, Graph
from pipeline.study.planned import data_of

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
    """Inputs, parameters and resources of every rule's jobs, on one site."""

    site: Site
    graph_of: Callable[[str], Graph]  # scale -> its graph

    @property
    def slurm(self) -> Slurm:
        return self.site.slurm or Slurm()

    # Data

    def prepare_inputs(self, wildcards: Wildcards) -> list[str]:
        """List the set that this one is made from and the run that chooses its images; none if the site has the set."""
        data = or_message(data_of, self.graph_of(wildcards.scale), wildcards.data)
        folder = named_folder(self.site, data)
        source, run = made_from(data), made_with(data)
        if not source or (folder and kind_of(data).is_there(folder)):
            return []
        return [manifest(wildcards.scale, source), *([trained(wildcards.scale, run)] if run else [])]

    def prepare_params(self, wildcards: Wildcards) -> dict[str, Any]:
        """Return what makes this another data set: its counts, and its folder if that holds other images.

        The same images in another folder change nothing.
        """
        graph = self.graph_of(wildcards.scale)
        data = or_message(data_of, graph, wildcards.data)
        index = graph.results.manifest(data.name).parent
        folder = prepared_from(data, named_folder(self.site, data), index)
        return {"folder": folder, **{key: getattr(data, key) for key in data.counted}}

    def prepare_priority(self, wildcards: Wildcards) -> int:
        """Sets that runs train on come first: a training that begins last would run by itself."""
        runs = self.graph_of(wildcards.scale).runs.values()
        return PRIORITY_OF_DATA if wildcards.data in {run.data for run in runs} else 0

    # Training

    def train_inputs(self, wildcards: Wildcards) -> list[str]:
        run = or_message(self.graph_of(wildcards.scale).run, wildcards.run)
        init = [trained(wildcards.scale, run.init)] if run.init else []
        return [manifest(wildcards.scale, run.data), *init]

    def train_priority(self, wildcards: Wildcards) -> int:
        """Runs that others start from come first: a chain that begins last would run by itself."""
        runs = self.graph_of(wildcards.scale).runs.values()
        return PRIORITY_OF_STARTS if wildcards.run in {run.init for run in runs} else PRIORITY_OF_RUNS

    # Evaluations

    def evaluate_inputs(self, wildcards: Wildcards) -> list[str]:
        """List trained runs, weight files, data sets, and the files of the site that exist."""
        graph, job = self.graph_of(wildcards.scale), self._eval_job(wildcards)
        runs = [run for run in job.runs if graph.runs[run].trained]
        files = [graph.runs[run].config["init"] for run in job.runs if run not in runs]
        weights = [weights_path(self.site, file) for file in files]
        named = [site_file(self.site, key) for key in job.site_files]
        # A missing weight file is no input at first: the job starts and names it. Once the job has a result, the file
        # is an input again; otherwise Snakemake would take old tables for current.
        is_done = graph.results.eval_job(wildcards.job).exists()
        return [
            *(trained(wildcards.scale, run) for run in runs),
            *(manifest(wildcards.scale, data) for data in job.data),
            *(str(path) for path in weights if is_done or path.exists()),
            *(str(path) for path in named if path and path.exists()),
        ]

    def evaluate_params(self, wildcards: Wildcards) -> list[str]:
        """List the evaluations of a job; their names change with their configs, subjects and data."""
        return self._eval_job(wildcards).evaluations

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

    def table_inputs(self, wildcards: Wildcards) -> list[str]:
        files = self.graph_of(wildcards.scale).files(wildcards.table, wildcards.rows)
        return [f"results/{wildcards.scale}/{file}" for file in files]

    def table_params(self, wildcards: Wildcards) -> str:
        return table_fingerprint(self.graph_of(wildcards.scale), wildcards.table)

    def claims_inputs(self, wildcards: Wildcards) -> list[str]:
        tables = self.graph_of(wildcards.scale).judged_on(wildcards.study, wildcards.rows)
        return [drawn(table, wildcards.scale, wildcards.rows) for table in tables]

    def claims_params(self, wildcards: Wildcards) -> str:
        return claims_fingerprint(self.graph_of(wildcards.scale), wildcards.study)

    def report_inputs(self, wildcards: Wildcards) -> list[str]:
        graph = self.graph_of(wildcards.scale)
        return [
            *(drawn(table, wildcards.scale, wildcards.rows) for table in graph.selected(wildcards.rows)),
            *(judged(study, wildcards.scale, wildcards.rows) for study in graph.studies()),
        ]

    def report_params(self, wildcards: Wildcards) -> str:
        return report_fingerprint(self.graph_of(wildcards.scale), wildcards.rows)

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


def manifest(scale: str, data: str) -> str:
    return f"results/{scale}/data/{data}/manifest.json"


def trained(scale: str, run: str) -> str:
    return f"results/{scale}/runs/{run}/train.json"


def drawn(table: str, scale: str, rows: str) -> str:
    """Return the file of a table or figure."""
    return f"results/{scale}/{drawn_in(table)}/{rows}/{table}.json"


def judged(study: str, scale: str, rows: str) -> str:
    """Return the file of a study's claims."""
    return f"results/{scale}/tables/{rows}/{study}.claims.json"
