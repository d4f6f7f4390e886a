"""From the tables and figures of a study to cells: which results each of them takes its number or picture from."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.core.config import Layers, fingerprint, nearest, parse_as_meant, science
from pipeline.core.errors import ConfigError
from pipeline.core.registry import METHODS, TASKS
from pipeline.study.resolve.data import data_configs
from pipeline.study.resolve.draft import Draft, fragment_names
from pipeline.study.resolve.entries import CellEntry, EvalEntry, EvalJob, RowEntry, TableEntry
from pipeline.study.resolve.evals import eval_layers
from pipeline.study.scales import elsewhere
from pipeline.study.spec import MEAN, TRAIN, TRAIN_METRICS, Column, Figure, Row, Table

if TYPE_CHECKING:
    from pipeline.data.kind import BaseDataConfig
    from pipeline.evals.base import EvalConfig, Evaluation

CURVE = "curve"
PROBLEM, MISSING = "its run has a problem", "it has no run"  # reported where the run is, and for the whole table
UNTRAINED = "it is a weight file, which is not trained here"


def add_table(draft: Draft, name: str, table: Table) -> None:
    """Check a table or figure, register the evaluations behind it, and put it into the graph."""
    where = f"{draft.file}: {'figures' if isinstance(table, Figure) else 'tables'}.{name}"
    lines = _row_problems(draft, table, where) + _column_problems(table, where) + _scale_problems(table, where)
    lines += _expected_problems(draft, name, table, where) + _curve_problems(draft, table, where)
    cells: dict[str, dict[str, CellEntry]] = {row: _curve(draft, table, row) for row in table.rows}
    for key, column in table.columns.items():
        if not column.delta and (isinstance(table, Figure) or not column.file):
            lines += _fill_column(draft, table, key, cells, f"{where}.columns.{key}")
    lines += _missing_runs(table, cells, where)
    if lines:
        raise ConfigError("\n".join(lines))
    true_here = draft.scale.apply_wording
    draft.graph.tables[f"{draft.name}.{name}"] = TableEntry(
        study=draft.name,
        study_title=draft.study.title,
        label=table.label,
        title=true_here(table.title),
        note=true_here(table.note),
        terms={true_here(word): true_here(text) for word, text in draft.study.terms.items()},
        columns={key: each.model_copy(update={"label": true_here(each.label)}) for key, each in table.columns.items()},
        rows={f"{draft.name}.{name}.{row}": _row(draft, name, table, row, cells[row]) for row in table.rows},
        figure=table.drawing if isinstance(table, Figure) else None,
    )


def _row(draft: Draft, name: str, table: Table, key: str, cells: dict[str, CellEntry]) -> RowEntry:
    row = table.rows[key]
    return RowEntry(
        label=draft.scale.apply_wording(row.label),
        headline=draft.study.is_headline(name, key),
        outside_headline=draft.study.outside_headline(name, key),
        runs={role: draft.runs.get(run, []) for role, run in row.run.items()},
        cells=cells,
        expected=draft.expected.rows.get(f"{draft.name}.{name}.{key}", {}),
        x=row.x,
    )


def _curve(draft: Draft, table: Table, key: str) -> dict[str, CellEntry]:
    """What a figure of training curves waits for in a row, whether or not it has columns."""
    if not (isinstance(table, Figure) and table.kind == "curves"):
        return {}
    row = table.rows[key]
    names = [name for run in row.run.values() for name in draft.runs.get(run, [])]
    trained = [name for name in names if draft.parsed[name].train]
    if trained:
        return {CURVE: CellEntry(sources=[f"runs/{name}/train.json" for name in trained])}
    return {CURVE: CellEntry(why=UNTRAINED if names else row.why or (PROBLEM if row.run else MISSING))}


def _row_problems(draft: Draft, table: Table, where: str) -> list[str]:
    lines = []
    columns = [column for column in table.columns.values() if not column.delta]
    roles = {role for column in columns for role in column.roles.values() if role}
    all_named = all(column.run for column in columns)
    for row_id, row in table.rows.items():
        for role, key in row.run.items():
            place = f"{where}.rows.{row_id}.run" + (f".{role}" if role else "")
            if key not in draft.study.runs:
                lines.append(f"{place}: no run {key!r}; {nearest(key, draft.study.runs)}")
            elif role and all_named and role not in roles:
                lines.append(f"{place}: no column has this role; {nearest(role, roles)}")
    return lines


def _missing_runs(table: Table, cells: dict[str, dict[str, CellEntry]], where: str) -> list[str]:
    """Cells for which the row names no run, and no reason."""
    lines = []
    for row_id, row in table.rows.items():
        missing = [key for key, cell in cells[row_id].items() if cell.why == MISSING]
        if CURVE in missing and CURVE not in table.columns:
            lines.append(f"{where}.rows.{row_id}: no run for the curve; name one in `run`, or the reason in `why`")
            continue
        by_role = [key for key in missing if row.run and not table.columns[key].run]
        lines += [
            f"{where}.columns.{key}.run: not given, and row {row_id!r} has its runs by role; choose from "
            f"{', '.join(row.run)}"
            for key in by_role
        ]
        if others := [key for key in missing if key not in by_role]:
            lines.append(f"{where}.rows.{row_id}: {_no_run_for(table, others)}, or the reason in `why`")
    return lines


def _no_run_for(table: Table, columns: list[str]) -> str:
    roles = [*dict.fromkeys(role for key in columns for role in table.columns[key].roles.values() if role)]
    each = f" for each of the roles {', '.join(roles)}" if len(roles) > 1 else ""
    return f"no run for column{'s' * (len(columns) > 1)} {', '.join(columns)}; name one in `run`{each}"


def _column_problems(table: Table, where: str) -> list[str]:
    lines = []
    measured = [key for key, column in table.columns.items() if not column.delta]
    for key, column in table.columns.items():
        at = f"{where}.columns.{key}"
        if column.file and not isinstance(table, Figure):
            lines.append(f"{at}.file: a table shows numbers; put pictures into a figure of kind: pictures")
        for name in ("delta", "minus"):
            other = getattr(column, name)
            if other and other not in measured:
                lines.append(f"{at}.{name}: no measured column {other!r}; {nearest(other, measured)}")
        if column.against and column.against not in table.rows:
            lines.append(f"{at}.against: no row {column.against!r}; {nearest(column.against, table.rows)}")
    return lines


def _scale_problems(table: Table, where: str) -> list[str]:
    parts: dict[str, Row | Column] = {f"columns.{key}": column for key, column in table.columns.items()}
    parts |= {f"rows.{key}": row for key, row in table.rows.items()}
    known = fragment_names("scale")
    return [
        f"{where}.{place}.scales: no scale {name!r}; {nearest(name, known)}"
        for place, part in parts.items()
        for name in part.scales
        if name not in known
    ]


def _curve_problems(draft: Draft, table: Table, where: str) -> list[str]:
    """A metric that no training logs would draw an empty figure."""
    if not isinstance(table, Figure) or not table.curve:
        return []
    logged = ["loss", "val_top5", *(name for name in _train_metrics(draft) if name.startswith("val_"))]
    if table.curve in logged:
        return []
    return [f"{where}.curve: training logs no {table.curve!r}; {nearest(table.curve, logged)}"]


def _expected_problems(draft: Draft, name: str, table: Table, where: str) -> list[str]:
    lines, expected, file = [], draft.expected.rows, draft.expected_file
    for row_id, row in table.rows.items():
        full_id = f"{draft.name}.{name}.{row_id}"
        must_have = row.paper and expected and not isinstance(table, Figure)
        if must_have and full_id not in expected:
            hint = f"{nearest(full_id, expected)}; `paper: false` says that the paper has no such row"
            lines.append(f"{where}.rows.{row_id}: {file} has no row {full_id!r}; {hint}")
        for column in sorted(expected.get(full_id, {}).keys() - table.columns.keys()):
            hint = nearest(column, table.columns)
            lines.append(f"{file}: rows.{full_id}.{column}: no such column in {where}; {hint}")
    return lines


def _fill_column(draft: Draft, table: Table, key: str, cells: dict[str, dict[str, CellEntry]], where: str) -> list[str]:
    """A column's cell in every row, with the evaluations behind them; returns what is wrong."""
    column, lines = table.columns[key], []
    for name in dict.fromkeys(row.eval_of(key, column) for row in table.rows.values()):
        asked = column.model_copy(update={"eval": name, "set": column.set if name == column.eval else {}})
        rows = {row_id: row for row_id, row in table.rows.items() if row.eval_of(key, column) == name}
        try:
            source = None if name == TRAIN else _source(draft, asked, where)
        except ConfigError as error:
            lines += str(error).splitlines()
            continue
        wrong_roles = _role_problems(asked, _roles(source), where)
        lines += [*(source.problems if source else ()), *wrong_roles]
        lines += _promise_problems(draft, asked, key, rows, source, where)
        for row_id, row in rows.items() if not wrong_roles else ():
            cells[row_id][key] = _cell(draft, row, asked, key, source)
    if lines:
        return lines
    filled = [(row, cells[row_id][key]) for row_id, row in table.rows.items()]
    scale = draft.graph.scale
    known = ("", PROBLEM, MISSING, elsewhere(column.scales, scale))
    reasons = [cell.why for row, cell in filled if cell.why not in (*known, row.why, elsewhere(row.scales, scale))]
    is_possible = any(cell.sources or cell.why == PROBLEM for _, cell in filled)
    if reasons and not is_possible:
        return [f"{where}.eval: {column.eval} applies to no row of this table: {reasons[0]}"]
    return []


