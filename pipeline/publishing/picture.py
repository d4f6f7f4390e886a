"""One picture of a publication: every claim as a mark, and our percentages against those of the papers.

Written as SVG by hand, so that the same numbers give the same bytes with any version of a plotting library.
"""

from collections.abc import Iterable

from markupsafe import escape

from pipeline.report.records import FilledTable
from pipeline.report.site.findings import VERDICTS, verdict_counts
from pipeline.report.site.overview import SIGNS, Scatter, scatter
from pipeline.study.claims.decide import JudgedClaim
from pipeline.study.resolve.entries import Graph

WIDTH, MARGIN, LINE = 960, 20, 62
MARK, GAP, MARKS_WIDTH = 18, 4, 520  # of the squares that stand for claims
PLOT, PLOT_LEFT = 300, 620
CLASSES = {"true": "good", "false": "bad", "within noise": "open", "not run yet": "quiet", "not testable": "quiet"}
SERIES = ("#0a5ca8", "#b04a06", "#14744a", "#7a3ba3", "#a62852", "#5a646e")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1a1d21; } .small { font-size: 11px; fill: #59616a; }
.page { fill: #ffffff; } .frame { fill: none; stroke: #d9dde2; } .equal { stroke: #59616a; stroke-dasharray: 4 4; }
.good { fill: #1b7a49; } .bad { fill: #b83d10; } .open { fill: #806800; } .quiet { fill: #a1abb5; }
.sign { font-size: 12px; fill: #ffffff; text-anchor: middle; }
"""


def picture(graph: Graph, tables: list[FilledTable], claims: dict[str, list[JudgedClaim]]) -> str:
    titles = {study: story.title for study, story in graph.stories.items()}
    judged = {study: found for study, found in claims.items() if found}
    parts = [part for at, (study, found) in enumerate(judged.items()) for part in _marks(at, titles[study], found)]
    found = scatter(tables, titles)
    height = max(
        2 * MARGIN + LINE * len(judged) + 20, 2 * MARGIN + PLOT + 40 + 16 * len(found.studies if found else [])
    )
    parts += [_text(MARGIN, height - 14, _legend(), "small"), *(_plot(found) if found else [])]
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    label = f"<title>Claims and numbers at scale {escape(graph.scale)}</title>"
    page = f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    return "\n".join([head, label, f"<style>{STYLE}</style>", page, *parts, "</svg>", ""])


def _legend() -> str:
    return ", ".join(f"{SIGNS[verdict]} {words}" for verdict, words in VERDICTS.items())


def _marks(at: int, title: str, claims: list[JudgedClaim]) -> Iterable[str]:
    """The claims of a study: a line of words, and a square for each, the decided ones first."""
    top = MARGIN + at * LINE
    yield _text(MARGIN, top + 13, f"{title.partition(':')[0]}: {', '.join(verdict_counts(claims))}")
    ordered = sorted(claims, key=lambda claim: [*VERDICTS].index(claim.verdict))
    side = min(MARK, MARKS_WIDTH // max(1, len(claims)) - GAP)
    for place, claim in enumerate(ordered):
        left = MARGIN + place * (side + GAP)
        square = (
            f'<rect x="{left}" y="{top + 22}" width="{side}" height="{MARK}" rx="3" class="{CLASSES[claim.verdict]}"/>'
        )
        sign = f'<text x="{left + side / 2:g}" y="{top + 35}" class="sign">{SIGNS[claim.verdict]}</text>'
        yield f"<g><title>{escape(claim.statement)}: {VERDICTS[claim.verdict]}</title>{square}{sign}</g>"


def _plot(found: Scatter) -> Iterable[str]:
    top, bottom, right = MARGIN + 8, MARGIN + 8 + PLOT, PLOT_LEFT + PLOT
    yield f'<rect x="{PLOT_LEFT}" y="{top}" width="{PLOT}" height="{PLOT}" class="frame"/>'
    yield f'<line x1="{PLOT_LEFT}" y1="{bottom}" x2="{right}" y2="{top}" class="equal"/>'
    for value in (0, 50, 100):
        yield _text(PLOT_LEFT + PLOT * value / 100 - 6, bottom + 15, str(value), "small")
        yield _text(PLOT_LEFT - 26, bottom - PLOT * value / 100 + 4, str(value), "small")
    yield _text(PLOT_LEFT, bottom + 32, "the papers' percentages (across) and ours (up)", "small")
    for point in found.points:
        x, y = PLOT_LEFT + PLOT * point.x / 100, bottom - PLOT * point.y / 100
        words = f"<title>{escape(point.label)}: {point.y:.1f}, the paper's {point.x:.1f}</title>"
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_colour(point.study)}" fill-opacity="0.7">'
        yield f"{circle}{words}</circle>"
    for at, (place, title) in enumerate(found.studies):
        y = bottom + 50 + 16 * at
        yield f'<circle cx="{PLOT_LEFT + 5}" cy="{y - 4}" r="4" fill="{_colour(place)}"/>'
        yield _text(PLOT_LEFT + 16, y, title, "small")


def _colour(place: int) -> str:
    return SERIES[place % len(SERIES)]


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(text)}</text>'
