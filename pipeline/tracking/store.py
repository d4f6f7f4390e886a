"""One MLflow experiment: what it already has, asked once, and what is added to it, each thing once.

A call that fails may have done its work or not. After a failure, make another `Experiment`, which asks again.
MLflow is imported here alone, and late: it takes seconds.
"""

import hashlib
import json
import logging
import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.config import dotted, leaves
from pipeline.core.errors import LaunchError
from pipeline.results import ScaleFolder
from pipeline.site import Site
from pipeline.tracking.moved_database import database_of, is_moved, move_artifacts

KEY = "patchwork.name"  # the tag by which a run is found again
FILES = "patchwork.files"  # the digest of the artifacts that a run has
COMPLETE = "patchwork.complete"  # the digest of the files of a finished run, all of which MLflow has
NOTE = "mlflow.note.content"  # the text at the top of the page of an experiment or run
TITLE = "mlflow.runName"  # the tag with the name that lists and legends show
PARENT = "mlflow.parentRunId"  # the tag that nests a run below another
OUR_NOTE = "patchwork.note"  # the note as we wrote it: one that a person has edited since stays
MAX_METRICS, MAX_PARAMS = 1000, 100  # MLflow's limits of one request


class Point(NamedTuple):
    """One point of a curve."""

    metric: str
    value: float
    step: int


@dataclass
class TrackedRun:
    """A run as MLflow has it."""

    id: str
    status: str = "RUNNING"
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    steps: dict[str, set[int]] | None = None  # of each metric, once they were asked for