@dataclass(frozen=True)
class _Source:
    """The evaluation behind a column; what all cells of a study share that ask for it is worked out once."""

    fragment: str
    file: str  # of configs/eval
    evaluation: "type[Evaluation]"
    cfg: "EvalConfig"
    data: "dict[str, BaseDataConfig]"
    problems: list[str]  # of the keys of its config
    names: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)  # of results, by subjects

    @cached_property
    def written(self) -> dict[str, Any]:
        """The parts of its entry in the graph."""
        data = {role: config.model_dump(mode="json") for role, config in self.data.items()}
        site_files = [*self.evaluation.site_files]
        return {"config": self.cfg.model_dump(mode="json"), "data": data, "site_files": site_files}

    @cached_property
    def science(self) -> list[Any]:
        return evaluation_science(self.cfg, self.data)


def _source(draft: Draft, column: Column, where: str) -> _Source:
    key = f"{column.eval} {json.dumps(column.set, sort_keys=True, default=str)}"
    return draft.sources.get(key) or draft.sources.setdefault(key, _read_source(draft, column, where))


def _roles(source: _Source | None) -> tuple[str, ...]:
    """Subjects of an evaluation; training has one."""
    return ("model",) if source is None else source.evaluation.roles()


def _role_problems(column: Column, wanted: tuple[str, ...], where: str) -> list[str]:
    if isinstance(column.run, dict) and set(column.run) != set(wanted):
        found, has = ", ".join(column.run) or "none", ", ".join(wanted) or "none: it needs no run"
        return [f"{where}.run: found the roles {found}; {column.eval} has {has}"]
    if not isinstance(column.run, dict) and len(wanted) > 1:
        roles = ", ".join(f"{role}: ..." for role in wanted)
        return [f"{where}.run: {column.eval} compares several runs; name a role for each: {{{roles}}}"]
    return []


