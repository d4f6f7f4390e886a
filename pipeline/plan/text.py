"""The plan as people read it: one line per study, the sum, and what the numbers rest on."""

import json
import os
import textwrap
from collections import Counter

from pipeline.plan.device import trains_on_gpu
from pipeline.plan.estimate import RunEstimate, bytes_needed, chain_hours, estimate, hours_on, most_at_once
from pipeline.plan.speed import H200
from pipeline.plan.work import Work, pending_work
from pipeline.site import Site
from pipeline.study.entries import Graph


def plan(graph: Graph, site: Site, targets: list[str]) -> str:
    """Say what would run, and what it would take."""
    work = pending_work(graph, targets)
    runs, device = estimate(graph, site, work), "GPU" if trains_on_gpu(site) else "CPU"
    header = ("study", "runs", "evaluations", "tables", f"{device} hours", "storage", "longest run")
    parts = [_heading(graph, work, targets), aligned([header, *_rows(work, runs, device)])]
    if runs:
        when = _queue(runs, device) if site.slurm else _here(runs, site, device)
        parts += [_sources(runs, device), _storage(graph, runs), when]
    return "\n\n".join(parts)


def _heading(graph: Graph, work: Work, targets: list[str]) -> str:
    done = work.finished or Work()
    unread = sorted({graph.runs[name].data for name in work.runs} - _prepared(graph))
    sets = f" Data sets to verify first: {', '.join(unread)}." if unread else ""
    return _wrapped(
        f"Scale {graph.scale}, {' '.join(targets) or 'all'}: {len(work.runs)} runs to train, {len(work.evaluations)} "
        f"evaluations, {len(work.tables)} tables. Finished before: {len(done.runs)} runs, {len(done.evaluations)} "
        f"evaluations, {len(done.tables)} tables.{sets}"
    )


def _prepared(graph: Graph) -> set[str]:
    return {data for data in graph.data if graph.results.manifest(data).exists()}


def _rows(work: Work, runs: list[RunEstimate], device: str) -> list[tuple[str, ...]]:
    """A line for each study with something to do, and their sum."""
    studies = [_row(study, work, [run for run in runs if run.study == study], device, study) for study in work.studies]
    return [*studies, _row("total", work, runs, device)]


def _row(label: str, work: Work, runs: list[RunEstimate], device: str, study: str = "") -> tuple[str, ...]:
    kinds = (work.runs, work.evaluations, work.tables)
    counts = [sum(study in ("", of) for of in kind.values()) for kind in kinds]
    longest = max(runs, key=lambda run: run.hours, default=None)
    words = f"{hours(longest.hours)} h on {_processes(longest, device)}: {longest.name}" if longest else "-"
    total = hours(sum(run.process_hours for run in runs))
    return (label, *map(str, counts), total, size(bytes_needed(runs)), words)


def _processes(run: RunEstimate, device: str) -> str:
    count, one = run.shape.size, "GPU" if device == "GPU" else "process"
    return f"1 {one}" if count == 1 else f"{count} {'GPUs' if device == 'GPU' else 'processes'}"


def _sources(runs: list[RunEstimate], device: str) -> str:
    counts = Counter(run.source for run in runs)
    sources = "; ".join(f"{count} runs from {source}" for source, count in counts.most_common())
    matmul = json.loads(H200.read_text())["matmul_tflops"]
    another = (
        "Another GPU than the measured one takes about as much longer as its matrix products do (an H200 makes "
        f"{matmul:.0f} TFLOP/s in bf16). "
    )
    of_what = "" if device == "GPU" else " of one process with the threads of the site"
    return _wrapped(
        f"{device} hours{of_what}: {sources}. They are those of training steps: waiting for data, validation and the "
        f"exchange of gradients come on top. {another if device == 'GPU' else ''}Evaluations and tables take seconds "
        "to minutes each and are not included."
    )


def _storage(graph: Graph, runs: list[RunEstimate]) -> str:
    weights = sum(run.cost["weights_bytes"] for run in runs)
    checkpoints = sum(run.cost["checkpoints_bytes"] for run in runs)
    return _wrapped(
        f"Storage: {size(weights)} of weights, which stay, and up to {size(checkpoints)} of checkpoints in "
        f"results/{graph.scale}/state; `python -m pipeline clean` deletes those of finished runs."
    )


def _queue(runs: list[RunEstimate], device: str) -> str:
    """How long a cluster takes."""
    most, shape = most_at_once(runs), max(run.shape for run in runs)
    useful = [
        count for count in (1, 2, 4, 8, 16, 32, 64) if count == 1 or hours_on(count // 2, runs) > chain_hours(runs)
    ]
    times = ", ".join(f"{hours(hours_on(count, runs))} h on {count} node{'s' * (count > 1)}" for count in useful)
    each = "GPUs" if device == "GPU" else "processes"
    return _wrapped(
        f"At most {most} training jobs at once, each on up to {shape.nodes} x {shape.processes} processes (nodes x "
        f"{each}). If nodes are free all the time: {times}. The longest chain of runs, one starting from the other, "
        f"takes {hours(chain_hours(runs))} h on any number."
    )


def _here(runs: list[RunEstimate], site: Site, device: str) -> str:
    """How long this machine takes: runs share its GPUs, or its cores."""
    total = sum(run.hours for run in runs)
    if device == "GPU":
        return f"On this machine: {hours(total)} h."
    at_once = max(1, (os.cpu_count() or 1) // (site.threads * site.processes))
    least = max(total / at_once, chain_hours(runs))
    return f"On this machine, {at_once} runs at a time: {hours(least)} h."


def hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def size(num_bytes: float) -> str:
    """Decimal units, as disks are sold."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes / 1e6:,.1f} MB"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns of a table: text to the left at both ends, numbers to the right between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]))
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110)
