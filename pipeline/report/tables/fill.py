"""Fill a table or a figure: every number is read from a result file and set beside the paper's, with a verdict."""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from pipeline.core.config import nearest
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.files import read_lines
from pipeline.core.registry import KINDS
from pipeline.freshness.remake import Freshness
from pipeline.report.records import Cell, FilledColumn, FilledRow, FilledTable, JudgedStudy
from pipeline.report.site.here import name_what_ran
from pipeline.report.tables.seed_noise import pooled, quantity_of, seed_noise
from pipeline.results import PER_IMAGE, ScaleFolder
from pipeline.results.records import EvalResult, Measured, TrainRecord, read_record
from pipeline.study.claims.decide import judge
from pipeline.study.claims.reading import Reading, Unavailable, tells_more
from pipeline.study.resolve.entries import CellEntry, Graph, RowEntry, TableEntry
from pipeline.study.scales import elsewhere
from pipeline.study.spec import MEAN, Column
from pipeline.study.targets import command_for, target_name

LEFT_OUT = " runs it"  # how the reason ends of a cell that the selection does not run, after the command that does


def fill_table(graph: Graph, table_id: str, selection: str, freshness: Freshness | None = None) -> FilledTable:
    """The table as data; a cell that was not obtained says why.

    With `freshness`, a cell also says whether its results are stale, and a damaged one is a reason and no error.
    """
    table, selected = graph.table(table_id), graph.rows(table_id, selection)
    left_out = f"`{command_for(target_name(table_id), graph.scale)}`{LEFT_OUT}"
    rows = [_row(graph, table, row_id, selected.get(row_id), left_out, freshness) for row_id in table.rows]
    for filled in rows:
        _fill_deltas(graph, filled, rows, table.columns, table_id)
        for key, column in table.columns.items():
            _compare(filled.cells[key], column, table.rows[filled.id].expected.get(key), graph.comparable)
    _mark_same_rows(rows, table)
    filled_table = FilledTable(
        id=table_id,
        study=table.study,
        study_title=table.study_title,
        label=table.label,
        title=table.title,
        scale=graph.scale,
        comparable=graph.comparable,
        scale_note=graph.note,
        note=table.note,
        terms=table.terms,
        columns=_columns(table, selected.values()),
        rows=rows,
        figure=table.figure,
    )
    name_what_ran(graph, filled_table)
    return filled_table


def _row(
    graph: Graph, table: TableEntry, row_id: str, selected: RowEntry | None, left_out: str, freshness: Freshness | None
) -> FilledRow:
    """`selected` has the cells that the selection runs; `left_out` says what runs the others."""
    row, runs = table.rows[row_id], selected.cells if selected else {}
    cells = {key: _cell(graph, row, key, "" if key in runs else left_out, freshness) for key in table.columns}
    fidelities = dict.fromkeys(graph.runs[run].config["method"]["fidelity"] for run in row.run_names())
    return FilledRow(
        id=row_id,
        label=row.label,
        runs=row.runs,
        fidelity=", ".join(fidelities),
        cells=cells,
        x=row.x,
        selected=selected is not None,
        has_curve=_shows_curves(table) and any(graph.results.run(run).done.exists() for run in row.run_names()),
    )


def _shows_curves(table: TableEntry) -> bool:
    return table.figure is not None and table.figure.kind == "curves"


def _columns(table: TableEntry, rows: Iterable[RowEntry]) -> list[FilledColumn]:
    """The columns; one that has the very numbers of an earlier one at this scale says so."""
    columns, seen = [], dict[str, str]()
    for key, column in table.columns.items():
        sources = [_source(row.cells[key]) if key in row.cells else None for row in rows]
        known = seen.setdefault(str(sources), column.label) if any(sources) else column.label
        columns.append(
            FilledColumn(
                id=key,
                label=column.label,
                direction=column.direction,
                decimals=column.decimals,
                x=column.x,
                same_as=known if known != column.label else "",
            )
        )
    return columns


def _mark_same_rows(rows: list[FilledRow], table: TableEntry) -> None:
    """A row that has the very numbers of an earlier one at this scale says so."""
    seen: dict[str, str] = {}
    for row in rows:
        sources = [_source(cell) for cell in table.rows[row.id].cells.values()]
        if any(sources):
            known = seen.setdefault(str(sources), row.label)
            row.same_as = known if known != row.label else ""