def _read_source(draft: Draft, column: Column, where: str) -> _Source:
    from pipeline.evals.base import EVALS

    name = column.eval or ""
    layers = eval_layers(draft, column, where)
    try:
        evaluation = EVALS.get(layers.merged().get("name", ""))
    except ConfigError as error:
        raise ConfigError(f"{layers.origin(('name',))}: name: {error}") from None
    cfg, lines = parse_as_meant(evaluation.Config, layers)
    if cfg is None:
        raise ConfigError("\n".join(lines))
    try:
        data = _data_sets(draft, evaluation, cfg, layers)
    except ConfigError as error:
        raise ConfigError("\n".join([*lines, str(error)])) from None
    return _Source(name, draft.file_of_eval(name), evaluation, cfg, data, lines)


def _data_sets(
    draft: Draft, evaluation: "type[Evaluation]", cfg: "EvalConfig", layers: Layers
) -> "dict[str, BaseDataConfig]":
    """The data sets that an evaluation's config names, at this scale."""
    where = layers.origin(("data",))
    if set(cfg.data) != set(evaluation.data_roles):
        wanted = ", ".join(evaluation.data_roles) or "none"
        raise ConfigError(f"{where}: data: found {', '.join(cfg.data) or 'none'}, {cfg.name} needs {wanted}")
    found: dict[str, BaseDataConfig] = {}
    for role, name in cfg.data.items():
        found |= data_configs(draft, role, name, f"{where}: data.{role}")
    for role, data in found.items():
        if evaluation.needs_labels and not data.has_labels:
            raise ConfigError(
                f"{where}: data.{role}: the images of {data.name} have no labels, and {cfg.name} needs them; name a "
                "labelled set"
            )
    return found


def _promise_problems(
    draft: Draft, column: Column, key: str, rows: dict[str, Row], source: _Source | None, where: str
) -> list[str]:
    """A metric or file that the evaluation does not give, asked for by the column or by one of its rows."""
    kind = "file" if column.file else "metric"
    known = _train_metrics(draft) if source is None else (source.cfg.files if column.file else source.cfg.metrics)
    named = {where: getattr(column, kind) or ""} if getattr(column, kind) else {}
    named |= {f"{where}: row {row_id}": row.metrics[key] for row_id, row in rows.items() if key in row.metrics}
    return [
        f"{place}.{kind}: {column.eval} has no {kind} {name!r}; {nearest(name, known)}"
        for place, name in named.items()
        if name not in known
    ]


