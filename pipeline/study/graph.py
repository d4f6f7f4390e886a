"""The graph falls out of the studies: a table names its cells, a cell a run and an evaluation, a run its data and init.

`load_graph` resolves and validates every config at one scale before anything runs, and keeps the result in
`results/<scale>/graph.json`. The file is made anew whenever a config or the code changes; reading it needs neither
torch nor timm, so that tables, report and Snakemake start quickly.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import CONFIGS, Layers, fingerprint, names, nearest, parse, parse_file, read_yaml, shown
from pipeline.errors import ConfigError, PatchworkError
from pipeline.files import write_json
from pipeline.study.claims import cells_of
from pipeline.study.spec import Expected, RunSpec, Scale, Study, Table

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig

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
        if data not in self.data_sets():
            raise ConfigError(f"no run at scale {self.scale} uses data {data!r}; {nearest(data, self.data_sets())}")
        return next(run for run in self.runs.values() if run["data"] == data)

    def rows(self, table_id: str, selection: str) -> dict[str, dict[str, Any]]:
        """Rows of a table that a selection (`headline` or `all`) runs."""
        rows = self.find("tables", table_id)["rows"]
        return {key: row for key, row in rows.items() if selection == "all" or row["headline"]}

    def files(self, table_id: str, selection: str) -> list[str]:
        """The metrics files behind a table, below the results of the scale."""
        evals = {column["eval"] for column in self.tables[table_id]["columns"].values() if column["eval"]}
        names = {"train.json" if key == TRAIN else f"evals/{self.evals[key]['group']}.json" for key in evals}
        runs = {row["run"] for row in self.rows(table_id, selection).values()}
        return sorted(f"runs/{run}/{name}" for run in runs for name in names)

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
            if kept.pop("key") == key:
                return Graph(**kept)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # damaged; it is made anew
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
    path, spec = CONFIGS / "scale" / f"{scale}.yaml", None
    with collector:
        spec = parse_file(Scale, path)
        _check_scale(spec, shown(path))
    graph = Graph(scale, spec.note if spec else "", bool(spec and spec.comparable))
    for study in names(CONFIGS / "study"):
        _add_study(graph, spec, study, collector)
    collector.finish()
    return graph


def _check_scale(scale: Scale, file: str) -> None:
    """Every fragment that a scale speaks of must be there; a mistyped one would change nothing, silently."""
    named = [("model", f"replace_model.{key}", name) for key, name in scale.replace_model.items()]
    named += [("data", f"replace_data.{key}", name) for key, name in scale.replace_data.items()]
    named += [("model", "replace_model", name) for name in scale.replace_model]
    named += [("data", "replace_data", name) for name in scale.replace_data]
    named += [("eval", "eval", name) for name in scale.eval]
    known = {kind: names(CONFIGS / kind) for kind in ("model", "data", "eval")}
    lines = [
        f"{file}: {where}: no {kind} {name!r}; {nearest(name, known[kind])}"
        for kind, where, name in named
        if name not in known[kind]
    ]
    if lines:
        raise ConfigError("\n".join(lines))


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


def _add_study(graph: Graph, scale: Scale | None, name: str, collector: _Collector) -> None:
    file, study, expected = CONFIGS / "study" / f"{name}.yaml", None, None
    with collector:
        study = parse_file(Study, file)
    with collector:
        expected = parse_file(Expected, CONFIGS / "expected" / f"{name}.yaml")
    if scale is None or study is None or expected is None:
        return
    resolved: dict[str, str] = {}  # key in the study -> run name
    for key in _in_init_order(study.runs, shown(file), collector):
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


def _in_init_order(runs: dict[str, RunSpec], file: str, collector: _Collector) -> list[str]:
    """Keys of runs, each after the one it starts from; those that start from nothing sound are left out."""
    ordered: list[str] = []
    for first in runs:
        with collector:
            ordered += [key for key in reversed(_init_chain(runs, first, file)) if key not in ordered]
    return ordered


def _init_chain(runs: dict[str, RunSpec], first: str, file: str) -> list[str]:
    """A run, the one it starts from, and so on."""
    chain, key = [], first
    while key is not None:
        if key not in runs:
            raise ConfigError(f"{file}: runs.{chain[-1]}.init: no run {key!r}; {nearest(key, runs)}")
        if key in chain:
            cycle = chain[chain.index(key) :]
            start = cycle.index(min(cycle))  # the same words, whichever of its runs it is found from
            cycle = [*cycle[start:], *cycle[: start + 1]]
            text = " -> ".join(cycle)
            raise ConfigError(f"{file}: runs.{cycle[0]}.init: runs start from each other: {text}; break the cycle")
        chain.append(key)
        key = runs[key].init
    return chain


def _add_run(graph: Graph, scale: Scale, study: str, key: str, spec: Study, resolved: dict[str, str]) -> str:
    from pipeline.engine.run import parse_run  # needs torch; only when graph.json is out of date

    run_spec, study_file = spec.runs[key], shown(CONFIGS / "study" / f"{study}.yaml")
    if run_spec.init and run_spec.init not in resolved:
        raise ConfigError(f"{study_file}: runs.{key}.init: {run_spec.init!r} has problems of its own")
    scale_file = shown(CONFIGS / "scale" / f"{graph.scale}.yaml")
    fragments = []
    for kind, replace in (("method", {}), ("model", scale.replace_model), ("data", scale.replace_data)):
        name, where = getattr(run_spec, kind), f"{study_file}: runs.{key}.{kind}"
        if name in replace:
            name, where = replace[name], f"{scale_file}: replace_{kind}.{name}"
        fragments.append(_fragment(kind, name, where))
    layers = Layers(
        *fragments,
        (f"{study_file}: common", spec.common),
        (f"{scale_file}: run", scale.run),
        (f"{study_file}: runs.{key}.set", run_spec.set),
        (f"{study_file}: runs.{key}", {"init": resolved.get(run_spec.init)}),
    )
    for source, content in layers.layers[:-1]:
        if "init" in content:
            raise ConfigError(f"{source}: init: not here; a run of a study says it, beside its method")
    run = parse_run(layers)
    _check_data(graph, run, f"{study_file}: runs.{key}")
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


def _check_data(graph: Graph, run: "RunConfig", where: str) -> None:
    """Runs see one data set through views of their own, but must mean the same images by its name."""
    content = run.data.model_dump(mode="json", exclude={"augment", "eval_crop", "image_size", "mean", "std"})
    for other in graph.runs.values():
        known = {key: other["config"]["data"][key] for key in content}
        if other["data"] == run.data.name and known != content:
            keys = ", ".join(key for key in content if content[key] != known[key])
            raise ConfigError(
                f"{where}: data {run.data.name!r} has another {keys} than in other runs; give it another name"
            )


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
    expected_file = shown(CONFIGS / "expected" / f"{study}.yaml")
    rows = {}
    for row_id, row in table.rows.items():
        full_id = f"{table_id}.{row_id}"
        if full_id not in expected.rows:
            hint = nearest(full_id, expected.rows)
            lines.append(f"{where}.rows.{row_id}: {expected_file} has no row {full_id!r}; {hint}")
            continue
        for column in sorted(expected.rows[full_id].keys() - table.columns.keys()):
            hint = nearest(column, table.columns)
            lines.append(f"{expected_file}: rows.{full_id}.{column}: the table has no such column; {hint}")
        if row.run in resolved:
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
    graph.tables[table_id] = {
        "study": study,
        "study_title": spec.title,
        **table.model_dump(),
        "columns": columns,
        "rows": rows,
    }


def _table_problems(table: Table, where: str, spec: Study) -> list[str]:
    lines = []
    for row_id, row in table.rows.items():
        if row.run not in spec.runs:
            lines.append(f"{where}.rows.{row_id}.run: no run {row.run!r}; {nearest(row.run, spec.runs)}")
    for key, column in table.columns.items():
        measured = [name for name, other in table.columns.items() if not other.delta]
        if column.delta and column.delta not in measured:
            hint = nearest(column.delta, measured)
            lines.append(f"{where}.columns.{key}.delta: no measured column {column.delta!r}; {hint}")
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
    try:
        evaluation = EVALS.get(layers.merged().get("name", ""))
    except ConfigError as error:
        raise ConfigError(f"{layers.origin(('name',))}: name: {error}") from None
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
        if not cells:
            raise ConfigError(f"{where}: {text!r} speaks of no cell; write cells as row:column")
        for row, column in cells:
            if row not in expected.rows:
                raise ConfigError(f"{where}: no cell {row}:{column}: no row {row!r}; {nearest(row, expected.rows)}")
            if column not in expected.rows[row]:
                hint = nearest(column, expected.rows[row])
                raise ConfigError(f"{where}: no cell {row}:{column}: no column {column!r}; {hint}")


def table_fingerprint(graph: Graph, table_id: str) -> str:
    """Changes when the drawing of a table would: columns, rows, expected values, tolerances, the scale's note."""
    return fingerprint([graph.tables[table_id], graph.note, graph.comparable], 12)
