"""Writes the report: one self-contained HTML page per scale with tables, claims, curves and provenance.

Reads only what earlier steps wrote: JSON, and the metrics JSONL of runs. Same input, same bytes: the page
adds no date and no path. It has no script and its content policy forbids every request, so it can be mailed.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import DataError
from pipeline.files import write_text
from pipeline.report import curves
from pipeline.report.collect import Content
from pipeline.report.curves import Curve, Logged
from pipeline.report.draw import environment
from pipeline.report.records import FilledTable, RunSummary
from pipeline.report.records import Verdict as CellVerdict
from pipeline.study.claims import JudgedClaim
from pipeline.study.claims import Verdict as ClaimVerdict

CELL_VERDICTS: list[CellVerdict] = ["match", "differs", "not comparable", "no paper value", "not run"]
CLAIM_VERDICTS: list[ClaimVerdict] = ["true", "false", "undecided"]


@dataclass(frozen=True)
class StudySection:
    """What the page shows of one study."""

    name: str
    title: str
    tables: list[FilledTable]
    claims: list[JudgedClaim]
    curves: list[Curve]


def write_report(content: Content, out: Path, title: str, scale: str, subtitle: str = "") -> Path:
    """Writes the page to the file `out` and returns it."""
    tables, _, runs = content
    check_scale(content, scale)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            subtitle=subtitle,
            scale=scale,
            scale_note=tables[0].scale_note if tables else "",
            summary=summarise(content),
            studies=by_study(content),
            runs=runs,
            run_names={run.name for run in runs},
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


def summarise(content: Content) -> dict[str, int | dict[str, int]]:
    cells = [cell for table in content.tables for _, _, cell in table.cells()]
    found = Counter(cell.verdict for cell in cells)
    claimed = Counter(claim.verdict for study in content.claims for claim in study.claims)
    return {
        "tables": len(content.tables),
        "runs": len(content.runs),
        "obtained": sum(cell.ours is not None for cell in cells),
        "missing": sum(cell.ours is None for cell in cells),
        "verdicts": {verdict: found[verdict] for verdict in CELL_VERDICTS},
        "claims": {verdict: claimed[verdict] for verdict in CLAIM_VERDICTS},
    }


def by_study(content: Content) -> list[StudySection]:
    """Tables, claims and curves of each study, in the order the studies first appear; other runs last."""
    named = [table.study for table in content.tables] + [study.study for study in content.claims]
    names = list(dict.fromkeys(named))
    sections = [_section(content, name, f"study{index}") for index, name in enumerate(names)]
    rest = [run for run in content.runs if not set(names) & set(run.studies)]
    if rest:
        sections.append(StudySection("other", "Other runs", [], [], _curves(rest, "other")))
    return sections


def _section(content: Content, name: str, prefix: str) -> StudySection:
    tables = [table for table in content.tables if table.study == name]
    title = next((table.study_title for table in tables), name)
    claims = [claim for study in content.claims if study.study == name for claim in study.claims]
    runs = [run for run in content.runs if name in run.studies]
    return StudySection(name, title, tables, claims, _curves(runs, prefix))


def _curves(runs: list[RunSummary], prefix: str) -> list[Curve]:
    return curves.draw([Logged(run.name, run.label, Path(run.metrics_file or "")) for run in runs], prefix)
