"""The metrics of a headline as one file, and back: a tree of results in which tables are filled and claims judged.

Values per image are published of the cells that claims compare and of those behind columns of differences: the noise
of a difference between two models on the same images cannot be had from their standard errors.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from pipeline.core.config import Record, shown
from pipeline.core.errors import DataError
from pipeline.core.files import read_lines, write_atomic, write_text
from pipeline.publishing.selection import sources_of
from pipeline.report.collect import public_facts
from pipeline.report.records import FilledTable
from pipeline.results import ScaleFolder
from pipeline.results.records import EvalResult, TrainRecord, read_record, write_record
from pipeline.study.resolve.entries import Graph
from pipeline.study.spec import MEAN

Arrays = dict[str, np.ndarray]  # evaluation/metric -> one value per image


class PublishedRun(TrainRecord):
    curves: dict[str, list[float]] = Field(
        default_factory=dict, description="metrics of validation of which tables show the mean, for each validation"
    )


class Metrics(Record):
    """What was measured: the records of training and of evaluations, without the files beside them."""

    scale: str
    runs: dict[str, PublishedRun]
    evaluations: dict[str, EvalResult]


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
            runs[name] = _with_curves(graph, results, _without_machine(read_record(path, TrainRecord)))
    return Metrics(scale=graph.scale, runs=runs, evaluations=evaluations)


def _without_machine(record: Any) -> Any:
    return record.model_copy(update={"provenance": public_facts(record.provenance)})


def _with_curves(graph: Graph, results: ScaleFolder, record: TrainRecord) -> PublishedRun:
    cells = [cell for table in graph.tables.values() for row in table.rows.values() for cell in row.cells.values()]
    means = {
        cell.metric for cell in cells if cell.metric.startswith(MEAN) and any(record.run in s for s in cell.sources)
    }
    path = results.run(record.run).metrics
    lines = read_lines(path) if means and path.exists() else []
    names = sorted(name.removeprefix(MEAN) for name in means)
    curves = {name: [line[name] for line in lines if line.get(name) is not None] for name in names}
    return PublishedRun(**dict(record), curves=curves)


def gather_images(graph: Graph, results: ScaleFolder, tables: list[FilledTable]) -> Arrays:
    """Values per image of the cells that need them; `tables` are filled from these results."""
    wanted, arrays = {*_cells_of_claims(graph), *_cells_of_differences(graph)}, {}
    for table in tables:
        for row, column, cell in table.cells():
            for file in cell.per_image if (row.id, column.id) in wanted else []:
                with np.load(results.folder / file, allow_pickle=False) as values:
                    arrays[f"{Path(file).parent.name}/{cell.metric}"] = _small(values[cell.metric])
    return arrays


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
        with np.load(path, allow_pickle=False) as values:
            return {name: values[name].astype(np.float32) for name in values.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{shown(path)} cannot be read ({error}); restore it with git, or publish again") from None


def lay_out(metrics: Metrics, arrays: Arrays, results: ScaleFolder) -> None:
    """Write the records where tables look for them."""
    for name, run in metrics.runs.items():
        folder = results.run(name)
        write_record(folder.done, TrainRecord(**{key: getattr(run, key) for key in TrainRecord.model_fields}))
        lines = [json.dumps({key: value}) for key, values in run.curves.items() for value in values]
        write_text(folder.metrics, "".join(f"{line}\n" for line in lines))
    for name, result in metrics.evaluations.items():
        write_record(results.evaluation(name).result, result)
        own = {key.partition("/")[2]: values for key, values in arrays.items() if key.startswith(f"{name}/")}
        if own:
            write_arrays(results.evaluation(name).per_image, own)
