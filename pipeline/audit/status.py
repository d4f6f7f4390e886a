"""Tells which jobs of a scale are finished, running, waiting or failed.

It reads files only: no torch, no queue, no database.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pipeline.core.config import shown
from pipeline.core.files import is_held, last_line, read_end
from pipeline.freshness.outputs import report_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.launch.gpus import holders, in_words
from pipeline.launch.slurm import waiting_job
from pipeline.report.words import AGAIN, counted
from pipeline.results import RunFolder
from pipeline.results.records import STOP_FACTS, Started, read_record
from pipeline.study.resolve.entries import Graph
from pipeline.study.targets import ROWS

State = Literal["finished", "running", "queued", "submitted", "failed", "stopped", "outdated", "waiting"]
ORDER: tuple[State, ...] = ("finished", "running", "queued", "submitted", "failed", "stopped", "outdated", "waiting")
ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b|Killed|Segmentation fault|could not use |\S+ has no package ")
INTERRUPTED = "the same command continues"
AFTERWARDS = re.compile(rf"\d\d:\d\d:\d\d |.*{INTERRUPTED}")  # a later attempt, in the same log
COUNTED = {"prepare_data": "data sets", "train_run": "runs", "evaluate": "evaluations"}
LOG_BYTES, LOG_LINES = 10_000, 4  # of the end of a failed job's log: where the error is looked for, and what is shown


@dataclass(frozen=True)
class Job:
    """One job of the workflow: a data set, a run, evaluations that share a process, or a drawing that failed."""

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
    tables: dict[str, list[State]]  # rows -> state of each table and figure
    reports: dict[Path, str] = field(default_factory=dict)  # why each must be made again, if it must
    elsewhere: Counter[str] = field(default_factory=Counter)  # where weights are -> number of finished runs

    def __str__(self) -> str:
        lines = [f"scale {self.scale}: Snakemake is {'running' if self.has_snakemake else 'not running'}"]
        for rule, label in COUNTED.items():
            lines.append(f"  {label:<12}  {_count_states([job for job in self.jobs if job.rule == rule])}")
        drawn = [_drawn(rows, states) for rows, states in self.tables.items()]
        lines.append(f"  {'tables':<12}  {', '.join(drawn)} drawn")
        reports = [f"{shown(path)}{why and f', {AGAIN}: {why}'}" for path, why in self.reports.items()]
        lines.append(f"  {'report':<12}  {', '.join(reports) or 'not written yet'}")
        for place, count in self.elsewhere.items():
            lines.append(f"  {'weights':<12}  of {counted(count, 'finished run')} are elsewhere: {place}")
        early = [str(job) for job in self.jobs if job.state == "finished" and job.detail]
        lines += ["", "stopped early", *early] if early else []
        for state in ("running", "queued", "submitted", "stopped", "outdated", "failed"):
            jobs = [str(job) for job in self.jobs if job.state == state]
            lines += ["", state, *jobs] if jobs else []
        return "\n".join(lines)


def _drawn(rows: str, states: list[State]) -> str:
    count = Counter(states)
    outdated = f" ({count['outdated']} outdated)" if count["outdated"] else ""
    return f"{count['finished']} of {len(states)} with {rows} rows{outdated}"


def _count_states(jobs: list[Job]) -> str:
    count = Counter(job.state for job in jobs)
    others = [f"{count[state]} {state}" for state in ORDER[1:] if count[state]]
    return ", ".join([f"{count['finished']} of {len(jobs)} finished", *others])


def read_status(freshness: Freshness) -> Status:
    """The state of every job that the report of this scale needs, in the order in which they run."""
    graph, results = freshness.graph, freshness.results
    has_snakemake = is_held(results.workflow_lock)
    jobs = [_job(freshness, file, has_snakemake) for file in freshness.needed_at_all()]
    jobs = _with_gpus(freshness, jobs)
    jobs = [job for job in jobs if job.rule in COUNTED or job.state == "failed" or _is_outdated_table(job)]
    tables = {rows: [_drawing(freshness, table_file(each, rows)) for each in graph.selected(rows)] for rows in ROWS}
    made = [name for name in (*ROWS, *graph.studies()) if freshness.exists(report_file(name))]
    reports = {results.report(name): freshness.why(report_file(name)) for name in made}
    runs = [results.run(job.name) for job in jobs if job.rule == "train_run" and job.state == "finished"]
    elsewhere = Counter(found.place for run in runs if run.is_without_weights and (found := run.files_elsewhere()))
    return Status(graph.scale, has_snakemake, sorted(jobs, key=_place), tables, reports, elsewhere)


def _with_gpus(freshness: Freshness, jobs: list[Job]) -> list[Job]:
    """Running jobs with the GPUs of this machine that they hold."""
    held: dict[Path, list[str]] = {}
    for holder in holders():
        held.setdefault(holder.log, []).append(holder.gpu)
    places = [held.get(freshness.results.log(job.rule, job.name)) for job in jobs]
    return [
        replace(job, detail=f"{job.detail} on {in_words(gpus)}".strip()) if gpus and job.state == "running" else job
        for job, gpus in zip(jobs, places, strict=True)
    ]


def _is_outdated_table(job: Job) -> bool:
    """Tables, figures and claims; the report has a line of its own."""
    return job.state == "outdated" and job.rule != "write_report"


def _place(job: Job) -> int:
    rules = [*COUNTED]
    return rules.index(job.rule) if job.rule in rules else len(rules)


def _drawing(freshness: Freshness, file: str) -> State:
    if not freshness.why(file):
        return "finished"
    return "outdated" if freshness.exists(file) else "waiting"


def _job(freshness: Freshness, file: str, has_snakemake: bool) -> Job:
    (rule, name), results, why = job_behind(file), freshness.results, freshness.why(file)
    if not why:
        return Job(rule, name, "finished", stop_of(freshness.graph, name) if rule == "train_run" else "")
    if rule == "train_run" and (found := _run(results.run(name), has_snakemake)):
        return found
    log = results.log(rule, name)
    if problem := _problem(log):
        return Job(rule, name, "failed", problem)
    if freshness.exists(file):
        return Job(rule, name, "outdated", why)
    if rule == "train_run":
        return _unfinished(results.run(name))
    if any(map(is_held, _locks(freshness, rule, name))):
        return Job(rule, name, "running")
    # A job that has begun has a log, seconds before a lock, and Snakemake adds a benchmark when it has succeeded.
    if not log.exists() or results.benchmark(rule, name).exists():
        return Job(rule, name, "waiting")
    if has_snakemake:
        return Job(rule, name, "running")
    lines = _last_lines(log)
    if lines and INTERRUPTED in lines[-1]:
        return Job(rule, name, "stopped", "interrupted")
    return Job(rule, name, "failed", _excerpt(["ended without an error message (killed?)", *lines[-2:]], log))


def stop_of(graph: Graph, run: str) -> str:
    """Where and why a finished run stopped before its full length; empty if it did not."""
    if not graph.runs[run].config["optim"].get("patience") or not (record := graph.results.run(run).record()):
        return ""
    return ": ".join(record.provenance[key] for key in STOP_FACTS if key in record.provenance)


def job_behind(file: str) -> tuple[str, str]:
    """The rule that makes a file and the name of its job, as in the names of logs."""
    kind, name, *rest = file.split("/")
    if kind in ("data", "runs", "evals"):
        rule = {"data": "prepare_data", "runs": "train_run", "evals": "evaluate"}[kind]
        return rule, name.removesuffix(".json")
    if kind == "report":
        return "write_report", name.removesuffix(".html")
    drawing = rest[0].removesuffix(".json")
    if drawing.endswith(".claims"):
        return "judge_claims", f"{name}-{drawing.removesuffix('.claims')}"
    return {"tables": "draw_table", "figures": "draw_figure"}[kind], f"{name}-{drawing}"


def _locks(freshness: Freshness, rule: str, name: str) -> list[Path]:
    """Files that the process of a job holds, also one that has outlived its Snakemake; drawings hold none."""
    results = freshness.results
    if rule == "prepare_data":
        return [results.data_lock(name)]
    evaluations = freshness.graph.eval_job(name).evaluations if rule == "evaluate" else []
    return [results.evaluation(each).lock for each in evaluations]


def _run(folder: RunFolder, has_snakemake: bool) -> Job | None:
    """A run that is training or queued; if no Snakemake watches the SLURM job of a run, the job may have ended."""
    if is_held(folder.lock):
        return Job("train_run", folder.name, "running", _progress(folder))
    if not (job := waiting_job(folder)):
        return None
    if has_snakemake:
        return Job("train_run", folder.name, "queued", f"SLURM job {job}; {_progress(folder)}")
    watch = f"SLURM job {job}, not watched by any Snakemake: `squeue --job {job}` shows whether it is still there"
    return Job("train_run", folder.name, "submitted", f"{watch}; {_progress(folder)}")


def _unfinished(folder: RunFolder) -> Job:
    if folder.started.exists():
        return Job("train_run", folder.name, "stopped", f"continues after {_progress(folder, folder.last_step())}")
    return Job("train_run", folder.name, "waiting")


def _progress(folder: RunFolder, step: int | None = None) -> str:
    """A step of a run among all its steps; by default the last one for which it has written metrics."""
    if not folder.started.exists():
        return "starting"
    total, line = read_record(folder.started, Started).steps, last_line(folder.metrics)
    if step is None:
        step = json.loads(line).get("step", 0) if line else 0
    return f"step {step} of {total} ({100 * step / total:.0f} %)"


def _problem(log: Path) -> str:
    """The error at the end of a job's log; none where it ended without one, or went on afterwards."""
    lines = _last_lines(log)
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    if not errors or any(map(AFTERWARDS.match, lines[errors[-1] + 1 :])):
        return ""
    return _excerpt(lines[errors[-1] :][:LOG_LINES], log)


def _last_lines(log: Path) -> list[str]:
    """The end of a log, without empty lines; nothing where there is no log."""
    lines = read_end(log, LOG_BYTES).decode(errors="replace").splitlines() if log.exists() else []
    return [line.rstrip() for line in lines if line.strip()]


def _excerpt(lines: list[str], log: Path) -> str:
    return "\n".join(["", *[f"      {line}" for line in [*lines, f"log: {shown(log)}"]]])
