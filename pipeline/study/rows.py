"""From the tables of a study to cells: which run and which evaluation each of them takes its number from."""

from typing import TYPE_CHECKING

from pipeline.config import Layers, nearest, parse
from pipeline.errors import ConfigError
from pipeline.study.draft import Draft, fragment
from pipeline.study.entries import RowEntry, TableEntry, source
from pipeline.study.spec import TRAIN, TRAIN_METRICS, Column, Table

if TYPE_CHECKING:
    from pipeline.evals.base import Evaluation


def add_table(draft: Draft, name: str, table: Table) -> None:
    """Check a table, register the evaluations behind it, and put it into the graph."""
    where = f"{draft.file}: tables.{name}"
    lines = _row_problems(draft, table, where) + _column_problems(table, where)
    lines += _expected_problems(draft, name, table, where)
    rows = _resolved_rows(draft, name, table)
    for key, column in table.columns.items():
        if not column.delta:
            lines += _source_problems(draft, column, rows, f"{where}.columns.{key}")
    if lines:
        raise ConfigError("\n".join(lines))
    draft.graph.tables[f"{draft.name}.{name}"] = TableEntry(
        study=draft.name,
        study_title=draft.study.title,
        label=table.label,
        title=table.title,
        note=table.note,
        columns=table.columns,
        rows=rows,
    )


def _row_problems(draft: Draft, table: Table, where: str) -> list[str]:
    lines = []
    measured = {key: column for key, column in table.columns.items() if not column.delta}
    roles = {role for column in measured.values() for role in (column.run, column.partner) if role}
    all_named = all(column.run for column in measured.values())
    for row_id, row in table.rows.items():
        at = f"{where}.rows.{row_id}"
        for role, key in row.run.items():
            if key not in draft.study.runs:
                place = f"{at}.run.{role}" if role else f"{at}.run"
                lines.append(f"{place}: no run {key!r}; {nearest(key, draft.study.runs)}")
        unknown = [role for role in row.run if role and role not in roles] if all_named else []
        lines += [f"{at}.run.{role}: no column has this role; {nearest(role, roles)}" for role in unknown]
        # A column without a role is itself the problem where a row has its runs by role.
        asked = {key: column for key, column in measured.items() if column.run or not row.run}
        empty = [key for key, column in asked.items() if not source(row.run, column)]
        if empty and not row.why and not unknown:
            lines.append(f"{at}: no run for {', '.join(empty)}; name one in `run`, or the reason in `why`")
    return lines


def _column_problems(table: Table, where: str) -> list[str]:
    lines = []
    measured = [key for key, column in table.columns.items() if not column.delta]
    by_role = [row_id for row_id, row in table.rows.items() if row.run and "" not in row.run]
    for key, column in table.columns.items():
        at = f"{where}.columns.{key}"
        if key in measured and not column.run and by_role:
            roles = ", ".join(table.rows[by_role[0]].run)
            lines.append(f"{at}.run: not given, and row {by_role[0]!r} has its runs by role; choose from {roles}")
        if column.delta and column.delta not in measured:
            lines.append(f"{at}.delta: no measured column {column.delta!r}; {nearest(column.delta, measured)}")
        if column.against and column.against not in table.rows:
            lines.append(f"{at}.against: no row {column.against!r}; {nearest(column.against, table.rows)}")
    return lines


def _expected_problems(draft: Draft, name: str, table: Table, where: str) -> list[str]:
    lines, expected, file = [], draft.expected.rows, draft.expected_file
    for row_id, row in table.rows.items():
        full_id = f"{draft.name}.{name}.{row_id}"
        if row.paper and expected and full_id not in expected:
            hint = f"{nearest(full_id, expected)}; `paper: false` says that the paper has no such row"
            lines.append(f"{where}.rows.{row_id}: {file} has no row {full_id!r}; {hint}")
        for column in sorted(expected.get(full_id, {}).keys() - table.columns.keys()):
            hint = nearest(column, table.columns)
            lines.append(f"{file}: rows.{full_id}.{column}: the table has no such column; {hint}")
    return lines


def _resolved_rows(draft: Draft, name: str, table: Table) -> dict[str, RowEntry]:
    """Rows with names of runs in place of their keys; without those that have problems, which are reported."""
    rows = {}
    for row_id, row in table.rows.items():
        full_id = f"{draft.name}.{name}.{row_id}"
        if draft.runs.keys() >= set(row.run.values()):
            runs = {role: draft.runs[key] for role, key in row.run.items()}
            about = {"label": row.label, "why": row.why, "headline": row.headline}
            rows[full_id] = RowEntry(**about, runs=runs, expected=draft.expected.rows.get(full_id, {}))
    return rows


def _source_problems(draft: Draft, column: Column, rows: dict[str, RowEntry], where: str) -> list[str]:
    """Register a column's evaluation for the runs it takes numbers from, and check the metric it asks for."""
    try:
        metrics = TRAIN_METRICS if column.eval == TRAIN else _add_eval(draft, column, rows, where)
    except ConfigError as error:
        return str(error).splitlines()
    if column.metric in metrics:
        return []
    hint = nearest(column.metric or "", metrics)
    return [f"{where}.metric: {column.eval} has no metric {column.metric!r}; {hint}"]


def _add_eval(draft: Draft, column: Column, rows: dict[str, RowEntry], where: str) -> tuple[str, ...]:
    """The names of the metrics of the evaluation, registered once for each partner."""
    from pipeline.evals.base import EVALS

    name, graph = column.eval or "", draft.graph
    layers = [fragment("eval", name, f"{where}.eval")]
    layers.append((f"{draft.scale_file}: eval.{name}", draft.scale.eval.get(name, {})))
    try:
        evaluation = EVALS.get(Layers(*layers).merged().get("name", ""))
    except ConfigError as error:
        raise ConfigError(f"{Layers(*layers).origin(('name',))}: name: {error}") from None
    if "partner" in evaluation.Config.model_fields and not column.partner:
        raise ConfigError(f"{where}.partner: not given, and {name} is of two runs; name the role of the second")
    for row_id, row in rows.items():
        if found := row.source(column):
            run, key = found
            _check_method(evaluation, graph.runs[run].method, f"{where}.eval: row {row_id}")
            partner = {"partner": row.runs[column.partner]} if column.partner else {}
            graph.evals[key] = parse(evaluation.Config, Layers(*layers, (where, partner))).model_dump(mode="json")
            groups, group = graph.runs[run].groups, graph.evals[key]["group"]
            groups[group] = sorted({*groups.get(group, []), key})
    return parse(evaluation.Config, Layers(*layers)).metrics


def _check_method(evaluation: "type[Evaluation]", name: str, where: str) -> None:
    """A pretrained run classifies nothing; positions are predicted by the methods that learn to."""
    from pipeline.methods.base import METHODS

    task = METHODS.get(name).Config.task
    if name not in evaluation.methods and (evaluation.methods or task != "classify"):
        wanted = " or ".join(evaluation.methods) or "a method that classifies"
        raise ConfigError(f"{where}: found a run of method {name}, expected {wanted}; give the column another role")
