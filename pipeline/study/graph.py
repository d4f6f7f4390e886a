"""The graph falls out of the studies: a table names its cells, a cell a run and an evaluation, a run its data and init.

`load_graph` resolves and validates every config at one scale before anything runs, and keeps the result in
`results/<scale>/graph.json`. The file is made again whenever a config or the code changes; reading it needs neither
torch nor timm, so that tables, report and Snakemake start quickly.
"""

import hashlib
import logging

from pydantic import ValidationError

from pipeline.config import CONFIGS, Record, names, nearest, parse_file, shown
from pipeline.errors import ConfigError, PatchworkError
from pipeline.files import write_json
from pipeline.results import results_of
from pipeline.study.claims import cells_of
from pipeline.study.draft import Draft
from pipeline.study.entries import Graph
from pipeline.study.rows import add_table
from pipeline.study.runs import add_run, in_init_order
from pipeline.study.spec import Expected, Scale, Study

log = logging.getLogger(__name__)


class Kept(Record):
    """graph.json: the graph, and what it was made from."""

    key: str
    graph: Graph


def load_graph(scale: str) -> Graph:
    """The graph at this scale, from graph.json where that is still right."""
    path, key = results_of(scale).graph, _source_key()
    if path.exists():
        try:
            kept = Kept.model_validate_json(path.read_bytes())
            if kept.key == key:
                return kept.graph
        except ValidationError:
            pass  # damaged, or of an older version; it is made anew
    graph = build_graph(scale)
    try:
        write_json(path, Kept(key=key, graph=graph).model_dump(mode="json"))
    except PatchworkError as error:  # results of somebody else may be looked at all the same
        log.warning("the graph is not kept: %s", error)
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
    graph = Graph(scale=scale, note=spec.note if spec else "", comparable=bool(spec and spec.comparable))
    for study in names(CONFIGS / "study"):
        _add_study(graph, spec, study, collector)
    collector.finish()
    return graph


def _check_scale(scale: Scale, file: str) -> None:
    """Every fragment that a scale names must exist; a mistyped one would silently change nothing."""
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
        expected = _expected(name)
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
            _check_claim(claim.holds, _known_cells(draft), where)
            graph.claims.setdefault(name, {})[f"{name}.{claim_name}"] = claim


def _expected(study: str) -> Expected:
    """The paper's numbers; a study without a paper has none."""
    path = CONFIGS / "expected" / f"{study}.yaml"
    return parse_file(Expected, path) if path.exists() else Expected()


def _known_cells(draft: Draft) -> dict[str, set[str]]:
    """Row -> its columns: what the tables have, and what the paper prints beside them."""
    cells = {row: set(numbers) for row, numbers in draft.expected.rows.items()}
    for name, table in draft.study.tables.items():
        for row in table.rows:
            full_id = f"{draft.name}.{name}.{row}"
            cells[full_id] = cells.get(full_id) or set(table.columns)
    return cells


def _check_claim(holds: list[str], known: dict[str, set[str]], where: str) -> None:
    for text in holds:
        try:
            cells = cells_of(text)
        except PatchworkError as error:
            raise ConfigError(f"{where}: {error}") from None
        if not cells:
            raise ConfigError(f"{where}: {text!r} names no cell; write cells as row:column")
        for row, column in cells:
            if row not in known:
                raise ConfigError(f"{where}: no cell {row}:{column}: no row {row!r}; {nearest(row, known)}")
            if column not in known[row]:
                hint = nearest(column, known[row])
                raise ConfigError(f"{where}: no cell {row}:{column}: no column {column!r}; {hint}")