def _train_metrics(draft: Draft) -> tuple[str, ...]:
    """What training writes of every run, and of the metric by which the runs of this study are judged."""
    runs = draft.parsed.values()
    found = [METHODS.get(run.method.name).primary or TASKS.get(run.task).primary for run in runs]
    own = [f"{kind}_{primary.name}" for primary in found if primary for kind in ("val", "best_val", f"{MEAN}val")]
    return tuple(dict.fromkeys([*TRAIN_METRICS, *own]))


def _cell(draft: Draft, row: Row, column: Column, key: str, source: _Source | None) -> CellEntry:
    """Where one cell's number comes from, seed by seed; or the reason why it has none."""
    scale = draft.graph.scale
    if why := elsewhere(column.scales, scale) or elsewhere(row.scales, scale):
        return CellEntry(why=why)
    metric = row.metrics.get(key, column.metric or "")
    roles = _roles(source)
    runs = _runs_by_role(draft, row, column, roles)
    missing = [role for role, names in runs.items() if not names]
    if missing:
        if row.why:
            return CellEntry(why=row.why)
        return CellEntry(why=PROBLEM if draft.runs.keys() < {*draft.runs, *row.run.values()} else MISSING)
    if not roles and row.why:
        return CellEntry(why=row.why)
    sources = []
    for subjects in _by_seed(runs):
        if reason := _reason_against(draft, source, subjects):
            return CellEntry(why=reason)
        found = f"evals/{_add_eval(draft, source, subjects)}/result" if source else f"runs/{subjects['model']}/train"
        sources.append(f"{found}.json")
    return CellEntry(sources=sources, metric=metric, file=column.file or "")


def _runs_by_role(draft: Draft, row: Row, column: Column, roles: tuple[str, ...]) -> dict[str, list[str]]:
    """Role of the evaluation -> names of the row's runs, one per seed."""
    found = {}
    for role in roles:
        asked = column.run[role] if isinstance(column.run, dict) else column.run or ""
        # One run serves any single role; several roles need a run each, or it would be compared with itself.
        shared = row.run.get("") if len(roles) == 1 else None
        key = shared or row.run.get(asked)
        found[role] = draft.runs.get(key or "", [])
    return found


def _by_seed(runs: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """Subjects of each seed; a role with fewer seeds starts again from its first."""
    for seed in range(max((len(names) for names in runs.values()), default=1)):
        yield {role: names[seed % len(names)] for role, names in runs.items()}


def _reason_against(draft: Draft, source: _Source | None, subjects: dict[str, str]) -> str:
    if source is None:
        return "" if draft.parsed[subjects["model"]].train else UNTRAINED
    return source.evaluation.refusal(source.cfg, {role: draft.parsed[run] for role, run in subjects.items()})


def _add_eval(draft: Draft, source: _Source, subjects: dict[str, str]) -> str:
    """Register an evaluation of these subjects, and the job that computes it; returns its name."""
    graph, key = draft.graph, tuple(subjects.items())
    if key in source.names:  # many cells show numbers of one result
        return source.names[key]
    name = source.names[key] = evaluation_name(source.fragment, source.science, subjects)
    is_grouped = [*subjects] == ["model"] and not _is_of_another(draft, subjects["model"])
    job = f"{subjects['model']}-{source.cfg.group}" if is_grouped else name
    entry = EvalEntry(fragment=source.fragment, file=source.file, subjects=subjects, job=job, **source.written)
    if graph.evals.setdefault(name, entry) == entry:
        _add_to_job(draft, name, entry, source)
    return name


def _is_of_another(draft: Draft, run: str) -> bool:
    """Whether a derived study has a run from another one, whose tables would wait for what is added to its job."""
    return bool(draft.study.derived_from) and draft.graph.runs[run].studies[0] != draft.name


def evaluation_science(cfg: "EvalConfig", data: "dict[str, BaseDataConfig]") -> list[Any]:
    """Everything but the subjects that decides what is computed."""
    return [cfg.science(), {role: science(config) for role, config in data.items()}]


def evaluation_name(fragment: str, computed: list[Any], subjects: dict[str, str]) -> str:
    """The name of a result: it changes with everything that decides what is computed."""
    own, sets = computed
    return f"{fragment}-{fingerprint([own, subjects, sets])}"


def _add_to_job(draft: Draft, name: str, entry: EvalEntry, source: _Source) -> None:
    graph = draft.graph
    runs = sorted(set(entry.subjects.values()))
    data = sorted({*(config["name"] for config in entry.data.values()), *(graph.runs[run].data for run in runs)})
    job = graph.eval_jobs.setdefault(entry.job, EvalJob(runs=runs, data=data))
    if name not in job.evaluations:
        job.evaluations.append(name)
        job.data = sorted({*job.data, *data})
        job.needs = job.needs | source.cfg.needs