def _source(cell: CellEntry) -> tuple[list[str], str, str] | None:
    return (cell.sources, cell.metric, cell.file) if cell.sources else None


def judge_study(graph: Graph, study: str, selection: str) -> JudgedStudy:
    """The claims of a study, judged on the tables as they were drawn."""
    if study not in graph.studies():
        raise ConfigError(f"no study {study!r} at scale {graph.scale}; {nearest(study, graph.studies())}")
    paths = [graph.results.table(key, selection) for key in graph.judged_on(study, selection)]
    return judge_tables(graph, study, [read_record(path, FilledTable) for path in paths])


def judge_tables(graph: Graph, study: str, tables: list[FilledTable]) -> JudgedStudy:
    """The claims of a study; they may name cells of other studies, too."""
    readings = CellReadings(tables, graph)
    return JudgedStudy(study=study, scale=graph.scale, claims=judge(graph.claims.get(study, {}), readings, graph.scale))


class CellReadings(Mapping[tuple[str, str], Reading | Unavailable | None]):
    """The cells that claims name, by (row, column); values per image are read when they are asked for."""

    def __init__(self, tables: list[FilledTable], graph: Graph) -> None:
        self.cells = {(row.id, column.id): cell for table in tables for row, column, cell in table.cells()}
        self.graph = graph
        self.noise = seed_noise(graph, tables)

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.cells)

    def __getitem__(self, key: tuple[str, str]) -> Reading | Unavailable | None:
        if key not in self.cells and (why := self._elsewhere(*key)):
            return Unavailable(why)
        cell = self.cells[key]
        if cell.ours is None:
            return Unavailable(cell.reason) if cell.is_final else None
        quantity = quantity_of(self.graph, cell)
        return Reading(
            value=cell.ours,
            error=cell.image_error if cell.n > 1 else cell.error,
            seed_error=cell.error if cell.n > 1 else None,
            dof=max(cell.n - 1, 0),
            per_image=tuple(per_image(self.graph.results, cell)),
            images=cell.images,
            unit=_unit(self.graph, cell),
            source=_measurement(cell),
            run=cell.run or "",
            tolerance=cell.tolerance,
            is_one_run=bool(quantity) and cell.n == 1,
            seeds=self.noise.get(quantity),
        )

    def _elsewhere(self, row: str, column: str) -> str:
        """Why no row of its table has a number in a column here; of what is published, most rows are left out."""
        table = self.graph.tables.get(row.rpartition(".")[0])
        known = table.columns.get(column) if table else None
        return elsewhere(known.scales, self.graph.scale) if known else ""


def _unit(graph: Graph, cell: Cell) -> str:
    """What the samples are that the run behind a cell learned from: images, texts or clips."""
    run = graph.runs.get(cell.run or "")
    kind = run.config.get("data", {}).get("kind", "images") if run else "images"
    return KINDS.get(kind).unit


def _measurement(cell: Cell) -> str:
    """Two cells with the same one show the same measurement."""
    origin = cell.provenance or {}
    return f"{origin['file']} {origin['metric']}" if "file" in origin else ""


def per_image(results: ScaleFolder, cell: Cell) -> list[np.ndarray]:
    """A cell's values per image, one array per seed; none where they were not kept."""
    arrays = []
    for file in cell.per_image:
        path = results.folder / file
        try:
            with np.load(path, allow_pickle=False) as values:
                arrays.append(values[cell.metric])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            state = "not found" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
            raise DataError(f"{path} {state}; delete {path.parent} and run the workflow again") from None
    return arrays


