"""Results as training, evaluation and drawing write them, without the hours."""

import sqlite3
from pathlib import Path

from patience import PATIENCE_S
from result_files import write_evaluation

from pipeline.core.files import write_json, write_text
from pipeline.engine.meters import MetricsFile
from pipeline.report.tables import draw
from pipeline.report.tables.fill import fill_table, judge_study
from pipeline.results import RunFolder
from pipeline.results.records import Inputs, TrainRecord, write_record
from pipeline.study.resolve.entries import Graph

COMMIT = "c0ffee" * 6
RUNS = (
    "(select run_uuid, status, substr(tags.value, 1, instr(tags.value, '@') - 1) as name from runs"
    " join experiments using (experiment_id) join tags using (run_uuid)"
    " where tags.key = 'patchwork.name' and experiments.name = ?)"
)


def begin(graph: Graph, name: str, identity: str = "0123456789abcdef") -> RunFolder:
    """A run that has started, and logged nothing yet."""
    folder = graph.results.run(name)
    write_text(folder.config, f"seed: 0  # of {name}\n")
    write_json(folder.started, {"identity": identity, "commit": COMMIT, "steps": 100})
    return folder


def log_steps(folder: RunFolder, steps: range, keep_bytes: int | None = None, lift: float = 0.0) -> int:
    """Append a line per step, after cutting the file back; returns its size."""
    file = MetricsFile(folder.metrics, keep_bytes)
    for step in steps:
        file.append(step=step, epoch=step / 10, loss=1 / step + lift, lr=0.1)
    return file.sync()


def finish(folder: RunFolder, **metrics: float) -> None:
    origin = {"commit": COMMIT, "device": "cpu", "steps": 100, "wall_s": 1.0, "seed": 0}
    inputs = Inputs(data="0123456789ab", init=None)
    found = {"params_m": 1.5, **metrics}
    write_record(folder.done, TrainRecord(run=folder.name, metrics=found, files={}, inputs=inputs, provenance=origin))


def evaluate(graph: Graph, name: str, **metrics: float | None) -> None:
    origin = {"commit": COMMIT, "device": "cpu", "eval_fingerprint": "e1", "wall_s": 1.0, "seed": 0}
    write_evaluation(graph, classify_of(graph, name), metrics, provenance=origin)


def classify_of(graph: Graph, run: str) -> str:
    """The name of the evaluation of a run's accuracy."""
    (name,) = [each for each in graph.evaluations_of(run) if graph.evals[each].fragment == "classify"]
    return name


def draw_table(graph: Graph, table: str) -> None:
    """The table, its drawings, the claims of its study and a page."""
    filled, path = fill_table(graph, table, "all"), graph.results.table(table, "all")
    for suffix, text in draw.files_of(filled, graph.results.read).items():
        write_text(path.with_name(table + suffix), text)
    write_record(path, filled)
    study = filled.study
    for other in graph.selected("all", study):
        if not graph.results.table(other, "all").exists():
            write_record(graph.results.table(other, "all"), fill_table(graph, other, "all"))
    write_record(graph.results.claims(study, "all"), judge_study(graph, study, "all"))
    write_text(graph.results.folder / "report/all.html", "<p>the report</p>\n")


def points(database: Path, graph: Graph) -> list[tuple[str, str, int]]:
    """(run name, metric, step) of all points that MLflow has of the runs of a scale, read past MLflow."""
    return _query(
        database, graph, f"select shown.name, metrics.key, step from metrics join {RUNS} shown using (run_uuid)"
    )


def statuses(database: Path, graph: Graph) -> dict[str, str]:
    """Run name -> status in MLflow, of the runs of a scale, read past MLflow."""
    return dict(_query(database, graph, f"select name, status from {RUNS}"))


def _query(database: Path, graph: Graph, query: str) -> list[tuple]:
    # Not read-only: where a follower was killed while it wrote, the first to look rolls its journal back.
    with sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=PATIENCE_S) as connection:
        return connection.execute(query, [f"patchwork-{graph.scale}"]).fetchall()
