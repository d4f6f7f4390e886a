"""Data sets of a scale: those of runs, and those that evaluations name."""

from typing import TYPE_CHECKING

from pipeline.config import Layers
from pipeline.errors import ConfigError
from pipeline.study.draft import Draft, fragment

if TYPE_CHECKING:
    from pipeline.data.kind import BaseDataConfig


def data_config(draft: Draft, name: str, where: str) -> "BaseDataConfig":
    """A data set that an evaluation names, with the scale's in its place, registered in the graph."""
    from pipeline.data.kind import parse_data

    chosen = draft.scale.replace_data.get(name, name)
    path, content = fragment("data", chosen, where)
    layers = Layers((path, content)).below("data")
    data = parse_data(layers, "data.")
    add_data(draft, data, where)
    return data


def add_data(draft: Draft, data: "BaseDataConfig", where: str) -> None:
    """Everyone sees a data set through a view of their own, but must mean the same images by its name."""
    content = data.model_dump(mode="json")
    known = draft.graph.data.setdefault(data.name, content)
    keys = [key for key in content if key not in data.seen and content[key] != known[key]]
    if keys:
        raise ConfigError(
            f"{where}: data {data.name!r} has another {', '.join(keys)} than in other runs; give it another name"
        )