def _cell(graph: Graph, row: RowEntry, key: str, left_out: str, freshness: Freshness | None) -> Cell:
    """A cell with our number, or with the reason why there is none; differences are filled in later."""
    entry = row.cells.get(key, CellEntry())
    if not entry.sources:
        return Cell(reason=entry.why, is_final=True)
    run = graph.run_behind(entry.sources[0])
    if left_out:
        return Cell(run=run, reason=left_out)
    # Seeds may come from several machines, in any order.
    finished = {seed: source for seed, source in enumerate(entry.sources) if (graph.results.folder / source).exists()}
    if not finished:
        return Cell(run=run, reason=f"{_shown(entry.sources[0], graph)} has not been written")
    reasons = map(freshness.why_number, finished.values()) if freshness else ()
    stale = next(filter(None, reasons), "")
    try:
        records = [(source, _read(graph, source, entry.metric)) for source in finished.values()]
    except DataError as error:
        if not stale:
            raise
        return Cell(run=run, reason=str(error), stale=stale)
    cell = _picture(graph, entry, run, records) if entry.file else _measured(graph, entry, run, records)
    cell.seeds = [*finished]
    if cell.spread and (known := graph.noise.get(quantity_of(graph, cell))):
        noise = pooled(known)
        cell.error = noise.spread / math.sqrt(cell.n) if tells_more(noise, cell.n - 1) else cell.error
    # The values per image of a stale result may be damaged, and what made its metric n/a may have changed.
    changes = {"stale": stale, "per_image": [], "images": "", "is_final": False}
    return cell.model_copy(update=changes) if stale else cell


def _read(graph: Graph, source: str, metric: str) -> Measured:
    """A result; of a training also the mean of a curve, where that is what a cell shows."""
    path = graph.results.folder / source
    if source.startswith("evals/"):
        return read_record(path, EvalResult)
    record = read_record(path, TrainRecord)
    return _with_mean(record, graph, metric) if metric.startswith(MEAN) else record


def _with_mean(record: TrainRecord, graph: Graph, metric: str) -> TrainRecord:
    """The record with the mean of a metric over all validations."""
    name, curve = metric.removeprefix(MEAN), graph.results.run(record.run).metrics
    found = [line[name] for line in read_lines(curve) if line.get(name) is not None] if curve.exists() else []
    reasons = {} if found else {metric: f"{_shown(f'runs/{record.run}/{curve.name}', graph)} has no {name}"}
    metrics = {**record.metrics, metric: fmean(found) if found else None}
    return record.model_copy(update={"metrics": metrics, "reasons": {**record.reasons, **reasons}})


def _measured(graph: Graph, entry: CellEntry, run: str | None, records: list[tuple[str, Measured]]) -> Cell:
    """The mean over seeds, with its noise."""
    for source, record in records:
        if record.metrics.get(entry.metric) is None:
            why = record.reasons.get(entry.metric, f"{_shown(source, graph)} does not say why")
            return Cell(
                run=run,
                reason=f"{entry.metric} is n/a: {why}",
                is_final=True,
                provenance=_origin(graph, entry, records),
            )
    values = [record.metrics[entry.metric] or 0.0 for _, record in records]
    spread = stdev(values) if len(values) > 1 else None
    errors = [record.errors.get(entry.metric) for _, record in records]
    known = [error for error in errors if error is not None]
    image_error = math.sqrt(fmean(error**2 for error in known)) if len(known) == len(errors) else None
    return Cell(
        ours=fmean(values) if len(values) > 1 else values[0],
        values=values,
        spread=spread,
        error=errors[0] if spread is None else spread / math.sqrt(len(values)),
        image_error=image_error,
        n=len(values),
        planned=len(entry.sources),
        metric=entry.metric,
        run=run,
        provenance=_origin(graph, entry, records),
        **_images(entry, records),
    )


def _images(entry: CellEntry, records: list[tuple[str, Measured]]) -> dict[str, Any]:
    """Which images the values are over, and where each image's value is kept, for comparisons image by image."""
    counts = {record.count_of(entry.metric) for _, record in records if _is_over_images(record, entry.metric)}
    found: dict[str, Any] = {"count": counts.pop() if len(counts) == 1 else None}
    results = [(source, record) for source, record in records if isinstance(record, EvalResult)]
    kept = [source for source, record in results if entry.metric in record.per_image]
    images = {record.images_of(entry.metric) for _, record in results}
    if len(kept) == len(records) and len(images) == 1 and "" not in images:
        found |= {"images": images.pop(), "per_image": [str(Path(source).with_name(PER_IMAGE)) for source in kept]}
    return found