class Experiment:
    """One experiment in MLflow: its runs by the key under which we made them, and its tags."""

    def __init__(self, uri: str, name: str, artifacts: Path | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        # A server that does not answer must cost seconds, not minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs every retry
        from mlflow import MlflowClient

        self.client = MlflowClient(uri)
        database, found = database_of(uri), self.client.get_experiment_by_name(name)
        if found and database and artifacts and is_moved(found.artifact_location, artifacts):
            move_artifacts(database, found.artifact_location, artifacts, stale_tags=[FILES, COMPLETE])
        place = artifacts.as_uri() if artifacts else None
        self.id = found.experiment_id if found else self.client.create_experiment(name, place)
        self.tags = dict(found.tags) if found else {}
        self.runs = {run.tags[KEY]: run for run in self._ask_runs() if KEY in run.tags}

    def describe(self, note: str) -> None:
        """Show this note at the top of the experiment's page, unless somebody has written another one."""
        if self.tags.get(NOTE) == self.tags.get(OUR_NOTE) != note:
            for name in (NOTE, OUR_NOTE):
                self.client.set_experiment_tag(self.id, name, note)
                self.tags[name] = note

    def open(
        self,
        key: str,
        title: str,
        tags: dict[str, str],
        params: dict[str, Any] | None = None,
        start: Path | None = None,
    ) -> TrackedRun:
        """The run of this key with this title, these tags and parameters; made if there is none."""
        from mlflow.entities import Param, RunTag

        tags, params = {KEY: key, TITLE: title, **tags}, _flat(params or {})
        if key not in self.runs:
            began = _milliseconds(start) if start else None
            made = self.client.create_run(self.id, start_time=began, tags=tags, run_name=title)
            self.runs[key] = TrackedRun(made.info.run_id, tags=dict(tags))
        run = self.runs[key]
        new_tags = [RunTag(name, value) for name, value in tags.items() if run.tags.get(name) != value]
        new_params = [Param(name, value) for name, value in params.items() if name not in run.params]
        for start_at in range(0, max(len(new_tags), len(new_params)), MAX_PARAMS):
            part = slice(start_at, start_at + MAX_PARAMS)
            self.client.log_batch(run.id, tags=new_tags[part], params=new_params[part])
        run.tags |= tags
        run.params |= params
        return run

    def add_points(self, run: TrackedRun, points: list[Point]) -> None:
        """Log those points of curves whose step the metric does not have yet."""
        if run.steps is None:
            history = self.client.get_metric_history
            run.steps = {name: {metric.step for metric in history(run.id, name)} for name in run.latest}
        named = {(_name(metric), step): value for metric, value, step in points}
        missing = [
            Point(metric, value, step)
            for (metric, step), value in named.items()
            if step not in run.steps.setdefault(metric, set())
        ]
        self._log(run, missing)
        for point in missing:
            run.steps[point.metric].add(point.step)

    def set_values(self, run: TrackedRun, values: dict[str, float]) -> None:
        """Show these values and no others: a change is the next step of every metric, of those that left it as NaN."""
        wanted = dict.fromkeys(run.latest, math.nan) | {_name(name): value for name, value in values.items()}
        if all(_same(run.latest.get(name), value) for name, value in wanted.items()):
            return
        histories = [self.client.get_metric_history(run.id, name) for name in run.latest]
        step = max((metric.step for history in histories for metric in history), default=-1) + 1
        self._log(run, [Point(name, value, step) for name, value in wanted.items()])
        run.latest = wanted

    def attach(self, run: TrackedRun, files: dict[str, str]) -> None:
        """Add artifacts by name, instead of older ones."""
        digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
        if files and run.tags.get(FILES) != digest:
            for name, text in files.items():
                self.client.log_text(run.id, text, name)
            self.tag(run, FILES, digest)

    def tag(self, run: TrackedRun, name: str, value: str) -> None:
        self.client.set_tag(run.id, name, value)
        run.tags[name] = value

    def end(self, run: TrackedRun, status: str, file: Path | None = None) -> None:
        """Give the run its last status, at the time when this file was written."""
        if run.status != status:
            self.client.set_terminated(run.id, status, _milliseconds(file) if file else None)
            run.status = status

    def resume(self, run: TrackedRun) -> None:
        """Show that the run goes on."""
        if run.status != "RUNNING":
            self.client.update_run(run.id, "RUNNING")
            run.status = "RUNNING"

    def _log(self, run: TrackedRun, points: list[Point]) -> None:
        from mlflow.entities import Metric

        # Always at time 0: a request that was given up but did arrive is then the same point to MLflow, not a second.
        metrics = [Metric(point.metric, point.value, 0, point.step) for point in points]
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_batch(run.id, metrics=metrics[start : start + MAX_METRICS])

    def _ask_runs(self) -> Iterator[TrackedRun]:
        page = None
        while page is None or page.token:
            page = self.client.search_runs([self.id], max_results=1000, page_token=page.token if page else None)
            for run in page:
                data = run.data
                yield TrackedRun(run.info.run_id, run.info.status, data.tags, data.params, dict(data.metrics))


def tracking_uri(site: Site, results: ScaleFolder) -> str:
    """The server that the environment or the site names, else a file beside the results."""
    return os.environ.get("MLFLOW_TRACKING_URI") or site.tracking_uri or f"sqlite:///{results.tracking_database}"


def artifact_folder(uri: str, results: ScaleFolder) -> Path | None:
    """Where this process writes artifacts itself; None: a server takes them, and its clients may not see its disk."""
    if uri.startswith("http"):
        return None
    database = database_of(uri)
    return database.with_name(results.tracking_artifacts.name) if database else results.tracking_artifacts


@contextmanager
def answering(uri: str) -> Iterator[None]:
    """Whatever fails between here and MLflow, as one error that says what to do."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        message = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise LaunchError(
            f"MLflow at {without_password(uri)} did not accept the results ({without_password(message)}); nothing is "
            "lost: start the server or fix MLFLOW_TRACKING_URI, then run `python -m pipeline track` again"
        ) from None


def without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The values that MLflow takes as metrics."""
    return {key: value for key, value in values.items() if isinstance(value, (int, float))}


def _flat(content: dict[str, Any]) -> dict[str, str]:
    """{"optim": {"epochs": 5}} -> {"optim.epochs": "5"}; MLflow takes 6,000 characters a value."""
    return {dotted(place): str(value)[:6000] for place, value in leaves(content) if value != {}}


def _name(metric: str) -> str:
    """MLflow allows letters, digits and a few signs."""
    return re.sub(r"[^\w.:/ -]", "_", metric)


def _same(one: float | None, other: float) -> bool:
    return one == other or (one is not None and math.isnan(one) and math.isnan(other))


def _milliseconds(file: Path) -> int:
    return file.stat().st_mtime_ns // 1_000_000
