"""Fill a table: every number is read from a metrics file and set beside the paper's, with a verdict."""

from pathlib import Path

from pipeline.records import Measured, read_evaluations, read_record
from pipeline.report.records import Cell, FilledColumn, FilledRow, FilledTable, JudgedStudy
from pipeline.study.claims import Values, judge
from pipeline.study.entries import Graph, RowEntry, TableEntry
from pipeline.study.spec import TRAIN, Column
from pipeline.study.targets import command_for


def fill_table(graph: Graph, table_id: str, selection: str) -> FilledTable:
    """The table as data; a cell that was not obtained says why."""
    table, selected = graph.table(table_id), graph.rows(table_id, selection)
    rows = []
    for row_id, row in table.rows.items():
        left_out = "" if row_id in selected else f"not a {selection} row; `{command_for('all', graph.scale)}` runs it"
        cells = {key: _cell(graph, row, column, left_out) for key, column in table.columns.items()}
        fidelities = dict.fromkeys(graph.runs[run].config["method"]["fidelity"] for run in row.runs.values())
        rows.append(FilledRow(id=row_id, label=row.label, runs=row.runs, fidelity=", ".join(fidelities), cells=cells))
    for filled in rows:
        _fill_deltas(filled, rows, table.columns, table_id)
        for key, column in table.columns.items():
            _compare(filled.cells[key], column, table.rows[filled.id].expected.get(key), graph.comparable)
    return _filled(graph, table_id, table, rows)


def _filled(graph: Graph, table_id: str, table: TableEntry, rows: list[FilledRow]) -> FilledTable:
    columns = [
        FilledColumn(id=key, label=column.label, direction=column.direction, decimals=column.decimals)
        for key, column in table.columns.items()
    ]
    return FilledTable(
        id=table_id,
        study=table.study,
        study_title=table.study_title,
        label=table.label,
        title=table.title,
        scale=graph.scale,
        comparable=graph.comparable,
        scale_note=graph.note,
        note=table.note,
        columns=columns,
        rows=rows,
    )


def judge_study(graph: Graph, study: str, selection: str) -> JudgedStudy:
    """The claims of a study, judged on the tables as they were drawn."""
    paths = [graph.results.table(key, selection) for key in graph.selected(selection, study)]
    return judge_tables(graph, study, [read_record(path, FilledTable) for path in paths])


def judge_tables(graph: Graph, study: str, tables: list[FilledTable]) -> JudgedStudy:
    """The claims of a study, judged on those of these tables that are its own."""
    values = cell_values([table for table in tables if table.study == study])
    return JudgedStudy(study=study, scale=graph.scale, claims=judge(graph.claims.get(study, {}), values))


def cell_values(tables: list[FilledTable]) -> Values:
    """(row id, column id) -> our number, for the claims."""
    return {(row.id, column.id): cell.ours for table in tables for row, column, cell in table.cells()}


def _cell(graph: Graph, row: RowEntry, column: Column, left_out: str) -> Cell:
    """A cell with our number, or with the reason why there is none; differences are filled in later."""
    if column.delta:
        return Cell()
    found = row.source(column)
    if found is None:
        return Cell(reason=row.why)
    run, key = found
    return Cell(run=run, reason=left_out) if left_out else _measured(graph, run, key, column.metric or "")


def _measured(graph: Graph, run: str, key: str, metric: str) -> Cell:
    path = graph.results.run(run).folder / graph.metrics_file(key)
    file = _shown(path, graph)
    if not path.exists():
        return Cell(run=run, reason=f"{file} has not been written")
    record = read_record(path, Measured) if key == TRAIN else read_evaluations(path).get(key)
    if record is None:
        return Cell(run=run, reason=f"{file} holds no {key}; evaluate again")
    value = record.metrics.get(metric)
    why = record.reasons.get(metric, f"{file} does not say why")
    reason = "" if value is not None else f"{metric} is n/a: {why}"
    origin = {"file": file, "metric": f"{key}: {metric}", "run": run}
    return Cell(ours=value, run=run, reason=reason, provenance={**origin, **record.provenance})


def _fill_deltas(row: FilledRow, rows: list[FilledRow], columns: dict[str, Column], table_id: str) -> None:
    for key, column in columns.items():
        if not column.delta:
            continue
        base = next(other for other in rows if other.id == f"{table_id}.{column.against}")
        minuend, subtrahend = row.cells[column.delta], base.cells[column.delta]
        cell = row.cells[key]
        cell.run = minuend.run
        if minuend.ours is None or subtrahend.ours is None:
            cell.reason = minuend.reason or subtrahend.reason
        else:
            cell.ours = minuend.ours - subtrahend.ours
            cell.provenance = {**(minuend.provenance or {}), "metric": f"{column.delta} minus {base.label}"}


def _compare(cell: Cell, column: Column, paper: float | None, comparable: bool) -> None:
    cell.paper, cell.tolerance = paper, column.tolerance
    if cell.ours is None:
        cell.verdict = "not run"
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


def _shown(path: Path, graph: Graph) -> str:
    return str(Path("results") / graph.scale / path.relative_to(graph.results.folder))
