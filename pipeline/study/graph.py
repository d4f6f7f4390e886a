"""The graph falls out of the studies: a table names its cells, a cell a run and an evaluation, a run its data and init.

`load_graph` resolves and validates every config at one scale before anything runs, and keeps the result in
`results/<scale>/graph.json`. The file is made anew whenever a config or the code changes; reading it needs neither
torch nor timm, so that tables, report and Snakemake start quickly.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config import CONFIGS, Layers, fingerprint, names, nearest, parse, parse_file, read_yaml, shown
from pipeline.errors import ConfigError, PatchworkError
from pipeline.files import write_json
from pipeline.study.claims import cells_of
from pipeline.study.spec import Expected, RunSpec, Scale, Study, Table

ROOT = CONFIGS.parent
RESULTS = ROOT / "results"
TRAIN = "train"  # the "evaluation" whose metrics training itself writes
TRAIN_METRICS = ("params_m", "val_top1", "best_val_top1")


@dataclass
class Graph:
    """Everything that can run at one scale, resolved; plain data."""

    scale: str
    note: str
    comparable: bool
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> config, label, studies, data, init, groups
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)  # key -> config
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)  # id -> spec, run names, expected values
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)  # study -> claim id -> claim

    @property
    def results(self) -> Path:
        return RESULTS / self.scale

    def data_sets(self) -> list[str]:
        return sorted({run["data"] for run in self.runs.values()})

    def studies(self) -> list[str]:
        return sorted({table["study"] for table in self.tables.values()})

    def run_with_data(self, data: str) -> dict[str, Any]:
        """Any run on this data set; all of them agree on it."""
        return next(run for run in self.runs.values() if run["data"] == data)

    def rows(self, table_id: str, selection: str) -> dict[str, dict[str, Any]]:
        """Rows of a table that a selection (`headline` or `all`) runs."""
        rows = self.find("tables", table_id)["rows"]
        return {key: row for key, row in rows.items() if selection == "all" or row["headline"]}

    def evaluations(self, table_id: str, selection: str) -> list[tuple[str, str]]:
        """(run, group of evaluations) behind the rows of a table."""
        runs = {row["run"] for row in self.rows(table_id, selection).values()}
        return sorted((run, group) for run in runs for group in self.runs[run]["groups"])

    def find(self, kind: str, name: str) -> Any:
        entries = getattr(self, kind)
        if name not in entries:
            raise ConfigError(f"{name!r} is not among the {kind} at scale {self.scale}; {nearest(name, entries)}")
        return entries[name]


def load_graph(scale: str) -> Graph:
    """The graph at this scale, from graph.json where that is still right."""
    path, key = RESULTS / scale / "graph.json", _source_key()
    if path.exists():
        try:
            kept = json.loads(path.read_text())
        except json.JSONDecodeError:
            kept = {}
        if kept.pop("key", None) == key:
            return Graph(**kept)
    graph = build_graph(scale)
    write_json(path, {"key": key, **asdict(graph)})
    return graph


def _source_key() -> str:
    """Changes with every config file and with the code that defines configs."""
    files = [*CONFIGS.rglob("*.yaml"), *(ROOT / "pipeline").rglob("*.py")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def build_graph(scale: str) -> Graph:
    """Resolve every study at one scale; raises one ConfigError with all problems of all files."""
    collector = _Collector()
    spec = parse_file(Scale, CONFIGS / "scale" / f"{scale}.yaml")
    graph = Graph(scale, spec.note, spec.comparable)
    for study in names(CONFIGS / "study"):
        with collector:
            _add_study(graph, spec, study, collector)
    collector.finish()
    return graph


class _Collector:
    """Gathers the problems of several steps, so that the user reads all of them at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConfigError):
            self.lines += [line for line in str(error).splitlines() if line not in self.lines]
        return isinstance(error, ConfigError)

    def finish(self) -> None:
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def _add_study(graph: Graph, scale: Scale, name: str, collector: _Collector) -> None:
    file = CONFIGS / "study" / f"{name}.yaml"
    study = parse_file(Study, file)
    expected = parse_file(Expected, CONFIGS / "expected" / f"{name}.yaml")
    resolved: dict[str, str] = {}  # key in the study -> run name
    for key in _in_init_order(study.runs, shown(file)):
        with collector:
            resolved[key] = _add_run(graph, scale, name, key, study, resolved)
    for table_name, table in study.tables.items():
        with collector:
            _add_table(graph, scale, name, f"{name}.{table_name}", table, study, resolved, expected)
    for claim_name, claim in study.claims.items():
        with collector:
            where = f"{shown(file)}: claims.{claim_name}.holds"
            _check_claim(claim.holds, expected, where)
            graph.claims.setdefault(name, {})[f"{name}.{claim_name}"] = claim.model_dump()


def _in_init_order(runs: dict[str, RunSpec], file: str) -> list[str]:
    """Keys of runs, each after the one it starts from."""
    ordered: list[str] = []
    for first in runs:
        chain: list[str] = []
        key: str | None = first
        while key is not None and key not in ordered:
            if key not in runs:
                raise ConfigError(f"{file}: runs.{chain[-1]}.init: no run {key!r}; {nearest(key, runs)}")
            if key in chain:
                cycle = " -> ".join([*chain[chain.index(key) :], key])
                raise ConfigError(f"{file}: runs.{key}.init: runs start from each other: {cycle}; break the cycle")
            chain.append(key)
            key = runs[key].init
        ordered += reversed(chain)
    return ordered


