"""A published folder: written from results, read back, and compared with what its own metrics give."""

import json
from collections.abc import Iterable
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.config import shown
from pipeline.core.errors import DataError
from pipeline.core.files import draft_of, held, lock_of, remove_drafts, remove_folder, write_text
from pipeline.publishing.from_metrics import (
    PublishedTables,
    claims_as_data,
    claims_from_data,
    differences,
    draw_from,
    hide_commands,
    tables_as_data,
)
from pipeline.publishing.metrics import (
    METRICS,
    PER_IMAGE,
    RUNS,
    Metrics,
    gather,
    gather_images,
    read_metrics,
    runs_without_curve,
    write_arrays,
    write_metrics,
    write_run_files,
)
from pipeline.publishing.picture import picture
from pipeline.publishing.provenance import provenance_of
from pipeline.publishing.selection import ROWS, changes_between, place_results, published_part
from pipeline.publishing.words import PICTURE, Publication, folder_text, full_title
from pipeline.report.collect import collect_tables
from pipeline.report.words import counted
from pipeline.results import ScaleFolder, published_folder
from pipeline.study.resolve.entries import Graph

MOST_BYTES = 10_000_000
GRAPH = "graph.json"
TABLES, CLAIMS, PROVENANCE = "tables.json", "claims.json", "provenance.json"
TABLES_TEXT, TEXT, REPORT = "tables.md", "README.md", "report.html"
FILES = {
    METRICS: "every metric of every run and evaluation, with its standard error, seed, fingerprints and versions",
    PER_IMAGE: "values per image of the cells that claims compare",
    RUNS: "what training wrote beside the metrics of each run: its config, its learning curve, its speed",
    GRAPH: "what was asked: the full config of each run and evaluation, tables and claims",
    f"{TABLES}` and `{TABLES_TEXT}": "the tables, drawn from the metrics",
    CLAIMS: "the verdicts, with the numbers of every comparison",
    PROVENANCE: "commits, machines, versions, seeds, and the hours of each run",
}


def publish(graph: Graph, results: ScaleFolder, report: Path | None = None) -> Path:
    """Write the folder of a scale anew, and return it; `report` is one page, left out where it does not fit."""
    part, target = published_part(graph), published_folder(graph.scale)
    draft = draft_of(target)
    with held(lock_of(target), f"what is published of scale {graph.scale}"):
        remove_drafts(target)
        try:
            _write(draft, part, results, report)
            if (size := _size(draft)) > MOST_BYTES:
                raise DataError(
                    f"{shown(target)} would have {size:,} bytes, expected {MOST_BYTES:,} at most; shorten the headline"
                )
            remove_folder(target)
            draft.rename(target)
        except BaseException:
            remove_folder(draft)
            raise
    return target


def _write(folder: Path, part: Graph, results: ScaleFolder, report: Path | None) -> None:
    metrics = gather(part, results)
    if not metrics.runs:
        raise DataError(f"{results.folder} has no finished run of the headline; run it first")
    tables, studies = collect_tables(place_results(part, results.folder), ROWS)
    write_text(folder / GRAPH, part.model_dump_json(indent=None) + "\n")
    write_metrics(folder / METRICS, metrics)
    write_arrays(folder / PER_IMAGE, gather_images(part, results, metrics))
    write_run_files(folder / RUNS, metrics, results)
    drawn = draw_from(part, folder)
    if lost := differences(drawn, tables_as_data(hide_commands(tables)), claims_as_data(studies)):
        raise DataError(
            f"the metrics do not give the tables of {shown(results.folder)}: {lost[0]}; this is a mistake here"
        )
    about = _about_files(folder, metrics, report is not None and _fits(folder, report))
    for name, content in _drawings(part, drawn, provenance_of(part, metrics), about):
        write_text(folder / name, content)
    if report and _fits(folder, report):
        write_text(folder / REPORT, report.read_text())


def _fits(folder: Path, report: Path) -> bool:
    return _size(folder) + report.stat().st_size <= MOST_BYTES * 0.9


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _drawings(
    graph: Graph, drawn: PublishedTables, facts: dict[str, Any], about: Iterable[str]
) -> Iterable[tuple[str, str]]:
    """Name and text of everything that is drawn from the metrics."""
    yield TABLES, _json(tables_as_data(drawn.tables))
    yield CLAIMS, _json(claims_as_data(drawn.studies))
    yield PROVENANCE, _json(facts)
    yield from _texts(graph, drawn, claims_as_data(drawn.studies), facts, about)


