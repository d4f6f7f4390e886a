"""What the rules draw: tables and figures, claims, the report. Each leaves a record of what it was made from."""

from pathlib import Path

from pipeline.core.files import remove, write_text
from pipeline.freshness.outputs import claims_file, report_file, table_file
from pipeline.freshness.remake import Freshness, begin_drawing, record_drawing
from pipeline.report.tables.fill import fill_table, judge_study
from pipeline.report.words import MARKED, shown_again
from pipeline.results.records import write_record
from pipeline.study.resolve.entries import Graph
from pipeline.study.targets import ROWS, check_target, command_for, report_target, rows_and_study


def draw_table(freshness: Freshness, table: str, rows: str) -> None:
    """A table or a figure: as data, and as what is looked at."""
    from pipeline.report.tables import draw  # what it draws with takes long to import

    graph, begun = freshness.graph, begin_drawing(freshness, table_file(table, rows))
    filled, path = fill_table(graph, table, rows), graph.results.table(table, rows)
    drawn = {path.with_name(table + suffix): text for suffix, text in draw.files_of(filled, graph.results.read).items()}
    for file, text in drawn.items():
        write_text(file, text)
    for suffix in (".html", ".svg"):  # what it was drawn as when it was of another kind
        if path.with_name(table + suffix) not in drawn:
            remove(path.with_name(table + suffix))
    write_record(path, filled)
    record_drawing(freshness, table_file(table, rows), begun, [path, *drawn])


def judge_claims(freshness: Freshness, study: str, rows: str) -> None:
    """The claims of a study, on the tables as they were drawn."""
    path, begun = freshness.results.claims(study, rows), begin_drawing(freshness, claims_file(study, rows))
    write_record(path, judge_study(freshness.graph, study, rows))
    record_drawing(freshness, claims_file(study, rows), begun, [path])


def draw_report(freshness: Freshness, report: str) -> Path:
    """Draw a report (`headline`, `all` or a study) as a site, and its numbers without anything around them.

    Return its first page.
    """
    from pipeline.report.collect import collect
    from pipeline.report.site.page import write_report
    from pipeline.report.tables.numbers import write_numbers

    graph, (rows, study) = freshness.graph, _chosen(freshness.graph, report)
    begun, path = begin_drawing(freshness, report_file(report)), graph.results.report(report)
    content = collect(graph, rows, freshness, study)
    numbers = write_numbers(content.tables, path)
    title, subtitle = _title(graph, report), _subtitle(freshness, report)
    pages = write_report(content, path, title, graph.scale, graph.results.read, subtitle)
    record_drawing(freshness, report_file(report), begun, [*pages, *numbers])
    return path


def draw_single(freshness: Freshness, report: str) -> Path:
    """Draw a report as one page to send by mail, beside the site, without facts of this machine; return it."""
    from pipeline.report.collect import collect, for_others
    from pipeline.report.site.page import write_single

    graph, (rows, study) = freshness.graph, _chosen(freshness.graph, report)
    content, path = collect(graph, rows, freshness, study), graph.results.report(report).with_suffix(".single.html")
    title, subtitle = _title(graph, report), _subtitle(freshness, report)
    return write_single(for_others(content), path, title, graph.scale, graph.results.read, subtitle)


def _chosen(graph: Graph, report: str) -> tuple[str, str]:
    """Which rows a report shows, and of which study; a mistyped one is refused."""
    rows, study = rows_and_study(report)
    if study:
        check_target(study, [*ROWS, *graph.studies()], graph.scale)
    return rows, study


def _title(graph: Graph, report: str) -> str:
    rows, study = rows_and_study(report)
    name = graph.tables[graph.selected(rows, study)[0]].study_title if study else "Patchwork"
    return f"{name}, scale {graph.scale}"


def _subtitle(freshness: Freshness, report: str) -> str:
    """What the report leaves out, and how many of its results are stale."""
    graph, subtitle, (rows, study) = freshness.graph, "", rows_and_study(report)
    chosen = graph.selected(rows, study)
    if len(chosen) < len(graph.tables) and not study:
        more = command_for("all", graph.scale)
        subtitle = f"{len(chosen)} of {len(graph.tables)} tables and figures; `{more}` draws the others and every row."
    behind = [
        file for file in freshness.needed_for([report_file(report)]) if file.startswith(("data/", "runs/", "evals/"))
    ]
    if stale := [file for file in behind if freshness.exists(file) and freshness.why(file)]:
        again = command_for(report_target(report, graph.scale), graph.scale)
        subtitle += f" {shown_again(len(stale), again)}; {MARKED}."
    return subtitle
