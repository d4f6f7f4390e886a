"""From names in the graph back to what an evaluation needs: its config, and those of its runs and data sets."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.core.config import Layers, parse
from pipeline.data.kind import parse_data
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig
    from pipeline.evals.evaluate import PlannedEvaluation
    from pipeline.evals.sources import PreparedSources


def data_of(graph: Graph, name: str) -> Any:
    """The config of a data set."""
    return parse_data(Layers((name, graph.data_set(name))))


def as_runs_see(graph: Graph, name: str) -> list[Any]:
    """A data set as runs train on it: one config for each way in which they see its samples."""
    found: dict[str, Any] = {}
    for run in graph.runs.values():
        content = run.config["data"]
        if content["name"] == name and run.config["train"]:
            found.setdefault(repr(sorted(content.items())), content)
    return [parse_data(Layers((name, content))) for content in found.values()]


def sources_of(graph: Graph, site: Site) -> "PreparedSources":
    """What sets of this scale may be made from."""
    from pipeline.evals.sources import PreparedSources

    def run_of(name: str) -> "RunConfig":
        from pipeline.engine.run import parse_run

        return parse_run(Layers((name, graph.run(name).config)))

    return PreparedSources(graph.results, site, {name: data_of(graph, name) for name in graph.data}, run_of)


def planned_evaluations(graph: Graph, job: str) -> "Iterator[PlannedEvaluation]":
    """The evaluations that one process computes."""
    from pipeline.engine.run import parse_run
    from pipeline.evals.base import EVALS
    from pipeline.evals.evaluate import PlannedEvaluation

    for name in graph.eval_job(job).evaluations:
        entry = graph.evals[name]
        evaluation = EVALS.get(entry.config["name"])
        runs = {role: graph.run(run).config for role, run in entry.subjects.items()}
        yield PlannedEvaluation(
            name=name,
            fragment=entry.fragment,
            cfg=parse(evaluation.Config, Layers((name, entry.config))),
            subjects={role: parse_run(Layers((name, config))) for role, config in runs.items()},
            data={role: parse_data(Layers((name, config))) for role, config in entry.data.items()},
        )
