"""The numbers of a run for its model card, each with its noise: over images, and over seeds where that is known.

Only evaluations of these very weights count. What seeds do is known from runs that differ in their seed alone, else
from what was measured at the scale (configs/noise).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from pipeline.core.config import read_yaml
from pipeline.engine.run import RunConfig
from pipeline.report.tables.seed_noise import pooled
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import EvalResult, Measured, TrainRecord, read_intact
from pipeline.study.resolve.graph import read_noise

TRAIN = "train"


@dataclass(frozen=True)
class Number:
    """One metric of a run."""

    evaluation: str
    metric: str
    value: float
    error: float | None  # standard error over images
    count: int | None
    over_seeds: str = ""  # in words


def numbers_of(run: RunConfig, folder: RunFolder) -> list[Number]:
    """Those of validation, then those of each evaluation of this run by itself."""
    others = {name: _values(RunFolder(folder.results, name)) for name in _siblings(folder)}
    known = read_noise(folder.results.name)
    return [
        Number(
            evaluation,
            metric,
            value,
            record.errors.get(metric),
            record.count_of(metric),
            _over_seeds(value, [each[key] for each in others.values() if (key := (evaluation, metric)) in each])
            or _at_scale(known, run, evaluation, metric),
        )
        for evaluation, record in _records(folder)
        for metric, value in record.metrics.items()
        if value is not None
    ]


def _records(folder: RunFolder) -> Iterator[tuple[str, Measured]]:
    trained = folder.trained()
    yield TRAIN, trained
    for each in ScaleFolder(folder.results).evaluations():
        result = read_intact(each.result, EvalResult)
        is_own = result and [*result.subjects.values()] == [folder.name]
        if result and is_own and [*result.inputs.weights.values()] == [trained.files[folder.encoder.name]]:
            yield result.evaluation, result


def _values(folder: RunFolder) -> dict[tuple[str, str], float]:
    return {
        (evaluation, metric): value
        for evaluation, record in _records(folder)
        for metric, value in record.metrics.items()
        if value is not None
    }


def _siblings(folder: RunFolder) -> list[str]:
    """Finished runs of the same scale whose configs differ from this one in the seed alone."""
    own = _without_seed(folder)
    runs = ScaleFolder(folder.results).run_names()
    folders = [RunFolder(folder.results, name) for name in runs if name != folder.name]
    done = [each for each in folders if each.config.exists() and read_intact(each.done, TrainRecord)]
    return [each.name for each in done if _without_seed(each) == own]


def _without_seed(folder: RunFolder) -> dict[str, Any]:
    """The config of a run, and in it that of the run that it starts from: both have the seed in their names."""
    config = {key: value for key, value in read_yaml(folder.config).items() if key != "seed"}
    origin = folder.sibling(config.get("init") or "")
    return config | {"init": _without_seed(origin)} if config.get("init") and origin.config.exists() else config


def _over_seeds(value: float, others: list[float]) -> str:
    if not others:
        return ""
    values = [value, *others]
    return f"{stdev(values):.2g} over {len(values)} seeds, mean {sum(values) / len(values):.4g}"


def _at_scale(known: Mapping[str, Any], run: RunConfig, evaluation: str, metric: str) -> str:
    name = f"{run.method.name}: {metric}" if evaluation == TRAIN else f"{evaluation}: {metric}"
    found = known.get(f"{run.data.name} {name}")
    return f"{pooled(found).spread:.2g} over seeds of other runs" if found else ""
