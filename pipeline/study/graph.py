"""The graph falls out of the studies: a table names its cells, a cell a run and an evaluation, a run its data and init.

`load_graph` resolves and validates every config at one scale before anything runs, and keeps the result in
`results/<scale>/graph.json`. The file is made again whenever a config or the code changes; reading it needs neither
torch nor timm, so that tables, report and Snakemake start quickly.
"""

import hashlib
import logging
from collections.abc import Callable

from pydantic import ValidationError

from pipeline.config import CONFIGS, Record, names, nearest, parse_file, shown
from pipeline.errors import ConfigError, PatchworkError
from pipeline.files import write_json
from pipeline.naming import file_name_problems
from pipeline.registry import KINDS, TASKS
from pipeline.results import results_of
from pipeline.study.claims import resolve
from pipeline.study.draft import Draft, check_headline
from pipeline.study.entries import Graph
from pipeline.study.rows import add_table
from pipeline.study.runs import add_run, in_init_order
from pipeline.study.spec import Expected, Scale, Study
from pipeline.study.written import read_study

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
    collector.lines += file_name_problems(CONFIGS)
    path, spec = CONFIGS / "scale" / f"{scale}.yaml", None
    with collector:
        spec = parse_file(Scale, path)
        _check_scale(spec, shown(path))
    graph = Graph(scale=scale, note=spec.note if spec else "", comparable=bool(spec and spec.comparable))
    studies = {name: _add_study(graph, spec, name, collector) for name in _papers_first(names(CONFIGS / "study"))}
    _add_claims(graph, {name: study for name, study in studies.items() if study}, collector)
    collector.finish()
    return graph


def _check_scale(scale: Scale, file: str) -> None:
    """Every fragment that a scale names must exist; a mistyped one would silently change nothing."""
    named = [("model", f"replace_model.{key}", name) for key, name in scale.replace_model.items()]
    named += [("data", f"replace_data.{key}", name) for key, name in scale.replace_data.items()]
    named += [("model", "replace_model", name) for name in scale.replace_model]
    named += [("data", "replace_data", name) for name in scale.replace_data]
    named += [("method", "method", name) for name in scale.method]
    named += [("eval", "eval", name) for name in scale.eval] + [("recipe", "recipe", name) for name in scale.recipe]
    named += [("kind", "kind", name) for name in scale.kind] + [("task", "task", name) for name in scale.task]
    known = {kind: names(CONFIGS / kind) for kind in ("method", "model", "data", "eval", "recipe")}
    known |= {"kind": KINDS.names(), "task": TASKS.names()}
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
        self.renames: list[Callable[[str], str]] = []  # say what was written in place of what was made of it

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConfigError):
            self.lines += [line for line in str(error).splitlines() if line not in self.lines]
        return isinstance(error, ConfigError)

    def finish(self) -> None:
        for in_written_terms in self.renames:
            self.lines = in_written_terms("\n".join(self.lines)).splitlines()
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def _add_study(graph: Graph, scale: Scale | None, name: str, collector: _Collector) -> Study | None:
    """The study, once its runs and tables are in the graph; None where its file has problems."""
    file, study, expected = CONFIGS / "study" / f"{name}.yaml", None, None
    with collector:
        written = read_study(file)
        collector.renames.append(written.in_written_terms)
        study = written.parse()
    with collector:
        expected = _expected(name)
    if scale is None or study is None or expected is None:
        return study
    here = study.without_stand_ins() if scale.weight_files else study.with_stand_ins()
    draft = Draft(graph, scale, name, here, expected)
    with collector:
        check_headline(study, shown(file))
    for key in in_init_order(draft.study.runs, shown(file), collector):
        with collector:
            add_run(draft, key)
    for table_name, table in {**study.tables, **study.figures}.items():
        with collector:
            add_table(draft, table_name, table)
    return study


def _add_claims(graph: Graph, studies: dict[str, Study], collector: _Collector) -> None:
    """Claims come last: they may name cells of any study."""
    known = {
        f"{name}.{key}.{row}": [column_id for column_id, column in table.columns.items() if not column.file]
        for name, study in studies.items()
        for key, table in study.all_tables.items()
        for row in table.rows
    }
    for name, study in studies.items():
        for key, claim in study.claims.items():
            where = f"{shown(CONFIGS / 'study' / f'{name}.yaml')}: claims.{key}.holds"
            with collector:
                graph.claims.setdefault(name, {})[f"{name}.{key}"] = resolve(claim, known, where)


def _papers_first(studies: list[str]) -> list[str]:
    """A run that several studies have goes by the label of a paper's."""
    return sorted(studies, key=lambda name: name not in names(CONFIGS / "expected"))


def _expected(study: str) -> Expected:
    """The paper's numbers; a study without a paper has none."""
    path = CONFIGS / "expected" / f"{study}.yaml"
    return parse_file(Expected, path) if path.exists() else Expected()
