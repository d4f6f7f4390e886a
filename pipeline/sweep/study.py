"""A sweep: one run of a study, or all of them, at every combination of values, as a study of its own with axes."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.core.config import CONFIGS, names, nearest
from pipeline.core.errors import ConfigError
from pipeline.core.naming import PLAIN_NAME, name_problem
from pipeline.study.scales import default_scale, run_at
from pipeline.study.spec import Study
from pipeline.study.study_file import read_study
from pipeline.sweep.axes import Axis, parse_axes
from pipeline.sweep.derived import ABOUT, DerivedStudy, derived_name, read_study_file
from pipeline.sweep.measure import Group, groups_of
from pipeline.sweep.tables import figure_of, table_of


@dataclass(frozen=True)
class SweepRequest:
    """The command line of a sweep."""

    target: str
    over: list[str]
    scale: str
    seeds: int | None = None
    metric: str | None = None
    name: str | None = None


def sweep_of(request: SweepRequest) -> DerivedStudy:
    """The study of a sweep."""
    axes = parse_axes(request.over)
    parent, _, run = request.target.partition(".")
    read_study_file(parent)  # names the nearest one
    if request.scale in names(CONFIGS / "scale") and not run_at([parent], request.scale):
        raise ConfigError(
            f"--scale {request.scale}: {parent} does not run there; its scale is {default_scale([parent])}"
        )
    written = read_study(CONFIGS / "study" / f"{parent}.yaml")
    study, runs = written.parse(), written.expanded.content.get("runs", {})
    chosen = _choose_runs(study, parent, run)
    groups = groups_of(request.scale, parent, study, chosen, request.metric)
    seeds = study.seeds if request.seeds is None else request.seeds
    content = {
        "title": f"{request.target} over {' and '.join(axis.key for axis in axes)}",
        "headline": {},
        "scales": [request.scale],
        "derived_from": parent,
        **({} if seeds is None else {"seeds": seeds}),
        **{key: value for key in ("common", "recipes", "set") if (value := getattr(study, key))},
        **({"evals": evals} if (evals := _evals(study, groups)) else {}),
        "axes": {axis.name: axis.written() for axis in axes},
        "runs": _runs(runs, study, chosen, axes, drop_seeds=request.seeds is not None),
        "tables": {f"t{at}": table_of(group, axes, study) for at, group in enumerate(groups, 1)},
        "figures": {f"f{at}": figure_of(group, axes, study) for at, group in enumerate(groups, 1)},
    }
    heading = f"Made by: {_command(request)}\n{ABOUT}"
    return DerivedStudy(_name(request, axes, content), parent, content, heading, partial(_option_of, request, axes))


def _evals(study: Study, groups: list[Group]) -> dict[str, Any]:
    """The study's own evaluations whose metrics are compared."""
    used = {measure.eval for measure, _ in groups}
    return {name: spec.model_dump() for name, spec in study.evals.items() if name in used}


def _choose_runs(study: Study, parent: str, run: str) -> list[str]:
    """Keys of the runs that are swept."""
    trained = [key for key, spec in study.runs.items() if spec.train]
    if run and run not in study.runs:
        raise ConfigError(f"study {parent} has no run {run!r}; {nearest(run, study.runs)}")
    if (run and run not in trained) or not trained:
        raise ConfigError(f"{parent}.{run}: is not trained; choose one of {', '.join(trained) or 'another study'}")
    return [run] if run else trained


def _command(request: SweepRequest) -> str:
    options = [part for text in request.over for part in ("--over", text)]
    options += ["--seeds", str(request.seeds)] if request.seeds is not None else []
    options += ["--metric", request.metric] if request.metric else []
    return shlex.join(["python", "-m", "pipeline", "sweep", request.target, *options, "--scale", request.scale])


def _name(request: SweepRequest, axes: list[Axis], content: dict[str, Any]) -> str:
    if request.name is None:
        return derived_name(["sweep", *request.target.split("."), *(axis.name for axis in axes)], content)
    if problem := name_problem(request.name, PLAIN_NAME):
        raise ConfigError(f"--name {request.name}: {problem}")
    return f"sweep_{request.name}"


def _option_of(request: SweepRequest, axes: list[Axis], text: str) -> tuple[str, str]:
    """From a place in the study's file, with a problem, to the option that wrote it."""
    for axis in axes:
        for key, value in zip(axis.value_keys(), axis.texts, strict=True):
            if match := re.match(rf"axes\.{axis.name}\.{re.escape(key)}[.:](set[.:])? *", text):
                problem = text[match.end() :]
                is_unknown = ": unknown key; " in problem  # its key is already in the option
                option = f"--over {axis.key}" if is_unknown else f"--over {axis.key}={value}"
                return option, problem.removeprefix(f"{axis.key}: ")
    if match := re.match(r"runs\.[^.:]+_(v\d+-[^.:]*)", text):
        given = [(axis, *pair) for axis in axes for pair in zip(axis.value_keys(), axis.texts, strict=True)]
        return " ".join(f"--over {axis.key}={value}" for axis, key, value in given if key in match[0]), text
    if request.metric and (match := re.match(r"(tables|figures)\.\w+\.columns\.[^:]*: ", text)):
        return f"--metric {request.metric}", text[match.end() :]
    return (f"--seeds {request.seeds}", text.removeprefix("seeds: ")) if text.startswith("seeds: ") else ("", "")


# Runs


def _runs(runs: dict[str, Any], study: Study, chosen: list[str], axes: list[Axis], drop_seeds: bool) -> dict[str, Any]:
    """The swept runs, after those that they start from and that stay as they are."""
    stars, dropped = "_*" * len(axes), {"seeds"} if drop_seeds else set()
    found = {key: runs[key] for key in _runs_to_keep(study, chosen)}
    found |= {f"{key}{stars}": _swept(runs[key], chosen, axes) for key in chosen}
    return {key: {name: spec[name] for name in spec if name not in dropped} for key, spec in found.items()}


def _runs_to_keep(study: Study, chosen: list[str]) -> Iterator[str]:
    """Runs that swept ones start from, and so on, each after the one it starts from."""
    for key in chosen:
        spec = study.runs[key]
        for start in (spec.init, spec.stand_in):
            if start in study.runs and (start not in chosen or start == spec.stand_in):
                yield from _runs_to_keep(study, [start])
                yield start


def _swept(spec: dict[str, Any], chosen: list[str], axes: list[Axis]) -> dict[str, Any]:
    label = ", ".join([str(spec["label"]).replace("*", ""), *(f"{axis.name} *" for axis in axes)])
    init = {"init": f"{spec['init']}{'_*' * len(axes)}"} if spec.get("init") in chosen else {}
    return {**spec, **init, "label": label, "over": [axis.name for axis in axes]}
