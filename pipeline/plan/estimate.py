"""What the work would take: hours of GPUs (or of a CPU), hours on the clock, bytes on disk."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.launch.resources import Shape, shape_of
from pipeline.plan.costs import Cost
from pipeline.plan.speed import Speeds
from pipeline.plan.work import Work
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph


@dataclass(frozen=True)
class RunEstimate:
    """One run that is still to be trained, or continued."""

    name: str
    study: str
    init: str | None
    shape: Shape
    process_hours: float  # of all its processes together, each with a GPU, or with the site's threads on a CPU
    source: str
    cost: Cost

    @property
    def hours(self) -> float:
        """On the clock, as if processes added up without loss."""
        return self.process_hours / self.shape.size

    @property
    def num_bytes(self) -> float:
        return self.cost["weights_bytes"] + self.cost["checkpoints_bytes"]


def estimate(graph: Graph, site: Site, work: Work) -> list[RunEstimate]:
    """The runs of the work, in the graph's order."""
    speeds = Speeds(graph, work.runs, site)
    ordered = [name for name in graph.runs if name in work.runs]
    return [_estimate_run(graph, site, name, work.runs[name], speeds) for name in ordered]


def _estimate_run(graph: Graph, site: Site, name: str, study: str, speeds: Speeds) -> RunEstimate:
    entry, speed = graph.runs[name], speeds.of(name)
    optim = entry.config["optim"]
    shape = shape_of(optim["global_batch"] // optim["micro_batch"], site)
    hours = images_left(graph, name) / speed.images_per_s / 3600
    return RunEstimate(name, study, entry.init, shape, hours, speed.source, speeds.costs[name])


def images_left(graph: Graph, name: str) -> int:
    """What a run still has to look at: one that has begun continues after its last checkpoint.

    One that is finished and has to be trained again, from other weights, begins at its first step.
    """
    optim, num_train = graph.runs[name].config["optim"], graph.runs[name].config["data"]["num_train"]
    steps = optim.get("iterations") or num_train // optim["global_batch"] * optim["epochs"]
    folder = graph.results.run(name)
    done = 0 if folder.done.exists() else folder.last_step()
    return (steps - done) * optim["global_batch"]


def chain_hours(runs: Iterable[RunEstimate]) -> float:
    """The longest way from a run to one that starts from it, and so on: no number of nodes is faster."""
    ends: dict[str, float] = {}
    for run in runs:  # each after the one it starts from
        ends[run.name] = run.hours + ends.get(run.init or "", 0.0)
    return max(ends.values(), default=0.0)


def most_at_once(runs: list[RunEstimate]) -> int:
    """Jobs that can run at the same time: in a forest, as many as nothing starts from."""
    starts = {run.init for run in runs}
    return sum(run.name not in starts for run in runs)


def hours_on(num_nodes: int, runs: list[RunEstimate]) -> float:
    """On so many nodes, if they were never idle."""
    node_hours = sum(run.hours * run.shape.nodes for run in runs)
    return max(node_hours / num_nodes, chain_hours(runs))


def bytes_needed(runs: Iterable[RunEstimate]) -> float:
    """Weights and the checkpoints that stay next to them."""
    return sum(run.num_bytes for run in runs)