def _is_over_images(record: Measured, metric: str) -> bool:
    """Training says of the number of parameters, too, that its error is 0; that one is over nothing."""
    return metric in record.errors and (isinstance(record, EvalResult) or record.errors[metric] != 0)


def _picture(graph: Graph, entry: CellEntry, run: str | None, records: list[tuple[str, Measured]]) -> Cell:
    """A picture is of the first seed that is finished."""
    picture = str(Path(records[0][0]).with_name(entry.file))
    if not (graph.results.folder / picture).exists():
        return Cell(reason=f"{_shown(picture, graph)} not found; evaluate again")
    return Cell(picture=picture, run=run, n=1, provenance=_origin(graph, entry, records))


def _run_of(record: Measured) -> str | None:
    if isinstance(record, EvalResult):
        return next(iter(record.subjects.values()), None)
    return record.run if isinstance(record, TrainRecord) else None


def _origin(graph: Graph, entry: CellEntry, records: list[tuple[str, Measured]]) -> dict[str, Any]:
    """Where a number comes from: its files, then the facts of the first."""
    record = records[0][1]
    files = ", ".join(_shown(source, graph) for source, _ in records)
    origin = {"file": files, "metric": entry.metric or entry.file, "run": _run_of(record)}
    if isinstance(record, EvalResult):
        origin |= {"metric": f"{record.evaluation}: {origin['metric']}", **record.inputs.model_dump()}
    return {**{key: value for key, value in origin.items() if value}, **record.provenance}


def _fill_deltas(
    graph: Graph, row: FilledRow, rows: list[FilledRow], columns: dict[str, Column], table_id: str
) -> None:
    for key, column in columns.items():
        if not column.delta:
            continue
        base = row if column.minus else next(other for other in rows if other.id == f"{table_id}.{column.against}")
        minuend, subtrahend = row.cells[column.delta], base.cells[column.minus or column.delta]
        cell = row.cells[key]
        cell.run, cell.stale = minuend.run, minuend.stale or subtrahend.stale
        cell.is_final = minuend.is_final or subtrahend.is_final
        if minuend.ours is None or subtrahend.ours is None:
            cell.reason = minuend.reason or subtrahend.reason
            continue
        cell.ours, cell.n = minuend.ours - subtrahend.ours, min(minuend.n, subtrahend.n)
        cell.planned = max(minuend.planned, subtrahend.planned)
        ours, theirs = (dict(zip(each.seeds, each.values, strict=True)) for each in (minuend, subtrahend))
        cell.seeds, cell.count = [seed for seed in ours if seed in theirs], minuend.count
        cell.values = [ours[seed] - theirs[seed] for seed in cell.seeds]
        cell.error = _error_of_difference(graph, minuend, subtrahend)
        cell.provenance = {**(minuend.provenance or {}), "metric": f"{column.delta} minus {column.minus or base.label}"}


def _error_of_difference(graph: Graph, one: Cell, other: Cell) -> float | None:
    """Image by image where both have one seed and saw the same images, else as of independent numbers."""
    if one.n == other.n == 1 and one.images and one.images == other.images:
        (left,), (right,) = per_image(graph.results, one), per_image(graph.results, other)
        return float((left - right).std()) / math.sqrt(len(left))
    if one.error is None or other.error is None:
        return None
    return math.hypot(one.error, other.error)


def _compare(cell: Cell, column: Column, paper: float | None, comparable: bool) -> None:
    cell.paper, cell.tolerance = paper, column.tolerance
    if cell.ours is None:
        cell.verdict = "no paper value" if cell.picture else "not run"
        return
    if paper is None:
        cell.verdict = "no paper value"
        return
    cell.difference = cell.ours - paper
    if not comparable:
        cell.verdict = "not comparable"
    elif column.tolerance is None:
        cell.verdict, cell.reason = "not comparable", "no tolerance is set for this column"
    else:
        # The printed precision is part of the comparison: 80.04 and 80.5 differ by what the paper would print.
        shown = round(abs(round(cell.ours, column.decimals) - paper), column.decimals)
        cell.verdict = "match" if shown <= column.tolerance else "differs"


def _shown(source: str, graph: Graph) -> str:
    return str(Path("results") / graph.scale / source)
