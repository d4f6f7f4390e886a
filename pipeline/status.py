"""What of a scale is finished, running, waiting or failed. It reads files only: no torch, no queue, no database."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.config import shown
from pipeline.files import is_held, last_line
from pipeline.freshness import Freshness, report_file, table_file
from pipeline.launch.slurm import waiting_job
from pipeline.records import Started, read_record
from pipeline.results import RunFolder

State = Literal["finished", "running", "queued", "failed", "stopped", "outdated", "waiting"]
ORDER: tuple[State, ...] = ("finished", "running", "queued", "failed", "stopped", "outdated", "waiting")
ERROR = re.compile(r"^([\w.]+(Error|Exception|Interrupt)\b|Killed|Segmentation fault)")
AFTERWARDS = re.compile(r"\d\d:\d\d:\d\d |.*the same command continues")  # a later attempt, in the same log
RULES = ("prepare_data", "train_run", "evaluate")
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
        for state in ("running", "queued", "stopped", "outdated", "failed"):
            jobs = [str(job) for job in self.jobs if job.state == state]
            lines += ["", state, *jobs] if jobs else []
        return "\n".join(lines)


def _counted(jobs: list[Job]) -> str:
    count = Counter(job.state for job in jobs)
    others = [f"{count[state]} {state}" for state in ORDER[1:] if count[state]]
    return ", ".join([f"{count['finished']} of {len(jobs)} finished", *others])


def read_status(freshness: Freshness) -> Status:
    """The state of every job that the report of this scale needs, in the order in which they run."""
    graph, results = freshness.graph, freshness.results
    has_snakemake = is_held(results.workflow_lock)
    needed = freshness.needed_for([report_file("headline"), report_file("all")])
    jobs = [_job(freshness, file, has_snakemake) for file in needed if file.startswith(("data/", "runs/", "evals/"))]
    tables = {rows: _drawn(freshness, rows) for rows in ("headline", "all")}
    reports = [path for path in map(results.report, ("headline", "all")) if path.exists()]
    return Status(graph.scale, has_snakemake, sorted(jobs, key=lambda job: RULES.index(job.rule)), tables, reports)


def _drawn(freshness: Freshness, rows: str) -> tuple[int, int]:
    chosen = freshness.graph.selected(rows)
    return sum(not freshness.why(table_file(table, rows)) for table in chosen), len(chosen)


def _job(freshness: Freshness, file: str, has_snakemake: bool) -> Job:
    kind, name, *_ = file.split("/")
    rule, name = {"data": "prepare_data", "runs": "train_run", "evals": "evaluate"}[kind], name.removesuffix(".json")
    why = freshness.why(file)
    if not why:
        return Job(rule, name, "finished")
    if rule == "train_run" and (found := _run(freshness.results.run(name))):
        return found
    if problem := _problem(freshness.results.log(rule, name)):
        return Job(rule, name, "failed", problem)
    if freshness.exists(file):
        return Job(rule, name, "outdated", why)
    if rule == "train_run":
        return _unfinished(freshness.results.run(name))
    # It takes seconds until a process holds its lock: that there is a log says that it has begun.
    has_begun = has_snakemake and freshness.results.log(rule, name).exists()
    is_running = has_begun or any(map(is_held, _locks(freshness, rule, name)))
    return Job(rule, name, "running" if is_running else "waiting")


def _locks(freshness: Freshness, rule: str, name: str) -> list[Path]:
    """Files that the process of a job holds, also one that has outlived its Snakemake."""
    results = freshness.results
    if rule == "prepare_data":
        return [results.data_lock(name)]
    return [results.evaluation(each).lock for each in freshness.graph.eval_job(name).evaluations]


def _run(folder: RunFolder) -> Job | None:
    """A run that some process works on, or will."""
    if is_held(folder.lock):
        return Job("train_run", folder.name, "running", _progress(folder))
    if job := waiting_job(folder):
        return Job("train_run", folder.name, "queued", f"SLURM job {job}; {_progress(folder)}")
    return None


def _unfinished(folder: RunFolder) -> Job:
    if folder.started.exists():
        return Job("train_run", folder.name, "stopped", f"continues after {_progress(folder, folder.last_step())}")
    return Job("train_run", folder.name, "waiting")


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
