"""The graph falls out of the studies: a table names its cells, a cell a run and an evaluation, a run its data and init.

`load_graph` resolves and validates every config at one scale before anything runs, and keeps the result in
`results/<scale>/graph.json`. The file is made again whenever a config or the code changes; reading it needs neither
torch nor timm, so that tables, report and Snakemake start quickly.
"""

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from pipeline.core.config import (
    CONFIGS,
    REQUIRED,
    Layers,
    Record,
    names,
    nearest,
    parse_as_meant,
    parse_file,
    read_yaml,
    shown,
)
from pipeline.core.errors import ConfigError
from pipeline.core.files import write_cache
from pipeline.core.naming import file_name_problems
from pipeline.core.registry import KINDS, TASKS
from pipeline.results import results_of
from pipeline.study.claims.decide import ResolvedClaim, resolve
from pipeline.study.resolve.draft import Draft, check_names
from pipeline.study.resolve.entries import Graph, StudyEntry
from pipeline.study.resolve.evals import check_evals
from pipeline.study.resolve.rows import add_table
from pipeline.study.resolve.runs import add_run, in_init_order
from pipeline.study.scales import has_paper, runs_at
from pipeline.study.spec import Expected, Noise, Scale, SeedValues, Study
from pipeline.study.study_file import StudyFile, read_study, unknown_keys_once

if TYPE_CHECKING:
    from pipeline.study.resolve.buildable import ModelBuilder


class StoredGraph(Record):
    """graph.json: the graph, and what it was made from."""

    key: str
    built: list[str] = Field(default_factory=list, description="keys of models that the code could build")
    is_checked: bool = Field(False, description="whether the models of this graph are among them")
    graph: Graph


def load_graph(scale: str, check: bool = False) -> Graph:
    """The graph at this scale, from graph.json where that is still right.

    `check`: every model is built once too, without memory, and no folder is created.
    """
    path, key = results_of(scale).graph, _source_key()
    kept = _read_stored(path)
    if kept and kept.key == key and (kept.is_checked or not check):
        return kept.graph
    built = kept.built if kept and _code(kept.key) == _code(key) else []
    if check:
        from pipeline.study.resolve.buildable import ModelBuilder  # needs torch

        builder = ModelBuilder(built)
        graph, built = build_graph(scale, builder), sorted(builder.built)
    else:
        graph = build_graph(scale)
    if path.parent.exists() or not check:
        kept = StoredGraph(key=key, built=built, is_checked=check, graph=graph)
        write_cache(path, _one_entry_per_line(kept), "the resolved studies")
    return graph


def _read_stored(path: Path) -> StoredGraph | None:
    try:
        return StoredGraph.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None  # missing, damaged, or of an older version; it is made anew


def _one_entry_per_line(kept: StoredGraph) -> str:
    """The graph as JSON in which a job finds its own entries (`_find_entries`) without parsing those of all others."""
    content = kept.model_dump(mode="json")
    graph = content.pop("graph")
    sections = [f"{json.dumps(key)}: {_by_line(value)}" for key, value in graph.items()]
    head = json.dumps(content).removesuffix("}")
    return head + ', "graph": {\n' + ",\n".join(sections) + "\n}}\n"


def _by_line(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    entries = [f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False)}" for name, entry in value.items()]
    return "{\n" + ",\n".join(entries) + "\n}"


def load_for_run(scale: str, run: str) -> Graph:
    """The graph with this run alone, where graph.json is right and has it; else the whole graph."""
    return _load_part(scale, lambda text: {"runs": _find_entries(text, "runs", [run])})


def load_for_job(scale: str, job: str) -> Graph:
    """The graph with this job, its evaluations and their runs alone, where graph.json has them; else all of it."""

    def part(text: mmap) -> dict[str, dict[str, Any]]:
        jobs = _find_entries(text, "eval_jobs", [job])
        evals = _find_entries(text, "evals", jobs[job]["evaluations"])
        runs = {run for entry in evals.values() for run in entry["subjects"].values()}
        return {"eval_jobs": jobs, "evals": evals, "runs": _find_entries(text, "runs", runs)}

    return _load_part(scale, part)


def _load_part(scale: str, part: Callable[[mmap], dict[str, dict[str, Any]]]) -> Graph:
    path = results_of(scale).graph
    with (
        suppress(OSError, ValueError, KeyError),
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as text,
    ):
        if json.loads(text.readline().decode() + "}}")["key"] == _source_key():
            return Graph(scale=scale, note="", comparable=False, **part(text))
    return load_graph(scale)


def _find_entries(text: mmap, section: str, names: Iterable[str]) -> dict[str, Any]:
    """Entries of a section of graph.json by name; a KeyError where there is no such line."""
    start, found = text.find(f'\n"{section}": {{\n'.encode(), 0), {}
    for name in names:
        begin = text.find(f"\n{json.dumps(name)}: ".encode(), start)
        if start < 0 or begin < 0:
            raise KeyError(name)
        text.seek(begin + 1)
        found[name] = json.loads("{" + text.readline().decode().rstrip(",\n") + "}")[name]
    return found


def _source_key() -> str:
    """Changes with the code that defines configs, up to the -, and with every config file."""
    return f"{_digest((CONFIGS.parent / 'pipeline').rglob('*.py'))}-{_digest(CONFIGS.rglob('*.yaml'))}"


def _code(key: str) -> str:
    return key.partition("-")[0]


