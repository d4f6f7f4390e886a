"""From names in the graph back to what an evaluation needs: its config, and those of its runs and data sets."""

from collections.abc import Iterator

from pipeline.config import Layers, parse
from pipeline.data.kind import parse_data
from pipeline.engine.run import parse_run
from pipeline.evals.base import EVALS
from pipeline.evals.evaluate import Planned
from pipeline.study.entries import Graph


def planned_evaluations(graph: Graph, job: str) -> Iterator[Planned]:
    """The evaluations that one process computes."""
    for name in graph.eval_job(job).evaluations:
        entry = graph.evals[name]
        evaluation = EVALS.get(entry.config["name"])
        runs = {role: graph.run(run).config for role, run in entry.subjects.items()}
        yield Planned(
            name=name,
            fragment=entry.fragment,
            cfg=parse(evaluation.Config, Layers((name, entry.config))),
            subjects={role: parse_run(Layers((name, config))) for role, config in runs.items()},
            data={role: parse_data(Layers((name, config))) for role, config in entry.data.items()},
        )
