"""Fill a table: every number is read from a metrics file and set beside the paper's, with a verdict."""

import json
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.study.claims import judge
from pipeline.study.graph import Graph
from pipeline.study.rows import source
from pipeline.study.spec import TRAIN


def fill_table(graph: Graph, table_id: str, selection: str) -> dict[str, Any]:
    """The table as data; a cell that was not obtained says why."""
    spec, selected = graph.find("tables", table_id), graph.rows(table_id, selection)
    rows = []
    for row_id, row in spec["rows"].items():
        left_out = "" if row_id in selected else f"not a {selection} row; `snakemake all` runs it"
        cells = {key: _cell(graph, row, column, left_out) for key, column in spec["columns"].items()}
        fidelities = dict.fromkeys(graph.runs[run]["config"]["method"]["fidelity"] for run in row["runs"].values())
        about = {"id": row_id, "label": row["label"], "runs": row["runs"], "fidelity": ", ".join(fidelities)}
        rows.append({**about, "cells": cells})
    for row in rows:
        _fill_deltas(row, rows, spec["columns"], table_id)
        for key, column in spec["columns"].items():
            _compare(row["cells"][key], column, spec["rows"][row["id"]]["expected"].get(key), graph.comparable)
    return {
        "id": table_id,
        "study": spec["study"],
        "study_title": spec["study_title"],
        "label": spec["label"],
        "title": spec["title"],
        "scale": graph.scale,
        "comparable": graph.comparable,
        "scale_note": graph.note,
        "note": spec["note"],
        "columns": [{"id": key, **column} for key, column in spec["columns"].items()],
        "rows": rows,
    }


def cell_values(tables: list[dict[str, Any]]) -> dict[tuple[str, str], float | None]:
    """(row id, column id) -> our number, for the claims."""
    return {
        (row["id"], key): cell["ours"]
        for table in tables
        for row in table["rows"]
        for key, cell in row["cells"].items()
    }


def _cell(graph: Graph, row: dict[str, Any], column: dict[str, Any], left_out: str) -> dict[str, Any]:
    """A cell with our number, or with the reason why there is none; differences are filled in later."""
    if column["delta"]:
        return _empty(None, "")
    found = source(row, column)
    if found is None:
        return _empty(None, row["why"])
    run, key = found
    return _empty(run, left_out) if left_out else _measured(graph, run, key, column["metric"])


def _empty(run: str | None, reason: str) -> dict[str, Any]:
    return {"ours": None, "run": run, "reason": reason, "provenance": None}


def _measured(graph: Graph, run: str, key: str, metric: str) -> dict[str, Any]:
    path = graph.results.run(run).folder / graph.metrics_file(key)
    file = _shown(path, graph)
    if not path.exists():
        return _empty(run, f"{file} has not been written")
    record = read_record(path) if key == TRAIN else read_record(path).get(key)
    if not record:
        return _empty(run, f"{file} holds no {key}; evaluate again")
    value = record["metrics"].get(metric)
    why = record.get("reasons", {}).get(metric, f"{file} does not say why")
    reason = "" if value is not None else f"{metric} is n/a: {why}"
    origin = {"file": file, "metric": f"{key}: {metric}", "run": run}
    return {"ours": value, "run": run, "reason": reason, "provenance": {**origin, **record["provenance"]}}


def _fill_deltas(row: dict[str, Any], rows: list[dict[str, Any]], columns: dict[str, Any], table_id: str) -> None:
    for key, column in columns.items():
        if not column["delta"]:
            continue
        base = next(other for other in rows if other["id"] == f"{table_id}.{column['against']}")
        minuend, subtrahend = row["cells"][column["delta"]], base["cells"][column["delta"]]
        cell = row["cells"][key]
        cell["run"] = minuend["run"]
        if minuend["ours"] is None or subtrahend["ours"] is None:
            cell["reason"] = minuend["reason"] or subtrahend["reason"]
        else:
            cell["ours"] = minuend["ours"] - subtrahend["ours"]
            cell["provenance"] = {**minuend["provenance"], "metric": f"{column['delta']} minus {base['label']}"}


def _compare(cell: dict[str, Any], column: dict[str, Any], paper: float | None, comparable: bool) -> None:
    ours, tolerance = cell["ours"], column["tolerance"]
    both = ours is not None and paper is not None
    cell.update(paper=paper, difference=ours - paper if both else None, tolerance=tolerance)
    if ours is None:
        cell["verdict"] = "not run"
    elif paper is None:
        cell["verdict"] = "no paper value"
    elif not comparable:
        cell["verdict"] = "not comparable"
    elif tolerance is None:
        cell["verdict"], cell["reason"] = "not comparable", "no tolerance is set for this column"
    else:
        # The printed precision is part of the comparison: 80.04 and 80.5 differ by what the paper would print.
        shown = round(abs(round(ours, column["decimals"]) - paper), column["decimals"])
        cell["verdict"] = "match" if shown <= tolerance else "differs"


def read_record(path: Path) -> dict[str, Any]:
    """A JSON file of the results."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path} is not there; run the workflow, which writes it first") from None
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); delete it and run the workflow again") from None
    if not isinstance(record, dict):
        raise DataError(f"{path} is damaged (no mapping); delete it and run the workflow again")
    return record


def _shown(path: Path, graph: Graph) -> str:
    return str(Path("results") / graph.scale / path.relative_to(graph.results.folder))


def judge_study(graph: Graph, study: str, selection: str) -> dict[str, Any]:
    """The claims of a study, judged on the tables as they were drawn."""
    ids = graph.selected(selection, study)
    values = cell_values([read_record(graph.results.table(key, selection)) for key in ids])
    return {"study": study, "scale": graph.scale, "claims": judge(graph.claims.get(study, {}), values)}
