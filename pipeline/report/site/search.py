"""What the search of the site finds: tables and figures, claims, runs, evaluations."""

from collections.abc import Iterator

from pipeline.report.site.findings import VERDICTS
from pipeline.report.site.links import Links
from pipeline.report.site.run_pages import RunPage
from pipeline.report.site.sections import StudySection
from pipeline.report.tables.view import TableView

OF_RUNS = "learning curve, config, seed, commit, machine"  # what the page of every run has
Entry = tuple[str, str, str, str]  # kind, title, what else it is found by, address from the folder of the pages


def search_entries(studies: list[StudySection], runs: list[RunPage], links: Links) -> list[Entry]:
    found: list[Entry] = []
    for study in studies:
        found.append(("study", study.title, study.about, links.study(study.name)))
        for kind, shown in _shown(study):
            words = ", ".join(
                [study.name, *(row.label for row in shown.rows), *(column.label for column in shown.columns)]
            )
            found.append((kind, f"{shown.table.label}: {shown.table.name}", words, links.table(shown.table.id)))
        for table in study.waiting:
            found.append(("not run", f"{table.label}: {table.title}", study.name, links.table(table.id)))
        for one in study.claims:
            words = f"{VERDICTS[one.claim.verdict]}, {one.claim.id}, {study.title}"
            kind = "main claim" if one == study.main_claim else "claim"
            found.append((kind, one.claim.statement, words, links.claim(one.claim.id)))
    for page in runs:
        found.append(("run", page.run.title, f"{page.run.name}, {page.run.label}, {OF_RUNS}", links.run(page.run.name)))
        for each in page.evaluations:
            found.append(("evaluation", f"{each.label} of {page.run.title}", each.name, links.evaluation(each.name)))
    return found


def _shown(study: StudySection) -> Iterator[tuple[str, TableView]]:
    """Every table and figure of a study, with what it is called."""
    for shown in study.tables:
        yield "table", shown
    for figure in study.figures:
        drawing = figure.shown.table.figure
        yield ("figure, learning curves" if drawing and drawing.kind == "curves" else "figure"), figure.shown
