"""What MLflow shows of the results of one scale, in two experiments.

`patchwork-<scale>` has the training runs with their curves, and below a run its evaluations. Nothing else is in it, so
that charts of all its runs show curves first. `patchwork-<scale>-tables` has the studies with their claims, and below a
study its tables. The JSON files are the truth; whatever changes in them is mirrored at the next pass.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.study.resolve.entries import Graph
from pipeline.tracking import page
from pipeline.tracking.runs import RunMirror
from pipeline.tracking.store import Experiment, artifact_folder
from pipeline.tracking.tables import TableMirror
from pipeline.tracking.workers import Workers

log = logging.getLogger(__name__)

Look = list[tuple[Path, int, int]]  # of each file its path, time and size


class Mirror:
    """Brings MLflow up to date with the results of a scale, as often as asked."""

    def __init__(self, graph: Graph, uri: str, workers: Workers) -> None:
        name, artifacts = f"patchwork-{graph.scale}", artifact_folder(uri, graph.results)
        runs, tables = Experiment(uri, name, artifacts), Experiment(uri, f"{name}-tables", artifacts)
        runs.describe(page.note_of_runs(runs.id, tables.id, graph.studies()))
        tables.describe(page.note_of_tables(runs.id))
        self.graph = graph
        self.runs, self.tables = RunMirror(graph, runs, workers), TableMirror(graph, tables)
        self.seen: dict[str, Look] = {}  # how the files looked when they were last mirrored
        self.damaged: dict[str, str] = {}

    def update(self) -> None:
        """Mirror whatever has changed since the last time."""
        for name in self.graph.runs:
            self._update(name, self.runs.files(name), self.runs.mirror)
        for table in self.graph.tables:
            self._update(table, self.tables.drawings(table), self.tables.mirror)
        for study in self.graph.studies():
            self._update(study, self.tables.pages(study), self.tables.mirror_study)

    def _update(self, name: str, files: list[Path], mirror: Callable[[str], None]) -> None:
        look = [(path, (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files if path.exists()]
        if not look or self.seen.get(name) == look:
            return
        try:
            mirror(name)
            self.damaged.pop(name, None)
        except DataError as error:
            self.damaged[name] = str(error)
            self.runs.read_again()  # what was read beside the damage was not logged
            log.warning("%s is not mirrored: %s", name, error)
        self.seen[name] = look
