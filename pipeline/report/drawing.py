"""What the rules draw: tables and figures, claims, the report. Each leaves a record of what it was made from."""

from pathlib import Path

from pipeline.files import remove, write_text
from pipeline.freshness import Freshness, begin_drawing, record_drawing
from pipeline.outputs import claims_file, report_file, table_file
from pipeline.records import write_record
from pipeline.report.tables import fill_table, judge_study
from pipeline.report.words import MARKED, shown_again
from pipeline.study.targets import command_for, report_target


def draw_table(freshness: Freshness, table: str, rows: str) -> None:
    """A table or a figure: as data, and as what is looked at."""
    from pipeline.report import draw  # what it draws with takes long to import

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


def draw_report(freshness: Freshness, rows: str) -> Path:
    """The report, and its numbers without anything around them; returns the page."""
    from pipeline.report.collect import collect
    from pipeline.report.numbers import write_numbers
    from pipeline.report.page import write_report

    graph, begun = freshness.graph, begin_drawing(freshness, report_file(rows))
    path = graph.results.report(rows)
    chosen, title, subtitle = graph.selected(rows), f"Patchwork, scale {graph.scale}", ""
    if len(chosen) < len(graph.tables):
        more = command_for("all", graph.scale)
        subtitle = f"{len(chosen)} of {len(graph.tables)} tables and figures; `{more}` draws the others and every row."
    behind = [
        file for file in freshness.needed_for([report_file(rows)]) if file.startswith(("data/", "runs/", "evals/"))
    ]
    if stale := [file for file in behind if freshness.exists(file) and freshness.why(file)]:
        again = command_for(report_target(rows, graph.scale), graph.scale)
        subtitle += f" {shown_again(len(stale), again)}; {MARKED}."
    content = collect(graph, rows, freshness)
    numbers = write_numbers(content.tables, path)
    write_report(content, path, title, graph.scale, graph.results.read, subtitle)
    record_drawing(freshness, report_file(rows), begun, [path, *numbers])
    return path
