"""The graph falls out of the studies: a table names its cells, a cell a run and an evaluation, a run its data and init.

`load_graph` resolves and validates every config at one scale before anything runs, and keeps the result in
`results/<scale>/graph.json`. The file is made anew whenever a config or the code changes; reading it needs neither
torch nor timm, so that tables, report and Snakemake start quickly.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.config import CONFIGS, fingerprint, names, nearest, parse_file, shown
from pipeline.errors import ConfigError, PatchworkError
from pipeline.files import write_json
from pipeline.results import ScaleFolder, results_of
from pipeline.study.claims import cells_of
from pipeline.study.draft import Draft
from pipeline.study.rows import add_table, source
from pipeline.study.runs import add_run, in_init_order
from pipeline.study.spec import TRAIN, Expected, Scale, Study

TABLE_FORMAT = 2  # raised when what a drawn table holds changes: old ones are then drawn anew


@dataclass
class Graph:
    """Everything that can run at one scale, resolved; plain data."""

    scale: str
    note: str
    comparable: bool
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> config, label, studies, data, init, groups
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)  # key -> config
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)  # id -> spec, runs of rows by role, expected values
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)  # study -> claim id -> claim

    @property
    def results(self) -> ScaleFolder:
        return results_of(self.scale)

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

    def selected(self, selection: str, study: str = "") -> list[str]:
        """Tables (of one study) of which a selection runs at least one row."""
        ids = [key for key, table in self.tables.items() if study in ("", table["study"])]
        return [key for key in ids if self.rows(key, selection)]

    def files(self, table_id: str, selection: str) -> list[str]:
        """The metrics files behind a table, below the results of the scale."""
        columns = [column for column in self.tables[table_id]["columns"].values() if column["eval"]]
        sources = [source(row, column) for row in self.rows(table_id, selection).values() for column in columns]
        return sorted({f"runs/{run}/{self.metrics_file(key)}" for run, key in filter(None, sources)})

    def metrics_file(self, key: str) -> str:
        """The file of an evaluation, below the folder of a run."""
        return "train.json" if key == TRAIN else f"evals/{self.evals[key]['group']}.json"

    def with_inits(self, names: Iterable[str]) -> set[str]:
        """These runs, those they start from, and so on."""
        found: set[str] = set()
        for name in names:
            while name and name not in found:
                found.add(name)
                name = self.runs[name]["init"]
        return found

    def find(self, kind: str, name: str) -> Any:
        entries = getattr(self, kind)
        if name not in entries:
            raise ConfigError(f"{name!r} is not among the {kind} at scale {self.scale}; {nearest(name, entries)}")
        return entries[name]


def load_graph(scale: str) -> Graph:
    """The graph at this scale, from graph.json where that is still right."""
    path, key = results_of(scale).graph, _source_key()
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
    root = CONFIGS.parent
    files = [*CONFIGS.rglob("*.yaml"), *(root / "pipeline").rglob("*.py")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
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
    named += [("method", "method", name) for name in scale.method]
    named += [("eval", "eval", name) for name in scale.eval]
    known = {kind: names(CONFIGS / kind) for kind in ("method", "model", "data", "eval")}
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
    draft = Draft(graph, scale, name, study, expected)
    for key in in_init_order(study.runs, shown(file), collector):
        with collector:
            add_run(draft, key)
    for table_name, table in study.tables.items():
        with collector:
            add_table(draft, table_name, table)
    for claim_name, claim in study.claims.items():
        with collector:
            where = f"{shown(file)}: claims.{claim_name}.holds"
            _check_claim(claim.holds, expected, where)
            graph.claims.setdefault(name, {})[f"{name}.{claim_name}"] = claim.model_dump()


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
    return fingerprint([TABLE_FORMAT, graph.tables[table_id], graph.note, graph.comparable], 12)