def _texts(
    graph: Graph, drawn: PublishedTables, claims: dict[str, Any], facts: dict[str, Any], about: Iterable[str]
) -> Iterable[tuple[str, str]]:
    from pipeline.report.tables.draw import to_markdown

    judged = claims_from_data(claims)
    by_study = groupby(drawn.tables, lambda table: table.id.partition(".")[0])
    # What is the same for all tables is said once, above them.
    texts = [[f"{graph.note}\n"]] * bool(graph.note)
    for study, tables in by_study:
        short = (table.model_copy(update={"scale_note": ""}) for table in tables)
        texts.append([f"## {full_title(graph, study)}\n", *map(to_markdown, short)])
    yield TABLES_TEXT, "\n".join(chain.from_iterable(texts))
    yield PICTURE, picture(graph, drawn.tables, judged)
    yield TEXT, folder_text(Publication(graph, drawn.tables, judged, facts), about)


def _about_files(folder: Path, metrics: Metrics, has_report: bool) -> Iterable[str]:
    files = {name: what for name, what in FILES.items() if name != RUNS or (folder / name).exists()}
    yield from (f"- `{name}`: {what}" for name, what in files.items())
    if without := runs_without_curve(folder / RUNS, metrics):
        yield f"- The learning curves of {counted(without, 'run')} were not kept."
    yield f"- `{REPORT}`: the report as one page" if has_report else "- The report would not fit here."
    yield ""
    yield (
        f"`python -m pipeline published --check {metrics.scale}` draws tables and verdicts from the metrics, and "
        f"compares. `python -m pipeline merge results/published/{metrics.scale}` imports these results, so that more "
        "seeds can be added."
    )


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def published_scales() -> list[str]:
    found = (path.parent.name for path in published_folder().glob(f"*/{METRICS}"))
    return sorted(name for name in found if not name.startswith("."))


def check(scale: str) -> list[str]:
    """What differs between a published folder and what its own metrics give; empty where nothing does."""
    folder = published_folder(scale)
    lines, texts = _compare(folder)
    if lines:
        return lines
    lines = [f"{name} is not what the metrics give" for name, text in texts if _read(folder / name) != text]
    size = _size(folder)
    return lines + [f"{size:,} bytes, expected {MOST_BYTES:,} at most"] * (size > MOST_BYTES)


def redraw(scale: str) -> list[Path]:
    """Write the texts and the picture again, as the code of today words and draws them; return those that changed.

    Numbers and verdicts stay: where the metrics do not give them, DataError is raised and nothing is written.
    """
    folder = published_folder(scale)
    lines, texts = _compare(folder)
    if lines:
        raise DataError(
            f"{shown(folder)} has other numbers or verdicts than its metrics give: {lines[0]}; restore it with git, "
            "or publish again"
        )
    changed = {folder / name: text for name, text in texts if not _has_text(folder / name, text)}
    for path, text in changed.items():
        write_text(path, text)
    return [*changed]


def _has_text(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def _compare(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """What differs from the metrics, cells and verdicts; and the texts that follow from them, by name."""
    (graph, drawn), metrics = _draw(folder), read_metrics(folder / METRICS)
    claims, facts = read_json(folder / CLAIMS), provenance_of(graph, metrics)
    lines = differences(drawn, read_json(folder / TABLES), claims)
    about = _about_files(folder, metrics, (folder / REPORT).exists())
    return lines, [] if lines else [(PROVENANCE, _json(facts)), *_texts(graph, drawn, claims, facts, about)]


def changed_since(scale: str, now: Graph) -> str:
    """What the configs ask otherwise than when a scale was published, in words; its numbers are none the worse."""
    return changes_between(_read_graph(published_folder(scale)), now)


def _draw(folder: Path) -> tuple[Graph, PublishedTables]:
    graph = _read_graph(folder)
    return graph, draw_from(graph, folder)


def _read_graph(folder: Path) -> Graph:
    try:
        return Graph.model_validate_json(_read(folder / GRAPH))
    except ValidationError as error:
        raise DataError(f"{shown(folder / GRAPH)} is of another version ({error}); publish again") from None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        raise DataError(f"{shown(path)} not found; restore it with git, or publish again") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise DataError(f"{shown(path)} is no JSON ({error}); restore it with git, or publish again") from None


def read_publication(scale: str) -> Publication:
    """What is published of a scale, its tables drawn from its metrics."""
    folder = published_folder(scale)
    graph, drawn = _draw(folder)
    return Publication(
        graph, drawn.tables, claims_from_data(read_json(folder / CLAIMS)), read_json(folder / PROVENANCE)
    )
