"""The plan as people read it: one line per study, the sum, and what the numbers rest on."""

import json
import os
import textwrap
from collections import Counter

from pipeline.audit.status import stop_of
from pipeline.data.kind import source_set
from pipeline.freshness.outputs import data_file
from pipeline.freshness.remake import Freshness
from pipeline.launch.gpus import gpus_of
from pipeline.plan.device import trains_on_gpu
from pipeline.plan.estimate import RunEstimate, bytes_needed, chain_hours, estimate, hours_on, most_at_once
from pipeline.plan.speed import H200
from pipeline.plan.work import Work, pending_work
from pipeline.report.words import aligned, counted, hours, size
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph_configs import data_of


def plan(freshness: Freshness, targets: list[str]) -> str:
    """Say what would run, and what it would take."""
    graph, site, work = freshness.graph, freshness.site, pending_work(freshness, targets)
    runs, device = estimate(graph, site, work), "GPU" if trains_on_gpu(site) else "CPU"
    header = ("study", "runs", "evaluations", "tables", f"{device} hours", "storage", "longest run")
    parts = [_heading(graph, work, targets), aligned([header, *_rows(work, runs, device)])]
    parts += [_sets(freshness, work), _evaluations(graph, work, site)]
    if runs:
        when = _queue(runs, device) if site.slurm else _here(runs, site, device)
        parts += [_sources(runs, device), _storage(graph, runs), when]
    return "\n\n".join(filter(None, [*parts, _patience(graph, work)]))


def _heading(graph: Graph, work: Work, targets: list[str]) -> str:
    done = work.finished or Work()
    return _wrapped(
        f"Scale {graph.scale}, {' '.join(targets) or 'all'}: {len(work.runs)} runs to train, {len(work.evaluations)} "
        f"evaluations, {len(work.tables)} tables. Finished before: {len(done.runs)} runs, {len(done.evaluations)} "
        f"evaluations, {len(done.tables)} tables."
    )


def _patience(graph: Graph, work: Work) -> str:
    """Runs that may take less than what is counted, and those that did."""
    done = (work.finished or Work()).runs
    may = [name for name in work.runs if graph.runs[name].config["optim"].get("patience")]
    did = [f"{name} {stop}" for name in done if (stop := stop_of(graph, name))]
    texts = [f"May stop early (optim.patience), the full length is counted: {', '.join(may)}."] if may else []
    texts += [f"Stopped early: {'; '.join(did)}."] if did else []
    return _wrapped(" ".join(texts))


def _sets(freshness: Freshness, work: Work) -> str:
    """Data sets that are verified first, and those that are made; the parts of one set are counted together."""
    graph = freshness.graph
    jobs = [graph.eval_jobs[job] for job in work.evaluations]
    asked = {graph.runs[name].data for name in work.runs} | {name for job in jobs for name in job.data}
    sets = [data_of(graph, name) for name in sorted(asked) if freshness.why(data_file(name))]
    verified = [data.name for data in sets if not source_set(data)]
    parts = Counter((data.folder_name, source_set(data)) for data in sets if source_set(data))
    made = [f"{name} from {source} in {counted(count, 'job')}" for (name, source), count in parts.items()]
    texts = [f"Data sets to verify first: {', '.join(verified)}." if verified else ""]
    texts += [f"To make where the site has none: {', '.join(made)}." if made else ""]
    return _wrapped(" ".join(filter(None, texts)))


def _evaluations(graph: Graph, work: Work, site: Site) -> str:
    """The jobs of evaluations, and what they ask a cluster for; without one, there are no time limits."""
    needs = {job: graph.eval_jobs[job].needs for job in work.evaluations}
    if not needs:
        return ""
    longest = max(needs, key=lambda job: needs[job].hours)
    with_gpu = [need.hours for need in needs.values() if need.gpu]
    if not site.slurm:
        use = f", of which {len(with_gpu)} use a GPU" if trains_on_gpu(site) else ""
        return _wrapped(f"Evaluation jobs: {len(needs)}{use}. Their time is not estimated.")
    return _wrapped(
        f"Evaluation jobs: {len(needs)}, of which {len(with_gpu)} ask for a GPU, for up to {hours(sum(with_gpu))} h "
        f"together. These are time limits. The longest asks for {hours(needs[longest].hours)} h: {longest} "
        f"({counted(len(graph.eval_jobs[longest].evaluations), 'evaluation')}, one after the other)."
    )


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
    return counted(run.shape.size, "GPU") if device == "GPU" else counted(run.shape.size, "process", "processes")


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
        f"{device} hours{of_what}: {sources}. Rates of the loop contain its waiting for data, those of the bare step "
        f"do not; validation and the exchange of gradients come on top. {another if device == 'GPU' else ''}"
        "Evaluations are not included, and tables take seconds."
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
    times = ", ".join(f"{hours(hours_on(count, runs))} h on {counted(count, 'node')}" for count in useful)
    each = "GPUs" if device == "GPU" else "processes"
    return _wrapped(
        f"At most {most} training jobs at once, each on up to {shape.nodes} x {shape.processes} processes (nodes x "
        f"{each}). If nodes are free all the time: {times}. The longest chain of runs, one starting from the other, "
        f"takes {hours(chain_hours(runs))} h on any number."
    )


def _here(runs: list[RunEstimate], site: Site, device: str) -> str:
    """How long this machine takes: runs share its GPUs, or its cores."""
    if device == "GPU":
        num_gpus = len(gpus_of(site)) or 1  # runs that share a GPU share its time
        least = max(sum(run.process_hours for run in runs) / num_gpus, chain_hours(runs))
        return f"On this machine, {counted(num_gpus, 'GPU')}: {hours(least)} h."
    total = sum(run.hours for run in runs)
    at_once = max(1, (os.cpu_count() or 1) // (site.threads * site.processes))
    least = max(total / at_once, chain_hours(runs))
    return f"On this machine, {counted(at_once, 'run')} at a time: {hours(least)} h."


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110)
