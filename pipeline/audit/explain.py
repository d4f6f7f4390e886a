"""Traces a number from the line of its study to data, weights and code, and tells whether any of these has changed."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.core.config import CONFIGS, Layers, nearest, shown
from pipeline.core.errors import ConfigError, DataError
from pipeline.freshness.other_code import Code, accepted_on
from pipeline.freshness.outputs import run_file
from pipeline.freshness.remake import Freshness
from pipeline.report.tables.fill import fill_table
from pipeline.results.records import STOP_FACTS, EvalResult, Kind, TrainRecord, read_record, short_digest
from pipeline.study.resolve.entries import CellEntry, Graph, TableEntry
from pipeline.study.resolve.graph import build_graph
from pipeline.study.spec import Column
from pipeline.study.study_file import read_study

SHOWN_FACTS = ("commit", "device", "precision", "eval_fidelity", "seed", "wall_s", *STOP_FACTS)


def explain(freshness: Freshness, number: str, key: str | None = None) -> str:
    """Explain a cell (mjp.t1.deit-s:top1), a run, or a key of a run (optim.base_lr), in lines of a name and a text."""
    graph = freshness.graph
    if key is not None:
        lists = f"python -m pipeline check --scale {graph.scale}"
        return "\n".join(_key(freshness, _check_known(number, graph.runs, "runs", lists), key))
    cells = {
        f"{row_id}:{column}": (table_id, row_id, column)
        for table_id, table in graph.tables.items()
        for row_id in table.rows
        for column in table.columns
    }
    dotted = {name.replace(":", "."): name for name in cells}  # as the report's CSV has them
    name = _check_known(dotted.get(number, number), {**graph.runs, **cells}, "cells and runs")
    return "\n".join(_cell(freshness, *cells[name]) if name in cells else _run(freshness, name))


def _check_known(
    name: str, known: dict[str, Any], what: str, listed_by: str = "python -m pipeline check --names"
) -> str:
    """Resolve a name: one of the known names, or the beginning or end of exactly one of them."""
    alike = [each for each in known if each.startswith(name) or each.endswith(name)]
    if name not in known and len(alike) != 1:
        few = f"; {len(alike)} begin or end with it: {', '.join(alike[:4])}, ..." if len(alike) > 1 else ""
        near = nearest(name, known, listed_by)
        raise ConfigError(f"no {name!r} among the {len(known)} {what}{few or f'; {near}'}")
    return name if name in known else alike[0]


def _line(name: str, text: str) -> str:
    return f"  {name:<12}{text}"


def _cell(freshness: Freshness, table_id: str, row_id: str, column: str) -> Iterator[str]:
    graph = freshness.graph
    table, filled = graph.tables[table_id], fill_table(graph, table_id, "all", freshness)
    cell = next(row for row in filled.rows if row.id == row_id).cells[column]
    paper = "" if cell.paper is None else f", in the paper {cell.paper:g}"
    paper += "" if cell.difference is None else f": difference {cell.difference:+.6g}"
    yield f"{row_id}:{column} {'has no value: ' + cell.reason if cell.ours is None else f'is {cell.ours:.6g}'}{paper}"
    yield _line("study", _study_line(table, table_id, row_id))
    spec, entry = table.columns[column], table.rows[row_id].cells.get(column, CellEntry())
    if spec.delta:
        base = row_id if spec.minus else f"{table_id}.{spec.against}"
        other = spec.minus or spec.delta
        yield _line("column", f"{spec.label}: {row_id}:{spec.delta} minus {base}:{other}")
        yield from _cell(freshness, table_id, row_id, spec.delta)
        yield from _cell(freshness, table_id, base, other)
        return
    yield _line("column", _column(spec, entry))
    for source in entry.sources:
        yield from _source(freshness, source)


def _study_line(table: TableEntry, table_id: str, row_id: str) -> str:
    """The row as it is written, with its line."""
    path = CONFIGS / "study" / f"{table.study}.yaml"
    kind, key = ("figures" if table.figure else "tables"), table_id.split(".", 1)[1]
    text = f"{shown(path)}: {kind}.{key}.rows.{row_id.removeprefix(f'{table_id}.')}: "
    return read_study(path).in_written_terms(text).replace(":  (", " (").rstrip(": ")


def _column(spec: Column, cell: CellEntry) -> str:
    what = cell.metric or cell.file or cell.why
    return f"{spec.label}: {what} of evaluation {spec.eval}" if spec.eval else f"{spec.label}: {what}"


def _source(freshness: Freshness, source: str) -> Iterator[str]:
    """Explain one result file that a cell shows, and everything that the file depends on."""
    graph, path = freshness.graph, freshness.results.folder / source
    yield _line("result", shown(path))
    kind, name, _ = source.split("/")
    if kind == "evals":
        entry = graph.evals[name]
        yield _line("evaluation", f"configs/eval/{entry.file}.yaml as {name}")
        for role, config in entry.data.items():
            yield from _data(freshness, config["name"], f", as {role}")
        result, code = _read(path, EvalResult), Code("evaluation", entry.config["name"], graph.code_of_evaluation(name))
        yield from _record_lines(graph, result, code)
        yield _state(freshness.why_number(source), result, code)
        for run in dict.fromkeys(entry.subjects.values()):
            yield from _run(freshness, run)
    else:
        yield from _run(freshness, name)


def _run(freshness: Freshness, name: str) -> Iterator[str]:
    """A run: how it was named, what it was trained from, and by which code."""
    run, folder = freshness.graph.runs[name], freshness.results.run(name)
    yield f"{name} ({run.label})"
    yield _line("config", f"{shown(folder.config)}; where a key comes from: `explain {name} KEY`")
    record = _read(folder.done, TrainRecord) if run.trained else None
    code = Code("method", run.method, freshness.graph.code_of_run(name))
    if record:
        yield from _record_lines(freshness.graph, record, code)
    yield from _data(freshness, run.data)
    if init := run.config["init"]:
        yield _line("starts from", f"{init}{_init_digest(freshness, name, record)}")
    if record:
        yield _state(freshness.why(run_file(name)), record, code)


def _init_digest(freshness: Freshness, run: str, record: TrainRecord | str | None) -> str:
    """The weights that a run was started from, or those that are evaluated as they are."""
    if isinstance(record, TrainRecord):
        return f" {short_digest(record.inputs.init)}"
    found = None if record else freshness.weights_of(run)
    return f" {short_digest(found)}" if found else "" if record else ", not on this machine"


def _data(freshness: Freshness, name: str, role: str = "") -> Iterator[str]:
    try:
        manifest = freshness.manifest(name)
    except DataError:
        yield _line("data", f"{name}, not prepared yet{role}")
        return
    counts = " + ".join(f"{split.count} {key}" for key, split in manifest.splits.items())
    yield _line("data", f"{name} {short_digest(manifest.fingerprint)}: {counts} in {manifest.folder}{role}")


def _read(path: Path, kind: type[Kind]) -> Kind | str:
    """A record, or what is wrong with it."""
    try:
        return read_record(path, kind)
    except DataError as error:
        return str(error)


def _record_lines(graph: Graph, record: TrainRecord | EvalResult | str, code: Code) -> Iterator[str]:
    """What a result says of itself, and whether the code behind it is still the same."""
    if isinstance(record, str):
        yield _line("made", record)
        return
    facts = record.provenance
    known = [f"{key} {facts[key]}" for key in SHOWN_FACTS if key in facts]
    yield _line("made", ", ".join(known))
    made_with = facts.get("versions", {})
    others = [name for name in ("torch", "timm") if made_with.get(name) not in (None, version(name))]
    if others:
        words = [f"{name} {made_with[name]}, installed is {version(name)}" for name in others]
        yield _line("versions", "; ".join(words))
    weights = record.inputs.weights if isinstance(record, EvalResult) else record.files
    for file, digest in weights.items():
        if isinstance(record, EvalResult) or file.endswith(".safetensors"):
            yield _line("weights", f"{file} {short_digest(digest)}")
    for key, digest in record.inputs.site_files.items() if isinstance(record, EvalResult) else ():
        yield _line("site file", f"{key} {short_digest(digest)}")
    made_by = facts.get("code", "not recorded")
    date = accepted_on(graph, code, made_by)
    change = f"; today's code is {code.today}{date and f', accepted on {date}'}" if made_by != code.today else ""
    yield _line("code", f"{code.kind} {code.name} {made_by}{change}")


def _state(why: str, record: TrainRecord | EvalResult | str, code: Code) -> str:
    """Whether anything that a result depends on has changed since it was made."""
    if why:
        return _line("since then", f"must be made again: {why}")
    made_by = None if isinstance(record, str) else record.provenance.get("code")
    if made_by and made_by != code.today:
        return _line("since then", "its code has changed; nothing else that it depends on has")
    return _line("since then", "nothing that it depends on has changed")


def _key(freshness: Freshness, run: str, key: str) -> Iterator[str]:
    """The layers of config that give a key of a run, in order; the last one wins."""
    layers: dict[str, Layers] = {}
    build_graph(freshness.graph.scale, layers=layers)
    given, value = layers[run].values(tuple(key.split("."))), _value(freshness.graph.runs[run].config, key)
    yield f"{key} of {run} is {value!r}"
    if not given:
        yield "  the default: no config names it"
    for number, (source, said) in enumerate(given, start=1):
        mark = "  <- in effect" if number == len(given) else ""
        yield f"  {number}. {_written(source, key)}: {said!r}{mark}"
    if given and given[-1][1] != value:
        yield "  the value is derived from these settings"


def _value(config: dict[str, Any], key: str) -> Any:
    found: Any = config
    for number, part in enumerate(parts := key.split(".")):
        if not isinstance(found, dict) or part not in found:
            known = found if isinstance(found, dict) else {}
            where = ".".join(parts[:number]) or "a run"
            raise ConfigError(f"no key {key!r}: {where} has no {part!r}; {nearest(part, known)}")
        found = found[part]
    return found


def _written(source: str, key: str) -> str:
    """A layer as its author wrote it, with the line where it is a study's."""
    file, _, rest = source.partition(": ")
    if not file.startswith("configs/study/"):
        return source
    line = read_study(CONFIGS.parent / file).in_written_terms(f"{file}: {rest}: {key}: ")
    return line.replace(f"{key}:  (", f"{key} (").rstrip(": ")
