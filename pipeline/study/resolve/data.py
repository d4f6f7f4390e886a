"""Data sets of a scale: those of runs, and those that evaluations name."""

from typing import TYPE_CHECKING

from pipeline.core.config import Layers, nearest
from pipeline.core.errors import ConfigError
from pipeline.study.resolve.draft import Draft, fragment

if TYPE_CHECKING:
    from pipeline.data.kind import BaseDataConfig


def data_configs(draft: Draft, role: str, name: str, where: str) -> "dict[str, BaseDataConfig]":
    """A data set that an evaluation names, with the scale's in its place, in the graph: role -> set.

    A set in parts has one entry for each of them, such as corrupted/fog.
    """
    from pipeline.data.kind import kind_of

    data = _resolved(draft, name, where)
    found = {f"{role}/{part}": cfg for part, cfg in kind_of(data).parts().items()} or {role: data}
    for cfg in found.values():
        add_data(draft, cfg, where)
    return found


def add_origin(draft: Draft, data: "BaseDataConfig", where: str) -> None:
    """The set that the data of a run is made from, in the graph."""
    from pipeline.data.kind import source_set

    if source := source_set(data):
        (origin,) = data_configs(draft, "", source, f"{where}: data.made_from").values()
        if origin.name != source:
            raise ConfigError(
                f"{where}: data {data.name!r} is made from {source!r}, which is {origin.name!r} at scale "
                f"{draft.graph.scale}; give the scale a set instead of {data.name!r} too"
            )


def _resolved(draft: Draft, name: str, where: str) -> "BaseDataConfig":
    """The config of a set. What it is made from and with goes by the names that these have in the graph."""
    from pipeline.data.kind import parse_data, reference_run, source_set

    path, content = fragment("data", draft.scale.replace_data.get(name, name), where)
    data = parse_data(Layers((path, content)).below("data"), "data.")
    names = {}
    if source := source_set(data):
        (origin,) = data_configs(draft, "", source, f"{path}: data.made_from").values()
        if not origin.has_labels:
            raise ConfigError(
                f"{path}: data.made_from: the images of {origin.name} have no labels, which {data.name} keeps; name a "
                "labelled set"
            )
        names["made_from"] = origin.name
    known = draft.graph.data.get(data.name) if draft.study.derived_from else None
    if known and known.get("reference"):  # a derived study is measured on the sets of the others
        names["reference"] = known["reference"]
    elif reference := reference_run(data):
        names["reference"] = _run_name(draft, reference, f"{path}: data.reference")
    return data.model_copy(update=names)


def _run_name(draft: Draft, key: str, where: str) -> str:
    """The run of this study, with its first seed, that a set is made with."""
    if key not in draft.study.runs:
        raise ConfigError(
            f"{where}: no run {key!r} in {draft.file}, which uses the set; {nearest(key, draft.study.runs)}"
        )
    return draft.runs.get(key, [key])[0]  # the problem of a run without a name is reported already


def add_data(draft: Draft, data: "BaseDataConfig", where: str) -> None:
    """Everyone sees a data set through a view of their own, but must mean the same images by its name."""
    content = data.model_dump(mode="json")
    known = draft.graph.data.setdefault(data.name, content)
    keys = [key for key in content if key not in data.view_fields and content[key] != known.get(key)]
    if keys:
        raise ConfigError(
            f"{where}: data {data.name!r} differs from other runs in {', '.join(keys)}; give it another name"
        )
