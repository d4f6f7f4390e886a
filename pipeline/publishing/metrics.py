"""The results of a headline as three files, and back: a tree of results, to fill tables or to be merged.

Values per image are published of the cells that claims compare and of those behind columns of differences: the noise
of a difference between two models on the same images cannot be had from their standard errors. Of what training wrote,
all but the weights is published. Published folders may come from other people: names and sizes are checked.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pipeline.core.config import Record, shown
from pipeline.core.errors import DataError
from pipeline.core.files import digest, write_atomic, write_text
from pipeline.core.naming import Name
from pipeline.data.store.archives import extract, unpacked_size
from pipeline.publishing.selection import sources_of
from pipeline.report.collect import public_facts
from pipeline.results import LOGGED, WEIGHTS, RunFolder, ScaleFolder
from pipeline.results.records import EvalResult, FilesElsewhere, TrainRecord, read_record, write_record
from pipeline.study.resolve.entries import CellEntry, Graph

METRICS, PER_IMAGE, RUNS = "metrics.json", "per_image.npz", "runs.zip"
MOST_UNPACKED = 300_000_000  # bytes of the files in an archive

UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)

Arrays = dict[str, np.ndarray]  # evaluation/metric -> one value per image


class Metrics(Record):
    """What was measured: the records of training and of evaluations, without the files beside them."""

    scale: str
    runs: dict[Name, TrainRecord]
    evaluations: dict[Name, EvalResult]


def gather(graph: Graph, results: ScaleFolder) -> Metrics:
    """Read the record of everything that is finished."""
    runs, evaluations = {}, {}
    for source in sources_of(graph):
        path, name = results.folder / source, source.split("/")[1]
        if not path.exists():
            continue
        if source.startswith("evals/"):
            evaluations[name] = _without_machine(read_record(path, EvalResult))
        else:
            runs[name] = _without_machine(read_record(path, TrainRecord))
    return Metrics(scale=graph.scale, runs=runs, evaluations=evaluations)


def _without_machine(record: Any) -> Any:
    return record.model_copy(update={"provenance": public_facts(record.provenance)})


def gather_images(graph: Graph, results: ScaleFolder, metrics: Metrics) -> Arrays:
    """Values per image of the cells that need them, of every seed."""
    arrays = {}
    for cell in _compared_cells(graph):
        for name in [source.split("/")[1] for source in cell.sources]:
            result = metrics.evaluations.get(name)
            if result and cell.metric in result.per_image:
                with np.load(results.evaluation(name).per_image, allow_pickle=False) as values:
                    arrays[f"{name}/{cell.metric}"] = _small(values[cell.metric])
    return arrays


def _compared_cells(graph: Graph) -> Iterator[CellEntry]:
    wanted = {*_cells_of_claims(graph), *_cells_of_differences(graph)}
    for table in graph.tables.values():
        for row_id, row in table.rows.items():
            yield from (cell for column, cell in row.cells.items() if (row_id, column) in wanted)


def _small(values: np.ndarray) -> np.ndarray:
    """Right and wrong as bytes; they are most of what there is."""
    as_bytes = values.astype(np.uint8) if values.min(initial=0) >= 0 and values.max(initial=0) <= 255 else values
    return as_bytes if np.array_equal(as_bytes, values) else values


def _cells_of_claims(graph: Graph) -> Iterator[tuple[str, str]]:
    for claims in graph.claims.values():
        for claim in claims.values():
            yield from (cell for comparison in claim.comparisons() for cell in comparison.cells)


def _cells_of_differences(graph: Graph) -> Iterator[tuple[str, str]]:
    for table in graph.tables.values():
        for column in table.columns.values():
            names = [column.delta, column.minus] if column.delta else []
            yield from ((row, name) for row in table.rows for name in names if name)


def write_metrics(path: Path, metrics: Metrics) -> None:
    """One run or evaluation a line, so that a later version differs in the lines of what is new."""
    content = metrics.model_dump(mode="json")
    sections = [f'"{key}": {{\n{_by_line(content[key])}\n}}' for key in ("runs", "evaluations")]
    write_text(path, f'{{"scale": {json.dumps(metrics.scale)},\n' + ",\n".join(sections) + "}\n")


def _by_line(entries: dict[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False)}" for name, entry in entries.items())


def read_metrics(path: Path) -> Metrics:
    try:
        return Metrics.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(f"{shown(path)} cannot be read ({error}); restore it with git, or publish again") from None


def write_arrays(path: Path, arrays: Arrays) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: arrays[name] for name in sorted(arrays)})  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def read_arrays(path: Path) -> Arrays:
    try:
        _require_bounded(path)
        with np.load(path, allow_pickle=False) as values:
            return {name: values[name].astype(np.float32) for name in values.files}
    except (*UNREADABLE, MemoryError) as error:
        raise DataError(f"{shown(path)} cannot be read ({error}); restore it with git, or publish again") from None


def write_run_files(path: Path, metrics: Metrics, results: ScaleFolder) -> None:
    """What training wrote beside each record, without weights; the same files give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, record in sorted(metrics.runs.items()):
            folder = results.run(name)
            for file in sorted({*record.files, folder.timing.name}):
                if not file.endswith(WEIGHTS) and (folder.folder / file).exists():
                    entry = zipfile.ZipInfo(f"{name}/{file}")  # of 1980, whenever it is written
                    archive.writestr(entry, (folder.folder / file).read_bytes(), zipfile.ZIP_DEFLATED, 9)
    write_atomic(path, buffer.getvalue())


