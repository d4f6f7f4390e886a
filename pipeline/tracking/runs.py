"""Training runs in MLflow, with their curves, and below each run its evaluations.

A run is mirrored from its first line on and keeps its MLflow run through every interruption; one that was trained again
from the beginning gets another.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.results import RunFolder
from pipeline.results.records import EvalResult, Measured, Started, TrainRecord, read_record
from pipeline.study.resolve.entries import Graph
from pipeline.tracking.store import COMPLETE, PARENT, Experiment, Point, TrackedRun, numbers
from pipeline.tracking.tail import Tail
from pipeline.tracking.workers import Workers

# MLflow groups charts by what is before the slash, in the order of the alphabet: loss and validation come first.
CURVES, METHOD, OPTIMISER, RESULT, SPEED = "curves", "method", "optimiser", "result", "speed"
OPTIMISER_METRICS = {"epoch", "grad_norm", "lr", "skipped"}
# A curve is drawn for a page that has colours and a width of its own; alone, the picture brings them along.
COLOURS = "--muted:#57606a;--line:#d0d7de;--band:#eaeef2;--accent:#0969da;background:#fff"
ALONE = f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="310" style="{COLOURS}" '


class RunMirror:
    """The experiment with the training runs of one scale."""

    def __init__(self, graph: Graph, experiment: Experiment, workers: Workers) -> None:
        self.graph, self.experiment, self.workers = graph, experiment, workers
        self.shown_in = {name: _tables_of(graph, name) for name in graph.runs}
        self.tails: dict[Path, Tail] = {}

    def files(self, name: str) -> list[Path]:
        """Everything that is mirrored of a run."""
        folder = self.graph.results.run(name)
        evaluations = [self.graph.results.evaluation(each).result for each in self._evaluations(name)]
        return [folder.started, folder.done, folder.config, folder.metrics, folder.timing, *evaluations]

    def read_again(self) -> None:
        """Forget how far curves were read."""
        self.tails.clear()

    def mirror(self, name: str) -> None:
        folder = self.graph.results.run(name)
        if not folder.started.exists():
            return
        start = read_record(folder.started, Started)
        done = read_record(folder.done, TrainRecord) if folder.done.exists() else None
        facts = {key: done.provenance[key] for key in ("commit", "device")} if done else {"commit": start.commit}
        run = self._open(name, start.identity, facts | self._tags(name))
        self._add_curves(run, name, done)
        self._set_status(run, folder, is_done=done is not None)
        for each in self._evaluations(name):
            path = self.graph.results.evaluation(each).result
            if path.exists():
                self._mirror_evaluation(run, name, start.identity, each, read_record(path, EvalResult))

    def _evaluations(self, run: str) -> list[str]:
        """Evaluations that are shown below a run: those of which it is the first subject."""
        evals = self.graph.evals
        return [name for name in self.graph.evaluations_of(run) if next(iter(evals[name].subjects.values())) == run]

    def end_stopped(self) -> int:
        """End the runs on which nothing works any more; returns the number of those that go on."""
        going_on = 0
        for key, run in self.experiment.runs.items():
            # A run whose config has changed since is not in the graph any more, but may have been killed all the same.
            folder = self.graph.results.run(key.partition("@")[0])
            if run.status == "RUNNING" and self.workers.have_left(folder):
                self.experiment.end(run, "KILLED", folder.metrics if folder.metrics.exists() else None)
            going_on += run.status == "RUNNING"
        return going_on

    def _open(self, name: str, identity: str, tags: dict[str, str]) -> TrackedRun:
        key = f"{name}@{identity}"
        if key not in self.experiment.runs:
            # Those of the same name were trained before from the beginning; what did not finish never will.
            for other, run in self.experiment.runs.items():
                if other.startswith(f"{name}@") and run.status == "RUNNING":
                    self.experiment.end(run, "KILLED")
        entry, started = self.graph.runs[name], self.graph.results.run(name).started
        return self.experiment.open(key, _title(entry.label, name), tags, entry.config, started)

    def _tags(self, name: str) -> dict[str, str]:
        entry = self.graph.runs[name]
        study, table = ",".join(entry.studies), ",".join(self.shown_in[name])
        return {"scale": self.graph.scale, "label": entry.label, "study": study, "table": table}

    def _add_curves(self, run: TrackedRun, name: str, done: Measured | None) -> None:
        """What training has logged so far; of a finished run also its picture, and that nothing more will come."""
        folder = self.graph.results.run(name)
        state = _digest([folder.done, folder.metrics, folder.timing, folder.config]) if done else ""
        if done and run.tags.get(COMPLETE) == state:
            return
        points = [point for line in self._tail(folder.metrics).read() for point in _points(line)]
        points += [point for line in self._tail(folder.timing).read() for point in _points(line, SPEED)]
        files = {folder.config.name: folder.config.read_text()} if folder.config.exists() else {}
        if done:
            points += _points({**done.metrics, "step": 0}, RESULT)  # at step 0 MLflow compares runs as bars
            files |= _curve(name, self.graph.runs[name].label, folder.metrics)
        self.experiment.add_points(run, points)
        self.experiment.attach(run, files)
        if done:
            self.experiment.tag(run, COMPLETE, state)

    def _tail(self, path: Path) -> Tail:
        return self.tails.setdefault(path, Tail(path))

    def _set_status(self, run: TrackedRun, folder: RunFolder, is_done: bool) -> None:
        if is_done:
            self.experiment.end(run, "FINISHED", folder.done)
        elif run.status != "RUNNING" and not self.workers.have_left(folder):
            self.experiment.resume(run)

    def _mirror_evaluation(self, parent: TrackedRun, name: str, identity: str, each: str, result: EvalResult) -> None:
        origin, key = result.provenance, result.evaluation
        tags = {tag: parent.tags[tag] for tag in ("scale", "label", "study", "table")}
        tags |= {"evaluation": key, "commit": origin["commit"], "device": origin["device"], PARENT: parent.id}
        full_key = f"{name}/{each}@{identity}"
        title = f"{key} of {_title(tags['label'], name)}"
        run = self.experiment.open(full_key, title, tags, self.graph.evals[each].config)
        self.experiment.set_values(run, numbers(result.metrics))
        self.experiment.end(run, "FINISHED")


def _tables_of(graph: Graph, name: str) -> list[str]:
    """The tables that show a run, in the studies' order."""
    rows = {table: graph.rows(table, "all").values() for table in graph.tables}
    return [table for table in rows if any(name in row.run_names() for row in rows[table])]


def _title(label: str, name: str) -> str:
    """The label first: lists and legends cut off the end."""
    return f"{label} ({name})"


def _points(line: dict[str, Any], group: str = "") -> list[Point]:
    """The points of one line of a file, under the names that MLflow shows them by."""
    values = {metric: value for metric, value in numbers(line).items() if metric != "step"}
    return [Point(f"{group or _group(metric)}/{metric}", value, line["step"]) for metric, value in values.items()]


def _group(metric: str) -> str:
    if metric == "loss" or metric.startswith("val_"):
        return CURVES
    return OPTIMISER if metric in OPTIMISER_METRICS else METHOD


def _curve(name: str, label: str, metrics: Path) -> dict[str, str]:
    """The run's curve as a picture of its own, if it has logged anything."""
    from pipeline.report.figures import curves

    svg = curves.draw([curves.Logged(name, label, metrics)], "run")[0].svg
    return {"curve.svg": svg.replace("<svg ", ALONE, 1)} if svg else {}


def _digest(paths: list[Path]) -> str:
    content = [path.read_bytes() if path.exists() else b"" for path in paths]
    return hashlib.sha256(json.dumps([hashlib.sha256(part).hexdigest() for part in content]).encode()).hexdigest()[:16]