def _digest(files: Iterable[Path]) -> str:
    """Changes with the names and the contents of files."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(CONFIGS.parent)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def build_graph(
    scale: str,
    builder: "ModelBuilder | None" = None,
    layers: dict[str, Layers] | None = None,
    unsaved: StudyFile | None = None,
) -> Graph:
    """Resolve every study at one scale; raises one ConfigError with all problems of all files.

    `builder` tries each model; `layers` gets what each run was merged from, by its name; `unsaved` is a study that has
    no file yet.
    """
    collector, layers = _Collector(), {} if layers is None else layers
    collector.lines += file_name_problems(CONFIGS)
    path, spec = CONFIGS / "scale" / f"{scale}.yaml", None
    with collector:
        spec, lines = parse_as_meant(Scale, Layers((shown(path), read_yaml(path))))
        collector.add(lines)
        if spec:
            _check_scale(spec, shown(path))
    graph = Graph(scale=scale, note=spec.note if spec else "", comparable=bool(spec and spec.comparable))
    graph.stand_ins = spec.stand_ins if spec else {}
    has_papers = spec is None or spec.papers
    studies = _read_studies(scale, has_papers, collector, unsaved)
    expected = _read_expected(collector) if has_papers else {}
    if spec:
        for name, study in studies.items():
            numbers = expected.get(name, Expected())
            _add_study(Draft(graph, spec, name, study, numbers, builder, layers=layers), collector)
    with collector:
        graph.noise = _noise(scale, _not_derived(graph, studies))
    _add_claims(graph, studies, collector)
    collector.finish()
    return graph


def _read_studies(scale: str, has_papers: bool, collector: "_Collector", unsaved: StudyFile | None) -> dict[str, Study]:
    """The studies of a scale that can be read: the papers' first, whose labels runs go by, and derived ones last."""
    found: dict[str, Study] = {}
    saved = [name for name in names(CONFIGS / "study") if runs_at(name, scale, has_papers)]
    for path in [*(CONFIGS / "study" / f"{name}.yaml" for name in saved), *([unsaved.path] if unsaved else [])]:
        with collector:
            written = unsaved if unsaved and unsaved.path == path else read_study(path)
            collector.renames.append(written.in_written_terms)
            study, lines = written.parse_as_meant()
            collector.add(lines)
            if study:
                found[path.stem] = study
    in_order = sorted(found, key=lambda name: (bool(found[name].derived_from), not has_paper(name)))
    return {name: found[name] for name in in_order}


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
            self.add(str(error).splitlines())
        return isinstance(error, ConfigError)

    def add(self, lines: Iterable[str]) -> None:
        self.lines += [line for line in lines if line not in self.lines]

    @contextmanager
    def of_runs(self, draft: Draft) -> Iterator[None]:
        """What every run of a study lacks is one problem, of its `common`."""
        before = len(self.lines)
        yield
        if len(draft.study.runs) > 1 and not draft.runs:
            missing = re.compile(rf"({re.escape(draft.file)}: )runs\.[^:]+(: .+: {REQUIRED})")
            lines = [missing.sub(r"\1common\2", line) for line in self.lines[before:]]
            self.lines[before:] = dict.fromkeys(lines)

    def finish(self) -> None:
        for in_written_terms in self.renames:
            self.lines = unknown_keys_once(in_written_terms("\n".join(self.lines)).splitlines())
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def _add_study(draft: Draft, collector: _Collector) -> None:
    """Put the runs and tables of a study into the graph."""
    study = draft.study
    with collector:
        check_names(study, draft.file)
    with collector:
        check_evals(study, draft.file)
    main_claim = next((f"{draft.name}.{key}" for key, claim in study.claims.items() if claim.main), "")
    draft.graph.stories[draft.name] = StudyEntry(
        title=study.title,
        about=study.about,
        main_claim=main_claim,
        overview=f"{draft.name}.{study.overview}" if study.overview else "",
    )
    draft.study = study.at(draft.scale, draft.graph.scale)
    with collector.of_runs(draft):
        for key in in_init_order(draft.study.runs, draft.file, collector):
            with collector:
                add_run(draft, key)
    for table_name, table in study.all_tables.items():
        with collector:
            add_table(draft, table_name, table)


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
                resolved = resolve(claim, known, where)
                _check_differences(resolved, studies, where)
                graph.claims.setdefault(name, {})[f"{name}.{key}"] = resolved


def _check_differences(claim: ResolvedClaim, studies: dict[str, Study], where: str) -> None:
    """A column of differences has no noise of its own; that of the cells behind it is known."""
    for row, column in [cell for each in claim.comparisons() for cell in each.cells]:
        study, table, _ = row.split(".", 2)
        if claim.type != "exact" and (of := studies[study].all_tables[table].columns[column].delta):
            raise ConfigError(f"{where}: {row}:{column} is a difference; compare the cells of {of} themselves")


def _not_derived(graph: Graph, studies: dict[str, Study]) -> set[str]:
    """Runs of studies that are not derived from others: a derived one changes no verdict of another study."""
    own = {name for name, study in studies.items() if not study.derived_from}
    return {name for name, run in graph.runs.items() if own & set(run.studies)}


def noise_file(scale: str) -> Path:
    """What seeds do at a scale; `pipeline noise` writes it."""
    return CONFIGS / "noise" / f"{scale}.yaml"


def read_noise(scale: str) -> dict[str, list[SeedValues]]:
    """What was measured at a scale."""
    path = noise_file(scale)
    return parse_file(Noise, path).metrics if path.exists() else {}


def _noise(scale: str, runs: Container[str]) -> dict[str, list[SeedValues]]:
    """What was measured at this scale, of runs that the configs still name."""
    known = {kind: [each for each in values if each.run in runs] for kind, values in read_noise(scale).items()}
    return {kind: values for kind, values in known.items() if values}


def _read_expected(collector: _Collector) -> dict[str, Expected]:
    """The papers' numbers by study; a study without a paper has none."""
    found = {}
    for name in names(CONFIGS / "expected"):
        with collector:
            found[name] = parse_file(Expected, CONFIGS / "expected" / f"{name}.yaml")
    return found
