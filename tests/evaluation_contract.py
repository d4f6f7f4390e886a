"""What `compute` of an evaluation returns: exactly what its config names, with errors, the same each time."""

import math
from collections.abc import Iterator

import numpy as np

from pipeline.evals.base import EvalConfig, Evaluation, Outcome
from pipeline.method_checks.bench import quoted

CLOSE = {"rel_tol": 1e-5, "abs_tol": 1e-6}


def check_outcome(kind: type[Evaluation], cfg: EvalConfig, outcome: Outcome) -> list[str]:
    return [*_name_problems(kind, cfg, outcome), *_value_problems(kind, outcome), *_error_problems(kind, outcome)]


def _name_problems(kind: type[Evaluation], cfg: EvalConfig, outcome: Outcome) -> Iterator[str]:
    who = f"{kind.__name__}.compute"
    pairs = {"metrics": ([*outcome.metrics, *outcome.reasons], cfg.metrics), "files": ([*outcome.files], cfg.files)}
    if not cfg.metrics and not cfg.files:
        yield f"{kind.__name__}.Config names no metrics and no files; it needs the property `metrics` or `files`"
    for group, (found, named) in pairs.items():
        if missing := [name for name in named if name not in found]:
            why = ", or say in Outcome(reasons=...) why there is none" if group == "metrics" else ""
            yield f"{who} returned no {quoted(missing)}, which Config.{group} names; compute it{why}"
        if unnamed := [name for name in found if name not in named]:
            yield f"{who} returned {quoted(unnamed)}, which Config.{group} does not name; add it there, or leave it out"


def _value_problems(kind: type[Evaluation], outcome: Outcome) -> Iterator[str]:
    who = f"{kind.__name__}.compute returned"
    for name, value in outcome.metrics.items():
        if not isinstance(value, float):
            yield f"{who} {name} as {type(value).__name__}, expected a float: call .item() once, after the last batch"
        elif not math.isfinite(value):
            yield f"{who} {name} = {value}, expected a finite number; where there is none, give its reason in `reasons`"
    if empty := [name for name, content in outcome.files.items() if not content]:
        yield f"{who} {quoted(empty)} without content; a file is the bytes that are written"


def _error_problems(kind: type[Evaluation], outcome: Outcome) -> Iterator[str]:
    """Every number has a standard error, or its class says why not; only then is a claim decided with noise."""
    who, stated = f"{kind.__name__}.compute", {name for name in outcome.metrics if kind.reason_without_error(name)}
    if missing := [name for name in outcome.metrics if name not in outcome.errors and name not in stated]:
        yield (
            f"{who} returned {quoted(missing)} without a standard error; return it in `errors` (`self.over_images` "
            "does), or "
            f"name the metric in {kind.__name__}.without_error with the reason: "
            f'{{"{missing[0]}": "it is counted, not sampled"}}'
        )
    if both := [name for name in outcome.errors if name in stated]:
        yield f"{who} returned an error of {quoted(both)}, which its without_error excludes; remove one of the two"
    if unknown := [name for name in outcome.errors if name not in outcome.metrics]:
        yield f"{who} returned errors of {quoted(unknown)}, which are no metrics of it; use the names of its metrics"
    if wrong := [name for name, error in outcome.errors.items() if not (math.isfinite(error) and error >= 0)]:
        yield f"{who} returned an error of {quoted(wrong)} that is negative or not finite; a standard error is a length"
    if alone := [name for name in outcome.per_image if name not in outcome.errors]:
        yield f"{who} returned values per image of {quoted(alone)} without an error; it follows from these values"


def compare_outcomes(kind: type[Evaluation], one: Outcome, other: Outcome, when: str) -> list[str]:
    """Two computations of the same thing agree in every bit; `when` says in words how they differ."""
    names = [name for name in {**one.metrics, **other.metrics} if one.metrics.get(name) != other.metrics.get(name)]
    names += [name for name in {**one.files, **other.files} if one.files.get(name) != other.files.get(name)]
    names += [
        name
        for name in one.per_image
        if not np.array_equal(one.per_image[name], other.per_image.get(name, np.empty(0)))
    ]
    return _differs(kind, one, other, [*dict.fromkeys(names)], when)


def compare_closely(kind: type[Evaluation], one: Outcome, other: Outcome, when: str) -> list[str]:
    """The same of numbers that are added up in another order."""
    names = [
        name for name in one.metrics if not math.isclose(one.metrics[name], other.metrics.get(name, math.nan), **CLOSE)
    ]
    names += [name for name in {**one.files, **other.files} if one.files.get(name) != other.files.get(name)]
    return _differs(kind, one, other, names, when)


def _differs(kind: type[Evaluation], one: Outcome, other: Outcome, names: list[str], when: str) -> list[str]:
    if not names:
        return []
    name = names[0]
    numbers = f" ({one.metrics[name]:.6g}, then {other.metrics.get(name, math.nan):.6g})" if name in one.metrics else ""
    return [
        f"{kind.__name__}.compute found another {quoted(names)}{numbers} {when}; a result must be a function of its "
        "subjects, its data and its config: draw from batch.generator, use `self.cfg.seed`, and average over images, "
        "not over batches"
    ]
