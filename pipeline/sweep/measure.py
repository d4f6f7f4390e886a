"""The number that a sweep compares: by default the metric by which its runs are judged, else that of `--metric`."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.registry import METHODS, TASKS
from pipeline.methods.base import Primary
from pipeline.study.resolve.draft import Draft
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph
from pipeline.study.resolve.runs import add_run, in_init_order
from pipeline.study.spec import TRAIN, Direction, Expected, Study, read_scale

LOSS = "val_loss"


@dataclass(frozen=True)
class Measure:
    """The number that a sweep compares."""

    eval: str
    metric: str
    direction: Direction = "none"
    label: str = ""
    decimals: int = 2

    @property
    def column(self) -> dict[str, Any]:
        """As a study has it."""
        about = {"eval": self.eval, "metric": self.metric, "direction": self.direction, "decimals": self.decimals}
        return {"label": self.title, **about}

    @property
    def title(self) -> str:
        return self.label or self.metric


Group = tuple[Measure, list[str]]


def groups_of(scale: str, parent: str, study: Study, chosen: list[str], metric: str | None) -> list[Group]:
    """Each number to compare, with the runs that have it: pretraining and finetuning are judged by different ones."""
    groups: dict[Measure, list[str]] = {}
    graph = load_graph(scale)
    for key, primary in _primaries(scale, parent, study, chosen).items():
        groups.setdefault(_measure(metric, primary, graph), []).append(key)
    return [*groups.items()]


def _primaries(scale: str, parent: str, study: Study, chosen: list[str]) -> dict[str, Primary | None]:
    """The metric by which each run is judged, which may depend on the data set that it has at this scale."""
    spec = read_scale(scale)
    draft = Draft(Graph(scale=scale, note="", comparable=False), spec, parent, study.at(spec, scale), Expected())
    for key in in_init_order(draft.study.runs, draft.file, nullcontext()):
        add_run(draft, key)
    runs = {key: draft.parsed[draft.runs[key][0]] for key in chosen if key in draft.runs}
    if missing := [key for key in chosen if key not in runs]:
        raise ConfigError(
            f"{draft.file}: runs.{missing[0]} stands in for a weight file, which scale {scale} has; choose another run"
        )
    return {key: METHODS.get(run.method.name).primary or TASKS.get(run.task).primary for key, run in runs.items()}


def _measure(asked: str | None, primary: Primary | None, graph: Graph) -> Measure:
    name, colon, metric = (asked or "").rpartition(":")
    if asked and colon:
        return _known(name, metric, graph) or Measure(name, metric)
    if asked:
        return _trained(asked, primary) or _known(TRAIN, asked, graph) or Measure(TRAIN, asked)
    return _trained(f"val_{primary.name}" if primary else LOSS, primary) or Measure(TRAIN, LOSS)


def _trained(metric: str, primary: Primary | None) -> Measure | None:
    """A metric of training of which it is known which way is better."""
    if metric == LOSS:
        return Measure(TRAIN, metric, "down", decimals=3)
    if primary and metric in {f"{kind}val_{primary.name}" for kind in ("", "best_", "mean_")}:
        return Measure(TRAIN, metric, "down" if primary.is_lower_better else "up")
    return None


def _known(evaluation: str, metric: str, graph: Graph) -> Measure | None:
    """As a table of this scale shows it."""
    for table in graph.tables.values():
        for column in table.columns.values():
            if (column.eval, column.metric) == (evaluation, metric) and column.direction != "none":
                return Measure(evaluation, metric, column.direction, column.label, column.decimals)
    return None
