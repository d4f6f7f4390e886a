"""Writes the report: one self-contained HTML page per scale. First what was found, then tables, claims, curves, runs.

Reads only what earlier steps wrote: JSON, pictures, and the metrics JSONL of runs. Same input, same bytes: the page
adds no date and no path. It has no script and its content policy forbids every request, so it can be mailed.
"""

from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import DataError
from pipeline.files import write_text
from pipeline.report import curves, findings
from pipeline.report.collect import Content
from pipeline.report.curves import Curve, Logged
from pipeline.report.draw import Drawn, drawn, environment
from pipeline.report.figures import draw_figure
from pipeline.report.findings import ClaimInWords, KeyNumbers
from pipeline.report.lines import read_curves
from pipeline.report.records import FilledTable, Read, RunSummary
from pipeline.report.view import TableView, view
from pipeline.study.spec import Drawing

MOST_BARS = 10


@dataclass(frozen=True)
class Bars:
    """The numbers that say most of a study, as bars."""

    keys: KeyNumbers
    svg: str

    @property
    def more(self) -> int:
        """Rows that only the table has."""
        return max(0, len(self.keys.rows) - MOST_BARS)


@dataclass(frozen=True)
class StudySection:
    """What the page shows of one study."""

    name: str
    title: str
    sentences: list[str]
    bars: Bars | None
    main: list[Drawn]  # the first figure, and every figure of pictures
    others: list[Drawn]
    tables: list[TableView]
    waiting: list[FilledTable]  # tables and figures of which nothing ran
    claims: list[ClaimInWords]
    curves: list[Curve]


def write_report(content: Content, out: Path, title: str, scale: str, read: Read, subtitle: str = "") -> Path:
    """Writes the page to the file `out` and returns it; `read` gives the content of a file of this scale."""
    check_scale(content, scale)
    studies = by_study(content, scale, read)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            subtitle=subtitle,
            scale=scale,
            comparable=all(table.comparable for table in content.tables),
            scale_note=content.tables[0].scale_note if content.tables else "",
            opening=findings.opening(content, scale),
            studies=studies,
            verdicts=findings.VERDICTS,
            claims=[claim for study in studies for claim in study.claims],
            runs=content.runs,
            run_names={run.name for run in content.runs},
        )
    )
    write_text(out, page)
    return out


def check_scale(content: Content, scale: str) -> None:
    """Numbers of two scales on one page would be read as one experiment."""
    parts = [(table.id, table.scale) for table in content.tables]
    parts += [(study.study, study.scale) for study in content.claims]
    strangers = [f"{name} ({other})" for name, other in parts if other != scale]
    if strangers:
        raise DataError(
            f"the report of scale {scale!r} was given results of another scale: {', '.join(strangers)}; "
            f"expected only {scale!r}; build one report per scale"
        )


def by_study(content: Content, scale: str, read: Read) -> list[StudySection]:
    """Tables, claims and curves of each study, in the order the studies first appear; other runs last."""
    named = [table.study for table in content.tables] + [study.study for study in content.claims]
    names = list(dict.fromkeys(named))
    sections = [_section(content, name, scale, read) for name in names]
    rest = [run for run in content.runs if not set(names) & set(run.studies)]
    if rest:
        sections.append(StudySection("other", "Other runs", [], None, [], [], [], [], [], _curves(rest, "other")))
    return sections


def _section(content: Content, name: str, scale: str, read: Read) -> StudySection:
    own = [table for table in content.tables if table.study == name]
    claims = [claim for study in content.claims if study.study == name for claim in study.claims]
    runs = [run for run in content.runs if name in run.studies]
    filled = [table for table in own if has_results(table, read)]
    figures = [figure for table in filled if (figure := drawn(table, read))]
    main = [*[figure for figure in figures if figure.svg][:1], *[figure for figure in figures if figure.pictures]]
    keys = findings.key_numbers(filled, claims)
    return StudySection(
        name=name,
        title=next((table.study_title for table in own), name),
        sentences=[*([findings.key_sentence(keys)] if keys else []), *findings.claim_sentence(claims)],
        bars=Bars(keys, _bars(keys, name)) if keys else None,
        main=main,
        others=[figure for figure in figures if figure not in main],
        tables=[view(table) for table in filled if table.figure is None],
        waiting=[table for table in own if table not in filled],
        claims=findings.in_words(claims, content.tables, scale),
        curves=_curves(runs, f"curve-{name}"),
    )


def has_results(table: FilledTable, read: Read) -> bool:
    """Whether there is anything to show of a table or a figure."""
    if table.figure is not None and table.figure.kind == "curves":
        return bool(read_curves(table, table.figure.curve, read))
    return bool(view(table).rows)


def _bars(keys: KeyNumbers, name: str) -> str:
    """The key numbers as a figure of bars."""
    rows = [row.first.model_copy(update={"label": row.label, "same_as": ""}) for row in keys.rows[:MOST_BARS]]
    column = keys.column.first.model_copy(update={"label": keys.column.label})
    changes = {"rows": rows, "columns": [column], "figure": Drawing(kind="bars", x_from="rows")}
    return draw_figure(keys.table.model_copy(update=changes), _read_nothing, f"bars-{name}")


def _read_nothing(name: str) -> bytes:
    raise FileNotFoundError(name)


def _curves(runs: list[RunSummary], prefix: str) -> list[Curve]:
    return curves.draw([Logged(run.name, run.label, Path(run.metrics_file or "")) for run in runs], prefix)
