"""What of the results MLflow shows, and where: study > table > training run > evaluation.

The JSON files are the truth. A training run is mirrored from its first line on and keeps its MLflow run through every
interruption; one that was trained again from the beginning gets another. The run of a table or study shows the newest
drawing: other numbers are the next step of its metrics.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.records import Measured, Started, read_evaluations, read_record
from pipeline.report.records import FilledTable, JudgedStudy
from pipeline.report.tables import cell_values
from pipeline.results import RunFolder
from pipeline.study.entries import Graph
from pipeline.track.store import Experiment, Point, Tracked
from pipeline.track.tail import Tail

log = logging.getLogger(__name__)

COMPLETE = "patchwork.complete"  # the digest of the files of a finished run, all of which MLflow has
SELECTIONS = ("headline", "all")
VERDICTS = ("true", "false", "undecided")
PARENT = "mlflow.parentRunId"
# A curve is drawn for a page that has colours and a width of its own; alone, the picture brings them along.
COLOURS = "--muted:#57606a;--line:#d0d7de;--band:#eaeef2;--accent:#0969da;background:#fff"
ALONE = f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="310" style="{COLOURS}" '


class Mirror:
    """Brings one experiment up to date with the results of a scale, as often as asked."""

    def __init__(self, graph: Graph, experiment: Experiment) -> None:
        self.graph, self.experiment = graph, experiment
        self.shown_in = {name: _tables_of(graph, name) for name in graph.runs}
        self.tails: dict[Path, Tail] = {}
        self.seen: dict[str, list] = {}  # how the files looked when they were last mirrored
        self.damaged: dict[str, str] = {}

    def update(self) -> None:
        """Mirror whatever has changed since the last time."""
        for name in self.graph.runs:
            self._update(name, self._run_files(name), self._mirror_run)
        for table in self.graph.tables:
            self._update(table, self._drawings(table), self._mirror_table)
        for study in self.graph.studies():
            self._update(study, self._pages(study), self._mirror_study)

    def _update(self, name: str, files: list[Path], mirror: Any) -> None:
        look = [(path, (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files if path.exists()]
        if not look or self.seen.get(name) == look:
            return
        try:
            mirror(name)
            self.damaged.pop(name, None)
        except DataError as error:
            self.damaged[name] = str(error)
            self.tails.clear()  # what was read beside the damage was not logged
            log.warning("%s is not mirrored: %s", name, error)
        self.seen[name] = look

    def _run_files(self, name: str) -> list[Path]:
        folder = self.graph.results.run(name)
        evaluations = [folder.evaluation(group) for group in self.graph.runs[name].groups]
        return [folder.started, folder.done, folder.config, folder.metrics, folder.timing, *evaluations]

    def _drawings(self, table: str) -> list[Path]:
        return [self.graph.results.table(table, selection) for selection in SELECTIONS]

    def _pages(self, study: str) -> list[Path]:
        reports = [self.graph.results.report(selection) for selection in SELECTIONS]
        return [*(self.graph.results.claims(study, selection) for selection in SELECTIONS), *reports]

    def _mirror_run(self, name: str) -> None:
        folder, entry = self.graph.results.run(name), self.graph.runs[name]
        if not folder.started.exists():
            return
        start = read_record(folder.started, Started)
        done = read_record(folder.done, Measured) if folder.done.exists() else None
        facts = start.model_dump() if done is None else done.provenance
        tags = {key: facts[key] for key in ("commit", "device") if key in facts}
        run = self._open_run(name, start.identity, tags | self._tags(name), folder)
        self._add_curves(run, name, folder, done)
        for group in entry.groups:
            path = folder.evaluation(group)
            for key, result in (read_evaluations(path) if path.exists() else {}).items():
                self._mirror_evaluation(run, f"{name}/{key}", start.identity, key, result)

    def _open_run(self, name: str, identity: str, tags: dict[str, str], folder: RunFolder) -> Tracked:
        key = f"{name}@{identity}"
        if key not in self.experiment.runs:
            # Those of the same name were trained before from the beginning; what did not finish never will.
            for other, run in self.experiment.runs.items():
                if other.startswith(f"{name}@") and run.status == "RUNNING":
                    self.experiment.end(run, "KILLED")
        return self.experiment.open(key, name, tags, self.graph.runs[name].config, folder.started)

    def _tags(self, name: str) -> dict[str, str]:
        tables, entry = self.shown_in[name], self.graph.runs[name]
        parent = self._table_run(tables[0]) if tables else self._study_run(entry.studies[0])
        study, table = ",".join(entry.studies), ",".join(tables)
        return {"scale": self.graph.scale, "label": entry.label, "study": study, "table": table, PARENT: parent.id}

    def _add_curves(self, run: Tracked, name: str, folder: RunFolder, done: Measured | None) -> None:
        """What training has logged so far; of a finished run also its picture, and that nothing more will come."""
        files = {folder.config.name: folder.config.read_text()} if folder.config.exists() else {}
        state = _digest([folder.done, folder.metrics, folder.timing, folder.config]) if done else ""
        if done and run.tags.get(COMPLETE) == state:
            return
        tails = [self.tails.setdefault(path, Tail(path)) for path in (folder.metrics, folder.timing)]
        points = [point for tail in tails for line in tail.read() for point in _points(line)]
        if done:
            points += _points({**done.metrics, "step": done.provenance["steps"]})
            files |= _curve(name, self.graph.runs[name].label, folder.metrics)
        self.experiment.add_points(run, points)
        self.experiment.attach(run, files)
        if done:
            self.experiment.end(run, "FINISHED", folder.done)
            self.experiment.tag(run, COMPLETE, state)

    def _mirror_evaluation(self, parent: Tracked, name: str, identity: str, key: str, result: Measured) -> None:
        origin = result.provenance
        tags = {tag: parent.tags[tag] for tag in ("scale", "label", "study", "table")}
        tags |= {"evaluation": key, "commit": origin["commit"], "device": origin["device"], PARENT: parent.id}
        full_key = f"{name}@{identity}-{origin['eval_fingerprint']}"
        run = self.experiment.open(full_key, name, tags, self.graph.evals.get(key, {}))
        self.experiment.set_values(run, _numbers(result.metrics))
        self.experiment.end(run, "FINISHED")

    def _table_run(self, table: str) -> Tracked:
        spec = self.graph.tables[table]
        about = {"mlflow.note.content": f"{spec.study_title}, {spec.label}: {spec.title}"}
        tags = {"scale": self.graph.scale, "study": spec.study, "table": table}
        return self.experiment.open(table, table, tags | about | {PARENT: self._study_run(spec.study).id})

    def _study_run(self, study: str) -> Tracked:
        return self.experiment.open(study, study, {"scale": self.graph.scale, "study": study})

    def _mirror_table(self, table: str) -> None:
        """The cells as metrics, and the table as it was drawn."""
        path = _newest(self._drawings(table))
        cells = cell_values([read_record(path, FilledTable)])
        run = self._table_run(table)
        named = {f"{row.removeprefix(f'{table}.')}.{column}": value for (row, column), value in cells.items()}
        self.experiment.set_values(run, _numbers(named))
        drawings = [path.with_name(table + suffix) for suffix in (".html", ".csv", ".md")]
        self.experiment.attach(run, {drawing.name: drawing.read_text() for drawing in drawings if drawing.exists()})
        self.experiment.end(run, "FINISHED", path)

    def _mirror_study(self, study: str) -> None:
        """How many claims hold, the claims, and the report page."""
        claims, report = _newest(self._pages(study)[:2]), _newest(self._pages(study)[2:])
        if claims is None:
            return
        verdicts = [claim.verdict for claim in read_record(claims, JudgedStudy).claims]
        run = self._study_run(study)
        self.experiment.set_values(run, {f"claims.{verdict}": verdicts.count(verdict) for verdict in VERDICTS})
        files = {"claims.json": claims, "report.html": report}
        self.experiment.attach(run, {name: path.read_text() for name, path in files.items() if path})
        self.experiment.end(run, "FINISHED", claims)


def _tables_of(graph: Graph, name: str) -> list[str]:
    """The tables that show a run, in the studies' order."""
    rows = {table: graph.rows(table, "all").values() for table in graph.tables}
    return [table for table in rows if any(name in row.runs.values() for row in rows[table])]


def _points(line: dict[str, Any]) -> list[Point]:
    return [(key, value, line["step"]) for key, value in _numbers(line).items() if key != "step"]


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in values.items() if isinstance(value, (int, float))}


def _curve(name: str, label: str, metrics: Path) -> dict[str, str]:
    """The run's curve as a picture of its own, if it has logged anything."""
    from pipeline.report import curves

    svg = curves.draw([curves.Logged(name, label, metrics)], "run")[0].svg
    return {"curve.svg": svg.replace("<svg ", ALONE, 1)} if svg else {}


def _newest(paths: list[Path]) -> Path | None:
    there = [path for path in paths if path.exists()]
    return max(there, key=lambda path: path.stat().st_mtime_ns) if there else None


def _digest(paths: list[Path]) -> str:
    content = [path.read_bytes() if path.exists() else b"" for path in paths]
    return hashlib.sha256(json.dumps([hashlib.sha256(part).hexdigest() for part in content]).encode()).hexdigest()[:16]
