"""Gives every metric of a scale as one long frame, for a notebook or a spreadsheet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.config import CONFIGS, dotted, leaves, names, nearest, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.freshness.remake import open_freshness
from pipeline.results import RunFolder, ScaleFolder, results_of
from pipeline.results.records import EvalResult, Measured, TrainRecord, read_intact
from pipeline.site import load_site
from pipeline.study.resolve.graph import load_graph

if TYPE_CHECKING:
    import pandas as pd

UNNAMED = "no config names it any more"  # nothing makes it again
FRAME_COLUMNS = [
    *("scale", "evaluation", "metric", "value", "error", "count"),
    *("run", "label", "studies", "method", "model", "data", "seed", "subjects", "file", "stale"),
]
SHOWN = {"method.name", "model.name", "data.name", "seed"}  # keys of a config that have a column of their own


def frame(scale: str = "demo") -> "pd.DataFrame":
    """Every metric of a scale, one line each: for a notebook. Tables and figures show the same files.

    `evaluation` is a file of configs/eval, or `train`; `run` is the first subject, `subjects` has all of them by role;
    `label` is the run's in its study; `error` is the standard error of a mean over `count` images; `stale` says why the
    result must be made again, and is empty if it is current. A damaged result is one line without a metric.

    The last columns are the keys of config in which the runs of the frame differ, such as `optim.base_lr`; a run that
    does not have a key has no value there, and lists are text.
    """
    import pandas as pd

    results = results_of(scale)
    if not results.folder.exists() and scale not in (known := names(CONFIGS / "scale")):
        raise ConfigError(f"no scale {scale!r}; {nearest(scale, known)}")
    lines: list[dict[str, Any]] = []
    why = _staleness(scale)
    for name in results.run_names():
        folder = results.run(name)
        if folder.done.exists():
            record = read_intact(folder.done, TrainRecord)
            lines += _frame_lines(results, folder.done, record, "train", {"model": name}, why)
    for each in results.evaluations():
        if each.result.exists():
            result = read_intact(each.result, EvalResult)
            about = (result.evaluation, result.subjects) if result else (each.name.rpartition("-")[0], {})
            lines += _frame_lines(results, each.result, result, *about, why)
    labels, runs = _labels(scale), dict.fromkeys(line["run"] for line in lines if line["run"])
    facts = {name: labels.get(name, {}) | _run_facts(results.run(name)) for name in runs}
    full = [line | facts.get(line["run"], {}) for line in lines]
    return pd.DataFrame(full, columns=[*FRAME_COLUMNS, *_differing(facts)])


def _staleness(scale: str) -> Callable[[str], str]:
    """From a result file to why it must be made again."""
    if scale not in names(CONFIGS / "scale"):
        return lambda source: UNNAMED
    freshness = open_freshness(load_graph(scale), load_site())
    known = {*freshness.graph.runs, *freshness.graph.evals}
    return lambda source: freshness.why_number(source) if source.split("/")[1] in known else UNNAMED


def _frame_lines(
    results: ScaleFolder,
    path: Path,
    record: Measured | None,
    evaluation: str,
    subjects: dict[str, str],
    why: Callable[[str], str],
) -> list[dict[str, Any]]:
    run, file = next(iter(subjects.values()), None), str(path.relative_to(results.folder))
    about = {
        "scale": results.folder.name,
        "evaluation": evaluation,
        "run": run,
        "subjects": ", ".join(f"{role}={name}" for role, name in subjects.items()),
        "file": file,
        "stale": why(file),
    }
    if record is None:
        return [about]
    return [
        {
            **about,
            "metric": metric,
            "value": value,
            "error": record.errors.get(metric),
            "count": record.count_of(metric),
        }
        for metric, value in record.metrics.items()
    ]


def _labels(scale: str) -> dict[str, dict[str, Any]]:
    """What the studies call each run."""
    if scale not in names(CONFIGS / "scale"):
        return {}
    runs = load_graph(scale).runs
    return {name: {"label": run.label, "studies": ", ".join(run.studies)} for name, run in runs.items()}


def _run_facts(folder: RunFolder) -> dict[str, Any]:
    """The config of a run by dotted keys; a weight file has none here."""
    if not folder.config.exists():
        return {}
    values = {dotted(place): value for place, value in leaves(read_yaml(folder.config)) if value != {}}
    config = {key: json.dumps(value) if isinstance(value, list) else value for key, value in values.items()}
    return {**config, **{key: config[f"{key}.name"] for key in ("method", "model", "data")}}


def _differing(facts: dict[str, dict[str, Any]]) -> list[str]:
    """Keys of config that do not have one value in all runs that have a config."""
    configs = [each for each in facts.values() if "seed" in each]
    keys = dict.fromkeys(key for each in configs for key in each)
    return [
        key
        for key in keys
        if key not in SHOWN | {*FRAME_COLUMNS} and len({repr(each.get(key)) for each in configs}) > 1
    ]