def runs_without_curve(path: Path, metrics: Metrics) -> int:
    """Runs that logged metrics which are not published."""
    published = zipfile.ZipFile(path).namelist() if path.exists() else []
    return sum(LOGGED in run.files and f"{name}/{LOGGED}" not in published for name, run in metrics.runs.items())


def _read_run_files(path: Path, runs: Path) -> None:
    """Unpack them; folders from before they were published have none."""
    if not path.exists():
        return
    try:
        _require_bounded(path)
        extract(path, runs)
    except UNREADABLE as error:
        raise DataError(f"{shown(path)} cannot be read ({error}); restore it with git, or publish again") from None


def _require_bounded(path: Path) -> None:
    if (size := unpacked_size(path)) > MOST_UNPACKED:
        raise ValueError(f"its files have {size:,} bytes, expected {MOST_UNPACKED:,} at most")


def lay_out(published: Path, results: ScaleFolder) -> None:
    """Write what a published folder has where results lie. Records of runs name the files that are elsewhere."""
    metrics, arrays = read_metrics(published / METRICS), read_arrays(published / PER_IMAGE)
    _read_run_files(published / RUNS, results.runs)
    for name, record in metrics.runs.items():
        folder = results.run(name)
        write_record(folder.done, record)
        write_record(folder.elsewhere, FilesElsewhere(place="", files=_files_not_in(folder, record)))
    for name, result in metrics.evaluations.items():
        own = {metric: arrays[key] for metric in result.per_image if (key := f"{name}/{metric}") in arrays}
        _lay_out_evaluation(results, name, result, own)


def _files_not_in(folder: RunFolder, record: TrainRecord) -> dict[str, str]:
    return {file: sha256 for file, sha256 in record.files.items() if not (folder.folder / file).exists()}


def _lay_out_evaluation(results: ScaleFolder, name: str, result: EvalResult, own: Arrays) -> None:
    """Its record says of the files beside it, so that it can be compared with them: other files are not published."""
    folder, files = results.evaluation(name), {}
    if own:
        buffer = io.BytesIO()
        np.savez(buffer, **own)  # type: ignore[arg-type]
        write_atomic(folder.per_image, buffer.getvalue())
        files[folder.per_image.name] = digest(folder.per_image) or ""
    write_record(folder.result, result.model_copy(update={"files": files, "per_image": [*own]}))
