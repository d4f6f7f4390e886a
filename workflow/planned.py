"""What the live line knows about jobs: which will run, how long they took before, and how far training runs are."""

import contextlib
import json
from itertools import islice
from pathlib import Path

from snakemake.dag import DAG

from pipeline.core.files import last_line
from pipeline.results import ScaleFolder
from pipeline.study.resolve.entries import Graph
from workflow.progress import PlannedJob, Step

MOST_BENCHMARKS = 200  # of earlier jobs of a rule, from which the time of new ones is known


def planned_jobs(dag: DAG, graph: Graph) -> dict[int, PlannedJob]:
    """The jobs that Snakemake is about to run."""
    wanted = {job: dag.jobid(job) for job in dag.needrun_jobs()}
    found = {}
    for job, number in wanted.items():
        name = str(getattr(job.wildcards, "run", "") or getattr(job.wildcards, "job", ""))
        after = tuple(wanted[each] for each in dag.dependencies[job] if each in wanted)
        size = images_ahead(graph, name) if job.rule.name == "train_run" else 1.0
        found[number] = PlannedJob(number, job.rule.name, name, kind_of_job(graph, job.rule.name, name), size, after)
    return found


def kind_of_job(graph: Graph, rule: str, name: str) -> str:
    """Trainings of one method and model take as long per image; jobs of another rule about as long as each other."""
    if rule != "train_run" or name not in graph.runs:
        return rule
    config = graph.runs[name].config
    return f"{rule} {config['method']['name']} {config['model']['name']} {config['data'].get('image_size')}"


def images_ahead(graph: Graph, name: str) -> float:
    """What a training run still has to process; 0 for one that only has to write its results."""
    from pipeline.plan.estimate import images_left  # imported by calls that run something, which have the time

    return max(0.0, float(images_left(graph, name)))


def earlier_paces(graph: Graph, rules: set[str]) -> dict[str, float]:
    """Kind -> seconds per unit of size, of jobs that have ended in earlier calls."""
    spent: dict[str, list[tuple[float, float]]] = {}
    for rule in rules:
        for path in islice((graph.results.benchmarks / rule).glob("*.tsv"), MOST_BENCHMARKS):
            kind = kind_of_job(graph, rule, path.stem)
            size = 1.0 if rule != "train_run" else images_at_all(graph, path.stem)
            if size and (seconds := benchmark_seconds(path)):
                spent.setdefault(kind, []).append((seconds, size))
    return {kind: sum(s for s, _ in pairs) / sum(size for _, size in pairs) for kind, pairs in spent.items()}


def images_at_all(graph: Graph, name: str) -> float:
    """What a whole training looks at; 0 of a run that no config names any more."""
    if name not in graph.runs:
        return 0.0
    optim, data = graph.runs[name].config["optim"], graph.runs[name].config["data"]
    steps = optim.get("iterations") or data["num_train"] // optim["global_batch"] * optim["epochs"]
    return steps * optim["global_batch"]


def benchmark_seconds(path: Path) -> float:
    """What Snakemake measured; 0 of a file that is being written."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return float(path.read_text().splitlines()[1].split("\t")[0])
    return 0.0


def read_step(results: ScaleFolder, name: str, graph: Graph) -> Step | None:
    """The last step that a training run has recorded; None before the first one."""
    run, optim = results.run(name), graph.runs[name].config["optim"]
    with contextlib.suppress(OSError, ValueError, KeyError):
        total = json.loads(run.started.read_text())["steps"]
        line = json.loads(last_line(run.metrics) or "{}")
        return Step(line["step"], total, None if optim.get("iterations") else optim["epochs"])
    return None
