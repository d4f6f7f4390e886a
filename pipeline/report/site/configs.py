"""Resolved configs of runs, compared: which run is most like another one, and where the two differ."""

from typing import NamedTuple

import yaml

from pipeline.core.config import SafeLoader, dotted, leaves
from pipeline.report.records import RunSummary
from pipeline.report.words import plain

Flat = dict[str, str]  # key path -> value as text


class Neighbour(NamedTuple):
    """The run that differs from another one in the fewest keys."""

    run: RunSummary
    values: Flat  # key path -> its value, where it has another one


class ConfigLine(NamedTuple):
    key: str
    value: str
    other: str | None  # the neighbour's value, where it is another one


def flatten(text: str) -> Flat:
    """A config as key paths and values; a damaged one has none."""
    try:
        return {dotted(place): plain(value) for place, value in leaves(yaml.load(text, SafeLoader) or {})}
    except yaml.YAMLError:
        return {}


def nearest_runs(runs: list[RunSummary]) -> dict[str, Neighbour]:
    """Run -> its neighbour; of several the first. The only run has none."""
    configs = {run.name: flatten(run.config) for run in runs}
    items = {name: frozenset(config.items()) for name, config in configs.items()}
    found = {}
    for run in runs:
        others = [other for other in runs if other.name != run.name]
        if others:
            nearest = min(others, key=lambda other: len({key for key, _ in items[run.name] ^ items[other.name]}))
            found[run.name] = Neighbour(nearest, _differences(configs[run.name], configs[nearest.name]))
    return found


def _differences(config: Flat, other: Flat) -> Flat:
    keys = [*config, *(key for key in other if key not in config)]
    return {key: other.get(key, "not set") for key in keys if config.get(key) != other.get(key)}


def config_lines(run: RunSummary, neighbour: Neighbour | None) -> list[ConfigLine]:
    """Every key of a run, and those that only its neighbour has."""
    config, others = flatten(run.config), neighbour.values if neighbour else {}
    keys = [*config, *(key for key in others if key not in config)]
    return [ConfigLine(key, config.get(key, "not set"), others.get(key)) for key in keys]
