"""Where published numbers come from: commits, machines, devices, versions, seeds and hours, from their records."""

from collections import Counter
from typing import Any

from pipeline.publishing.metrics import Metrics
from pipeline.publishing.selection import sources_of
from pipeline.report.words import counted, plain
from pipeline.results.records import Measured
from pipeline.study.resolve.entries import Graph

HOUR = 3600.0


def provenance_of(graph: Graph, metrics: Metrics) -> dict[str, Any]:
    records: list[Measured] = [*metrics.runs.values(), *metrics.evaluations.values()]
    facts = [record.provenance for record in records]
    hours = {name: run.provenance.get("wall_s", 0.0) / HOUR for name, run in metrics.runs.items()}
    evaluating = sum(result.provenance.get("wall_s", 0.0) for result in metrics.evaluations.values()) / HOUR
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
        "num_missing": len(sources_of(graph)) - len(metrics.runs) - len(metrics.evaluations),
        "hours_of_training": round(sum(hours.values()), 3),
        "hours_of_evaluating": round(evaluating, 3),
        "hours": {name: round(value, 4) for name, value in hours.items()},
    }


def _counts(values: Any) -> dict[str, int]:
    """Each value and how many results have it, the most frequent first."""
    return dict(Counter(plain(value) for value in values if value is not None).most_common())


def _version(facts: dict[str, Any], name: str) -> str | None:
    return facts.get("versions", {}).get(name)


def provenance_sentences(facts: dict[str, Any]) -> list[str]:
    """For people: what ran, where, for how long, and which versions it ran with."""
    count = facts["num_missing"]
    missing = f"; {counted(count, 'more result')} {'is' if count == 1 else 'are'} planned" if count else ""
    runs, seeds = counted(facts["num_runs"], "training run"), counted(len(facts["seeds"]), "seed")
    training, evaluating = facts["hours_of_training"], facts["hours_of_evaluating"]
    versions = [f"{name} {_listed(found)}" for name, found in facts["versions"].items() if found]
    return [
        f"{runs} ({seeds}) and {counted(facts['num_evaluations'], 'evaluation')}{missing}.",
        f"Training took {training:.1f} hours, evaluating {evaluating:.1f} hours, on {_listed(facts['devices'])} "
        f"({_listed(facts['machines'])}).",
        f"Commit {_listed({short[:12]: count for short, count in facts['commits'].items()})}; {', '.join(versions)}.",
    ]


def _listed(found: dict[str, int]) -> str:
    return ", ".join(found) or "not recorded"
