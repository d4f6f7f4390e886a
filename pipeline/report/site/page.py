"""Writes the report of one scale: a small site that opens from disk, or one page to send by mail.

The first page counts the claims and sets our numbers against the papers'; each study and each run has a page of its
own. Everything lies in one folder, and the pages' content policy forbids every request to elsewhere. Same input, same
bytes: no page has a date or a path of the machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.files import remove, write_atomic
from pipeline.report import TEMPLATES
from pipeline.report.collect import Content
from pipeline.report.figures import curves
from pipeline.report.figures.pictures import Media, Place
from pipeline.report.figures.shrink import embed_small
from pipeline.report.records import Read
from pipeline.report.site import findings
from pipeline.report.site.links import OTHERS, Links, hosts_of
from pipeline.report.site.overview import SIGNS, overview
from pipeline.report.site.run_pages import OtherEvaluations, RunPage, run_pages
from pipeline.report.site.search import search_entries
from pipeline.report.site.sections import StudySection, by_study
from pipeline.report.tables.draw import Drawn, environment

ASSETS = ("colours.css", "page.css", "page.js")


@dataclass(frozen=True)
class Report:
    """Everything that pages show."""

    content: Content
    studies: list[StudySection]
    runs: list[RunPage]
    others: OtherEvaluations
    links: Links
    shared: Mapping[str, Any]  # what every template may use


def write_report(content: Content, out: Path, title: str, scale: str, read: Read, subtitle: str = "") -> list[Path]:
    """Writes the first page to the file `out` and the others to the folder next to it; returns all files, it first.

    `read` gives the content of a file of this scale.
    """
    media, folder = Media(), out.with_suffix("")
    links = Links(f"../{out.name}", "", hosts_of(content.runs, content.evaluations))
    report = _build(content, title, scale, read, subtitle, media.place, links)
    pages = _pages(report, folder.name)
    files: dict[Path, bytes] = {out: pages.pop("").encode()}
    files |= {folder / f"{name}.html": page.encode() for name, page in pages.items()}
    files |= {folder / name: content for name, content in media.files.items()}
    files |= {folder / "assets" / name: (TEMPLATES / name).read_bytes() for name in ASSETS}
    files[folder / "assets" / "search.js"] = _search_index(report).encode()
    for path, written in files.items():
        write_atomic(path, written)
    for stray in sorted({path for path in folder.rglob("*") if path.is_file()} - files.keys()):
        remove(stray)
    return [*files]


def write_single(content: Content, out: Path, title: str, scale: str, read: Read, subtitle: str = "") -> Path:
    """Writes everything as one page with its pictures inside, to send by mail; returns it."""
    links = Links("", "", hosts_of(content.runs, content.evaluations), is_single=True)
    report = _build(content, title, scale, read, subtitle, embed_small, links)
    write_atomic(out, _render(report, "single.html.j2", report.links, "").encode())
    return out


def _build(content: Content, title: str, scale: str, read: Read, subtitle: str, place: Place, links: Links) -> Report:
    check_scale(content, scale)
    studies = by_study(content, scale, read, place)
    titles = {study.name: study.title for study in studies}
    claims = {study.name: study.claims for study in studies}
    runs, others = run_pages(content.runs, content.tables, content.evaluations, links.hosts)
    shared = {
        "title": title,
        "subtitle": subtitle,
        "scale": scale,
        "has_paper": any(table.has_paper for table in content.tables),
        "comparable": all(table.comparable for table in content.tables if table.has_paper),
        "scale_note": content.tables[0].scale_note if content.tables else "",
        "opening": findings.opening(content, scale),
        "overview": overview(claims, titles, content.tables),
        "studies": studies,
        "verdicts": findings.VERDICTS,
        "signs": SIGNS,
        "decimals_of": curves.decimals_of,
        "runs": runs,
        "others": others,
        "names": {name: title.partition(":")[0] for name, title in titles.items()},
        "labels": {run.name: run.title for run in content.runs},
        "glance": _glance(studies),
    }
    return Report(content, studies, runs, others, links, shared)


def _pages(report: Report, folder: str) -> dict[str, str]:
    """Name -> page; the first one has no name."""
    first = report.links.on_first_page(folder)
    render = partial(_render, report)
    pages = {"": render("overview.html.j2", first, "")}
    pages["claims"] = render("claims.html.j2", report.links, "claims")
    pages["runs"] = render("runs.html.j2", report.links, "runs")
    for study in report.studies:
        pages[f"study-{study.name}"] = render("study.html.j2", report.links, f"study-{study.name}", study=study)
    for page in report.runs:
        pages[f"run-{page.run.name}"] = render("run.html.j2", report.links, "runs", page=page)
    if report.others.numbers or report.others.evaluations:
        pages[OTHERS] = render("evaluations.html.j2", report.links, "runs")
    return pages


def _render(report: Report, template: str, links: Links, current: str, **more: Any) -> str:
    """`current` is the entry of the contents that the page is."""
    return environment().get_template(template).render(**report.shared, **more, links=links, current=current)


def _search_index(report: Report) -> str:
    """As a script: a page that was opened from disk may not read a file in any other way."""
    return f"window.SEARCH = {json.dumps(search_entries(report.studies, report.runs, report.links), indent=0)};\n"


def check_scale(content: Content, scale: str) -> None:
    """Numbers of two scales in one report would be read as one experiment."""
    parts = [(table.id, table.scale) for table in content.tables]
    parts += [(study.study, study.scale) for study in content.claims]
    strangers = [f"{name} ({other})" for name, other in parts if other != scale]
    if strangers:
        raise DataError(
            f"the report of scale {scale!r} was given results of another scale: {', '.join(strangers)}; "
            f"expected only {scale!r}; build one report per scale"
        )


def _glance(studies: list[StudySection]) -> Drawn | None:
    """The heat map of the first study, which compares everything."""
    figures = [figure for study in studies[:1] for figure in study.figures]
    return next(
        (each for each in figures if each.shown.table.figure and each.shown.table.figure.kind == "heatmap"), None
    )
