"""Studies in MLflow with their claims, and below each study its tables.

Each shows the newest drawing: other numbers are the next step of its metrics.
"""

from collections import Counter
from pathlib import Path
from typing import get_args

from pipeline.report.records import FilledTable, JudgedStudy
from pipeline.results.records import read_record
from pipeline.study.claims.decide import Verdict
from pipeline.study.resolve.entries import Graph
from pipeline.study.targets import ROWS
from pipeline.tracking.store import NOTE, PARENT, Experiment, TrackedRun, numbers


class TableMirror:
    """The experiment with the studies and tables of one scale."""

    def __init__(self, graph: Graph, experiment: Experiment) -> None:
        self.graph, self.experiment = graph, experiment

    def drawings(self, table: str) -> list[Path]:
        return [self.graph.results.table(table, selection) for selection in ROWS]

    def pages(self, study: str) -> list[Path]:
        """The claims of a study and the reports that show them."""
        return [*self._claims(study), *self._reports(study)]

    def mirror(self, table: str) -> None:
        """The cells as metrics, and the table as it was drawn."""
        path = _newest(self.drawings(table))
        if path is None:
            return
        cells = read_record(path, FilledTable).cells()
        run = self._open_table(table, path)
        named = {f"{row.id.removeprefix(f'{table}.')}.{column.id}": cell.ours for row, column, cell in cells}
        self.experiment.set_values(run, numbers(named))
        drawings = [path.with_name(table + suffix) for suffix in (".html", ".svg", ".csv", ".md")]
        self.experiment.attach(run, {drawing.name: drawing.read_text() for drawing in drawings if drawing.exists()})
        self.experiment.end(run, "FINISHED", path)

    def mirror_study(self, study: str) -> None:
        """How many claims hold, the claims, and the report page."""
        claims, report = _newest(self._claims(study)), _newest(self._reports(study))
        if claims is None:
            return
        count = Counter(claim.verdict for claim in read_record(claims, JudgedStudy).claims)
        run = self._open_study(study, claims)
        self.experiment.set_values(run, {f"claims.{verdict}": count[verdict] for verdict in get_args(Verdict)})
        files = {"claims.json": claims, "report.html": report}
        self.experiment.attach(run, {name: path.read_text() for name, path in files.items() if path})
        self.experiment.end(run, "FINISHED", claims)

    def _open_table(self, table: str, drawn: Path) -> TrackedRun:
        spec = self.graph.tables[table]
        parent = self._open_study(spec.study, drawn)
        note = f"{spec.study_title}, {spec.label}: {spec.title}"
        tags = {"scale": self.graph.scale, "study": spec.study, "table": table, NOTE: note, PARENT: parent.id}
        return self.experiment.open(table, table, tags, start=drawn)

    def _open_study(self, study: str, drawn: Path) -> TrackedRun:
        return self.experiment.open(study, study, {"scale": self.graph.scale, "study": study}, start=drawn)

    def _claims(self, study: str) -> list[Path]:
        return [self.graph.results.claims(study, selection) for selection in ROWS]

    def _reports(self, study: str) -> list[Path]:
        return [self.graph.results.report(name) for name in (*ROWS, study)]


def _newest(paths: list[Path]) -> Path | None:
    found = [path for path in paths if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime_ns) if found else None