def _add_run(graph: Graph, scale: Scale, study: str, key: str, spec: Study, resolved: dict[str, str]) -> str:
    from pipeline.engine.run import parse_run  # needs torch; only when graph.json is out of date

    run_spec, study_file = spec.runs[key], shown(CONFIGS / "study" / f"{study}.yaml")
    if run_spec.init and run_spec.init not in resolved:
        raise ConfigError(f"{study_file}: runs.{key}.init: {run_spec.init!r} has problems of its own")
    model = scale.replace_model.get(run_spec.model, run_spec.model)
    data = scale.replace_data.get(run_spec.data, run_spec.data)
    fragments = (("method", run_spec.method), ("model", model), ("data", data))
    layers = Layers(
        *[_fragment(kind, name, f"{study_file}: runs.{key}.{kind}") for kind, name in fragments],
        (f"{study_file}: common", spec.common),
        (shown(CONFIGS / "scale" / f"{graph.scale}.yaml") + ": run", scale.run),
        (f"{study_file}: runs.{key}.set", run_spec.set),
        (f"{study_file}: runs.{key}", {"init": resolved.get(run_spec.init)}),
    )
    run = parse_run(layers)
    entry = graph.runs.setdefault(
        run.name,
        {
            "config": run.model_dump(mode="json"),
            "label": run_spec.label,
            "studies": [],
            "data": run.data.name,
            "init": run.init,
            "groups": {},
        },
    )
    if study not in entry["studies"]:
        entry["studies"].append(study)
    return run.name


def _fragment(kind: str, name: str, where: str) -> tuple[str, dict[str, Any]]:
    path = CONFIGS / kind / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(f"{where}: no {kind} {name!r}; {nearest(name, names(path.parent))}")
    return shown(path), read_yaml(path)


def _add_table(
    graph: Graph,
    scale: Scale,
    study: str,
    table_id: str,
    table: Table,
    spec: Study,
    resolved: dict[str, str],
    expected: Expected,
) -> None:
    where = f"{shown(CONFIGS / 'study' / f'{study}.yaml')}: tables.{table_id.split('.', 1)[1]}"
    lines = _table_problems(table, where, spec)
    rows = {}
    for row_id, row in table.rows.items():
        full_id = f"{table_id}.{row_id}"
        if full_id not in expected.rows:
            lines.append(f"{where}.rows.{row_id}: no row {full_id!r} in configs/expected/{study}.yaml")
        elif row.run in resolved:
            chosen = {"label": row.label, "run": resolved[row.run], "headline": row.headline}
            rows[full_id] = {**chosen, "expected": expected.rows[full_id]}
    for column_id, column in table.columns.items():
        if column.eval and column.eval != TRAIN:
            try:
                metrics = _add_eval(graph, scale, column.eval, f"{where}.columns.{column_id}.eval", rows)
            except ConfigError as error:
                lines += str(error).splitlines()
                continue
        else:
            metrics = TRAIN_METRICS
        if column.metric and column.metric not in metrics:
            lines.append(
                f"{where}.columns.{column_id}.metric: {column.eval} has no metric {column.metric!r}; "
                f"{nearest(column.metric, metrics)}"
            )
    if lines:
        raise ConfigError("\n".join(lines))
    columns = {key: column.model_dump() for key, column in table.columns.items()}
    graph.tables[table_id] = {"study": study, **table.model_dump(), "columns": columns, "rows": rows}


def _table_problems(table: Table, where: str, spec: Study) -> list[str]:
    lines = []
    for row_id, row in table.rows.items():
        if row.run not in spec.runs:
            lines.append(f"{where}.rows.{row_id}.run: no run {row.run!r}; {nearest(row.run, spec.runs)}")
    for key, column in table.columns.items():
        if column.delta and column.delta not in table.columns:
            hint = nearest(column.delta, table.columns)
            lines.append(f"{where}.columns.{key}.delta: no column {column.delta!r}; {hint}")
        if column.against and column.against not in table.rows:
            hint = nearest(column.against, table.rows)
            lines.append(f"{where}.columns.{key}.against: no row {column.against!r}; {hint}")
    return lines


def _add_eval(graph: Graph, scale: Scale, key: str, where: str, rows: dict[str, Any]) -> tuple[str, ...]:
    """Register an evaluation for the runs of these rows; returns the names of its metrics."""
    from pipeline.evals.base import EVALS

    file, fragment = _fragment("eval", key, where)
    override = (shown(CONFIGS / "scale" / f"{graph.scale}.yaml") + f": eval.{key}", scale.eval.get(key, {}))
    layers = Layers((file, fragment), override)
    evaluation = EVALS.get(str(layers.merged().get("name", "")))
    graph.evals[key] = parse(evaluation.Config, layers).model_dump(mode="json")
    group = graph.evals[key]["group"]
    for row in rows.values():
        groups = graph.runs[row["run"]]["groups"]
        groups[group] = sorted({*groups.get(group, []), key})
    return evaluation.metrics


def _check_claim(holds: list[str], expected: Expected, where: str) -> None:
    for text in holds:
        try:
            cells = cells_of(text)
        except PatchworkError as error:
            raise ConfigError(f"{where}: {error}") from None
        for row, column in cells:
            if column not in expected.rows.get(row, {}):
                known = [f"{r}:{c}" for r, columns in expected.rows.items() for c in columns]
                raise ConfigError(f"{where}: no cell {row}:{column}; {nearest(f'{row}:{column}', known)[:300]}")


def table_fingerprint(graph: Graph, table_id: str) -> str:
    """Changes when the drawing of a table would: columns, rows, expected values, tolerances, the scale's note."""
    return fingerprint([graph.tables[table_id], graph.note, graph.comparable], 12)
