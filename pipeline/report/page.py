"""Writes the report: one self-contained HTML page per scale with tables, claims, curves and provenance.

Reads only what earlier steps wrote: JSON, and the metrics JSONL of runs. Same input, same bytes: the page
adds no date and no path. It has no script and its content policy forbids every request, so it can be mailed.
"""

from collections import Counter
from pathlib import Path

from pipeline.errors import DataError
from pipeline.files import write_text
from pipeline.report import curves
from pipeline.report.draw import cells_of, environment

CELL_VERDICTS = ["match", "differs", "not comparable", "no paper value", "not run"]
CLAIM_VERDICTS = ["true", "false", "undecided"]


def write_report(
    tables: list[dict], claims: list[dict], runs: list[dict], out: Path, title: str, scale: str, subtitle: str = ""
) -> Path:
    """Writes the page to the file `out` and returns it."""
    check_scale([*tables, *claims], scale)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            subtitle=subtitle,
            scale=scale,
            scale_note=tables[0]["scale_note"] if tables else "",
            summary=summarise(tables, claims, runs),
            studies=by_study(tables, claims, runs),
            runs=runs,
            run_names={run["name"] for run in runs},
        )
    )
    write_text(out, page)
    return out


def check_scale(parts: list[dict], scale: str) -> None:
    """Numbers of two scales on one page would be read as one experiment."""
    strangers = [f"{part.get('id', part['study'])} ({part['scale']})" for part in parts if part["scale"] != scale]
    if strangers:
        raise DataError(
            f"the report of scale {scale!r} was given results of another scale: {', '.join(strangers)}; "
            f"expected only {scale!r}; build one report per scale"
        )


def summarise(tables: list[dict], claims: list[dict], runs: list[dict]) -> dict:
    cells = [cell for table in tables for _, _, cell in cells_of(table)]
    found = Counter(cell["verdict"] for cell in cells)
    claimed = Counter(claim["verdict"] for study in claims for claim in study["claims"])
    return {
        "tables": len(tables),
        "runs": len(runs),
        "obtained": sum(cell["ours"] is not None for cell in cells),
        "missing": sum(cell["ours"] is None for cell in cells),
        "verdicts": {verdict: found[verdict] for verdict in CELL_VERDICTS},
        "claims": {verdict: claimed[verdict] for verdict in CLAIM_VERDICTS},
    }


def by_study(tables: list[dict], claims: list[dict], runs: list[dict]) -> list[dict]:
    """Tables, claims and curves of each study, in the order the studies first appear."""
    names = list(dict.fromkeys(part["study"] for part in [*tables, *claims]))
    studies = []
    placed: set[str] = set()
    for index, name in enumerate(names):
        own_tables = [table for table in tables if table["study"] == name]
        title = next((table["study_title"] for table in own_tables), name)
        own_claims = [claim for study in claims if study["study"] == name for claim in study["claims"]]
        own_runs = [run for run in runs if name in run["studies"]]
        placed |= {run["name"] for run in own_runs}
        studies.append(
            {
                "name": name,
                "title": title,
                "tables": own_tables,
                "claims": own_claims,
                "curves": curves.draw(own_runs, f"study{index}"),
            }
        )
    rest = [run for run in runs if run["name"] not in placed]
    if rest:
        plots = curves.draw(rest, "other")
        studies.append({"name": "other", "title": "Other runs", "tables": [], "claims": [], "curves": plots})
    return studies
