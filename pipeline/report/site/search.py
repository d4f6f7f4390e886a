"""What the search of the site finds: tables and figures, claims, runs, evaluations."""

from pipeline.report.site.findings import VERDICTS
from pipeline.report.site.links import Links
from pipeline.report.site.run_pages import RunPage
from pipeline.report.site.sections import StudySection

Entry = tuple[str, str, str, str]  # kind, title, what else it is found by, address from the folder of the pages


def search_entries(studies: list[StudySection], runs: list[RunPage], links: Links) -> list[Entry]:
    found: list[Entry] = []
    for study in studies:
        found.append(("study", study.title, study.about, links.study(study.name)))
        tables = [*study.tables, *(figure.shown for figure in study.figures)]
        for shown in tables:
            words = ", ".join(
                [study.name, *(row.label for row in shown.rows), *(column.label for column in shown.columns)]
            )
            found.append(("table", f"{shown.table.label}: {shown.table.name}", words, links.table(shown.table.id)))
        for table in study.waiting:
            found.append(("not run", f"{table.label}: {table.title}", study.name, links.table(table.id)))
        for one in study.claims:
            words = f"{VERDICTS[one.claim.verdict]}, {one.claim.id}"
            found.append(("claim", one.claim.statement, words, links.claim(one.claim.id)))
    for page in runs:
        found.append(("run", page.run.title, f"{page.run.name}, {page.run.label}", links.run(page.run.name)))
        for each in page.evaluations:
            found.append(("evaluation", f"{each.label} of {page.run.title}", each.name, links.evaluation(each.name)))
    return found
