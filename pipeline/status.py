"""What of a scale is finished, running, waiting or failed. It reads files only: no torch, no queue, no database."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.config import shown
from pipeline.files import is_held, last_line
from pipeline.launch.slurm import waiting_job
from pipeline.records import Started, read_record
from pipeline.results import RunFolder, ScaleFolder
from pipeline.study.entries import Graph

State = Literal["finished", "running", "queued", "failed", "stopped", "waiting"]
ORDER: tuple[State, ...] = ("finished", "running", "queued", "failed", "stopped", "waiting")
ERROR = re.compile(r"^([\w.]+(Error|Exception|Interrupt)\b|Killed|Segmentation fault)")
AFTERWARDS = re.compile(r"\d\d:\d\d:\d\d |.*the same command continues")  # a later attempt, in the same log
LOG_BYTES, LOG_LINES = 10_000, 4  # of the end of a failed job's log: where the error is looked for, and what is shown


@dataclass(frozen=True)
class Job:
    """One job of the workflow: a data set, a run, or evaluations that share a process."""

    rule: str
    name: str
    state: State
    detail: str = ""

    def __str__(self) -> str:
        return f"  {self.rule:<12}  {self.name}{f'  {self.detail}' if self.detail else ''}"


@dataclass(frozen=True)
class Status:
    """Everything of one scale."""

    scale: str
    has_snakemake: bool
    jobs: list[Job]
    num_tables: dict[str, tuple[int, int]]  # rows -> drawn, of how many
    reports: list[Path] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"scale {self.scale}: Snakemake is {'running' if self.has_snakemake else 'not running'}"]
        for label, rule in (("data sets", "prepare_data"), ("runs", "train_run"), ("evaluations", "evaluate")):
            lines.append(f"  {label:<12}  {_counted([job for job in self.jobs if job.rule == rule])}")
        drawn = [f"{done} of {total} with {rows} rows" for rows, (done, total) in self.num_tables.items()]
        lines.append(f"  {'tables':<12}  {', '.join(drawn)} drawn")
        lines.append(f"  {'report':<12}  {', '.join(map(shown, self.reports)) or 'not written yet'}")
        for state in ("running", "queued", "stopped", "failed"):
            jobs = [str(job) for job in self.jobs if job.state == state]
            lines += ["", state, *jobs] if jobs else []
        return "\n".join(lines)


def _counted(jobs: list[Job]) -> str:
    count = Counter(job.state for job in jobs)
    others = [f"{count[state]} {state}" for state in ORDER[1:] if count[state]]
    return ", ".join([f"{count['finished']} of {len(jobs)} finished", *others])


def read_status(graph: Graph) -> Status:
    """The state of every job of this scale, in the order in which they run."""
    results = graph.results
    has_snakemake = is_held(results.workflow_lock)
    jobs = [_plain_job(results, "prepare_data", data, results.manifest(data), has_snakemake) for data in graph.data]
    jobs += [_run(results, results.run(name)) for name in graph.trained_runs()]
    jobs += [_plain_job(results, "evaluate", job, results.eval_job(job), has_snakemake) for job in graph.eval_jobs]
    tables = {rows: _drawn(graph, rows) for rows in ("headline", "all")}
    reports = [path for path in map(results.report, ("headline", "all")) if path.exists()]
    return Status(graph.scale, has_snakemake, jobs, tables, reports)


def _drawn(graph: Graph, rows: str) -> tuple[int, int]:
    chosen = graph.selected(rows)
    return sum(graph.results.table(table, rows).exists() for table in chosen), len(chosen)


def _plain_job(results: ScaleFolder, rule: str, name: str, output: Path, has_snakemake: bool) -> Job:
    """A job that leaves one file and holds no lock: its log tells the rest."""
    log = results.log(rule, name)
    if output.exists():
        return Job(rule, name, "finished")
    if problem := _problem(log):
        return Job(rule, name, "failed", problem)
    return Job(rule, name, "running" if has_snakemake and log.exists() else "waiting")


def _run(results: ScaleFolder, folder: RunFolder) -> Job:
    name, log = folder.name, results.log("train_run", folder.name)
    if folder.done.exists():
        return Job("train_run", name, "finished")
    if is_held(folder.lock):
        return Job("train_run", name, "running", _progress(folder))
    if job := waiting_job(folder):
        return Job("train_run", name, "queued", f"SLURM job {job}; {_progress(folder)}")
    if problem := _problem(log):
        return Job("train_run", name, "failed", problem)
    if folder.started.exists():
        return Job("train_run", name, "stopped", f"continues after {_progress(folder, folder.last_step())}")
    return Job("train_run", name, "waiting")


def _progress(folder: RunFolder, step: int | None = None) -> str:
    """A step of a run among all its steps; by default the last one that it has written metrics of."""
    if not folder.started.exists():
        return "starting"
    total, line = read_record(folder.started, Started).steps, last_line(folder.metrics)
    if step is None:
        step = json.loads(line).get("step", 0) if line else 0
    return f"step {step} of {total} ({100 * step / total:.0f} %)"


def _problem(log: Path) -> str:
    """The error at the end of a job's log; none where it ended without one, or went on afterwards."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    if not errors or any(map(AFTERWARDS.match, lines[errors[-1] + 1 :])):
        return ""
    found = [line.rstrip() for line in lines[errors[-1] :] if line.strip()]
    return "\n".join(["", *[f"      {line}" for line in [*found[:LOG_LINES], f"log: {shown(log)}"]]])
