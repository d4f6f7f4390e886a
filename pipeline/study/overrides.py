"""The values of a study that a scale replaces: checked all the same, and named before anything starts.

A scale may replace the models and data sets of runs, and every key of a recipe. Studies of papers are made for that, so
all of them share one line; a study of one's own gets a line with its keys.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from pipeline.core.config import CONFIGS, Layers, Record, dotted, leaves, merge, names, problems, shown
from pipeline.core.errors import ConfigError
from pipeline.core.registry import KINDS, METHODS
from pipeline.study.scales import OWN, runs_at
from pipeline.study.spec import RunSpec, Scale, read_scale

MOST_NAMED = 6  # values of a study in its line
Place = tuple[Any, ...]


class Override(Record):
    """A key that a study states, its value there, and its value at this scale."""

    key: str
    stated: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.key} {_plain(self.stated)} -> {_plain(self.here)}"


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)


def replaced_fragments(spec: RunSpec, scale: Scale) -> list[Override]:
    """The model, data set and budget of a run, where the scale has others."""
    named = (("model", spec.model, scale.replace_model), ("data", spec.data, scale.replace_data))
    found = [Override(key=key, stated=name, here=other[name]) for key, name, other in named if name in other]
    if scale.max_budget and spec.budget > scale.max_budget:
        found.append(Override(key="budget", stated=spec.budget, here=scale.max_budget))
    return found


def replaced_keys(stated: Iterable[dict[str, Any]], here: dict[str, Any]) -> dict[Place, Override]:
    """The keys of the run config that some of these mappings state and that have another value here."""
    found: dict[Place, Override] = {}
    for place, value in leaves(merge(*stated)):
        actual: Any = here
        for part in place:
            actual = actual.get(part) if isinstance(actual, dict) else None
        if actual != value and value != {}:
            found[place] = Override(key=dotted(place), stated=value, here=actual)
    return found


def problems_of_replaced(layers: Layers, places: Iterable[Place]) -> list[str]:
    """What is wrong with these values by themselves; `layers` are those of the run with the study's own on top."""
    lines: list[str] = []
    for section in ("method", "model", "data", "optim"):
        wanted = [place[1:] for place in places if place[0] == section]
        if not wanted:
            continue
        below = layers.below(section)
        try:
            model = _model_of(section, below.merged())
        except ConfigError:
            continue  # an unknown method or kind of data: reported where the run is parsed
        try:
            model.model_validate(below.merged())
        except ValidationError as error:
            lines += problems(error, model, below, f"{section}.", among=wanted)
    return lines


def _model_of(section: str, content: dict[str, Any]) -> Any:
    from pipeline.engine.optim import OptimConfig
    from pipeline.models.encoder import ModelConfig

    if section == "method":
        return METHODS.get(content.get("name", "")).Config
    if section == "data":
        return KINDS.get(content.get("kind", "images")).Config
    return {"model": ModelConfig, "optim": OptimConfig}[section]


def override_notices(overrides: dict[str, list[Override]], scale: str, most: int | None = MOST_NAMED) -> list[str]:
    """A line for each study of one's own with the values that this scale replaces, and one for all other studies."""
    kept_by = {study: _scale_that_keeps(study) for study in overrides}
    own = [_notice(study, overrides[study], scale, most) for study in kept_by if kept_by[study] == OWN]
    others = [study for study in kept_by if kept_by[study] != OWN]
    if not others:
        return own
    count = sum(len(overrides[study]) for study in others)
    keeping = " or ".join(dict.fromkeys(kept_by[study] for study in others))
    file = shown(CONFIGS / "scale" / f"{scale}.yaml")
    line = f"scale {scale} replaces {count} values of {', '.join(others)} ({file}); scale {keeping} keeps them"
    return [*own, line]


def _notice(study: str, found: list[Override], scale: str, most: int | None) -> str:
    file, named = shown(CONFIGS / "study" / f"{study}.yaml"), found[:most]
    more = f" and {len(found) - len(named)} more (`python -m pipeline check --scale {scale}`)"
    listed = ", ".join(map(str, named)) + more * (len(found) > len(named))
    return f"scale {scale} replaces values of {file}: {listed}; scale {OWN} keeps them"


def _scale_that_keeps(study: str) -> str:
    """The scale that runs a study as it is written: one of its own scales, if any of them replaces nothing."""
    for name in names(CONFIGS / "scale"):
        with suppress(ConfigError):
            scale = read_scale(name)
            if scale.replaces_nothing and runs_at(study, name, scale.papers):
                return name
    return OWN
