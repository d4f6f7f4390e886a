"""Where published numbers come from: commits, machines, devices, versions, seeds and hours, from their records."""

import re
from collections import Counter
from typing import Any

from pipeline.core.errors import DataError
from pipeline.publishing.metrics import Metrics
from pipeline.publishing.selection import sources_of
from pipeline.report.words import counted, plain
from pipeline.results.records import Measured
from pipeline.study.resolve.entries import Graph

HOUR = 3600.0
CHANGES = "+changes"  # ends the commit of a clone in which tracked files were changed


def provenance_of(graph: Graph, metrics: Metrics) -> dict[str, Any]:
    records: list[Measured] = [*metrics.runs.values(), *metrics.evaluations.values()]
    facts = [record.provenance for record in records]
    hours = {name: run.provenance.get("wall_s", 0.0) / HOUR for name, run in metrics.runs.items()}
    evaluating = sum(result.provenance.get("wall_s", 0.0) for result in metrics.evaluations.values()) / HOUR
    sources = sources_of(graph)
    num_planned_runs = sum(source.startswith("runs/") for source in sources)
    return {
        "scale": metrics.scale,
        "commits": _counts(each.get("commit") for each in facts),
        "machines": _counts(each.get("machine") for each in facts),
        "devices": _counts(each.get("device") for each in facts),
        "versions": {
            key: _counts(_version(each, key) for each in facts) for key in ("python", "torch", "timm", "numpy")
        },
        "seeds": _counts(run.provenance.get("seed") for run in metrics.runs.values()),
        "num_runs": len(metrics.runs),
        "num_evaluations": len(metrics.evaluations),
        "num_planned_runs": num_planned_runs,
        "num_planned_evaluations": len(sources) - num_planned_runs,
        "num_planned_seeds": _planned_seeds(graph),
        "num_missing": len(sources) - len(metrics.runs) - len(metrics.evaluations),
        "hours_of_training": round(sum(hours.values()), 3),
        "hours_of_evaluating": round(evaluating, 3),
        "hours": {name: round(value, 4) for name, value in hours.items()},
    }


def _planned_seeds(graph: Graph) -> int:
    rows = [row for table in graph.tables.values() for row in table.rows.values()]
    return max((len(names) for row in rows for names in row.runs.values()), default=1)


def _counts(values: Any) -> dict[str, int]:
    """Each value and how many results have it, the most frequent first."""
    return dict(Counter(plain(value) for value in values if value is not None).most_common())


def _version(facts: dict[str, Any], name: str) -> str | None:
    return facts.get("versions", {}).get(name)


def provenance_sentences(facts: dict[str, Any]) -> list[str]:
    """For people: what ran, where, for how long, from which commits, and with which versions."""
    versions = [f"{name} {_listed(found)}" for name, found in facts["versions"].items() if found]
    return [amount(facts), cost(facts), *_commits(facts["commits"]), f"Versions: {', '.join(versions)}."]


def amount(facts: dict[str, Any]) -> str:
    """How much was run, and of how much while results are missing."""
    runs, evaluations, seeds = facts["num_runs"], facts["num_evaluations"], counted(len(facts["seeds"]), "seed")
    if "num_planned_runs" not in facts:
        command = f"python -m pipeline published --redraw {facts['scale']}"
        raise DataError(f"provenance.json of scale {facts['scale']} is of an earlier version; type `{command}`")
    if not facts["num_missing"]:
        return f"{counted(runs, 'training run')} ({seeds}) and {counted(evaluations, 'evaluation')}."
    of_runs = f"{runs} of {counted(facts['num_planned_runs'], 'training run')}"
    of_evaluations = f"{evaluations} of {counted(facts['num_planned_evaluations'], 'evaluation')}"
    planned = facts["num_planned_seeds"]
    if len(facts["seeds"]) < planned:
        seeds = f"{len(facts['seeds'])} of {counted(planned, 'seed')}"
    if len({*facts["seeds"].values()}) > 1:
        seeds = f"up to {seeds}"
    return f"Preliminary: {of_runs} ({seeds}) and {of_evaluations}."


def cost(facts: dict[str, Any]) -> str:
    training, evaluating = facts["hours_of_training"], facts["hours_of_evaluating"]
    devices = {"CPU" if name == "cpu" else name: count for name, count in facts["devices"].items()}
    where = f"{_listed(devices)} ({_listed(facts['machines'])})"
    return f"Training took {training:.1f} hours, evaluating {evaluating:.1f} hours, all jobs together, on {where}."


def _commits(found: dict[str, int]) -> list[str]:
    """The commits, with the number of results of each where there are several."""
    names = {f"{name[:12]}{CHANGES * name.endswith(CHANGES)}": count for name, count in found.items()}
    listed = [f"{name} ({counted(count, 'result')})" for name, count in names.items()]
    sentences = [f"Commits: {', '.join(listed)}." if len(listed) > 1 else f"Commit {_listed(names)}."]
    return sentences + [f"`{CHANGES}`: files of the clone differed from this commit."] * (num_from_changes(found) > 0)


def num_from_changes(commits: dict[str, int]) -> int:
    """Results that no commit gives exactly."""
    return sum(count for name, count in commits.items() if name.endswith(CHANGES))


def versions_outside(facts: dict[str, Any], lock: str) -> str:
    """Libraries that a lock file pins to other versions than results were computed with; empty where none differs."""
    lines = []
    for name, found in facts["versions"].items():
        pinned = list(dict.fromkeys(re.findall(rf"^{name}==([^\s;]+)", lock, re.MULTILINE)))
        others = [each for each in found if each.partition("+")[0] not in pinned]
        if pinned and others:
            lines.append(f"{name} {', '.join(others)} ({' or '.join(pinned)} there)")
    return ", ".join(lines)


def _listed(found: dict[str, int]) -> str:
    return ", ".join(found) or "not recorded"
