"""One picture of a publication: every claim as a mark, and the first number of each model of the overview.

Where numbers can be compared with the papers', our percentages against theirs take the place of the latter.

Written as SVG by hand, so that the same numbers give the same bytes with any version of a plotting library.
"""

from collections.abc import Iterable
from typing import NamedTuple

from markupsafe import escape

from pipeline.report.records import FilledRow, FilledTable
from pipeline.report.site.findings import VERDICTS, value_of, verdict_counts
from pipeline.report.site.here import epochs_of
from pipeline.report.site.overview import PERCENT, SIGNS, Scatter, scatter
from pipeline.study.claims.decide import JudgedClaim
from pipeline.study.resolve.entries import Graph

WIDTH, MARGIN, LINE = 960, 20, 62
MARK, GAP, MARKS_WIDTH = 18, 4, 520  # of the squares that stand for claims
PLOT, PLOT_LEFT = 300, 620
BAR, BARS_LEFT, BARS_WIDTH = 30, 740, 130
CLASSES = {"true": "good", "false": "bad", "within noise": "open", "not run yet": "quiet", "not testable": "quiet"}
SERIES = ("#0a5ca8", "#b04a06", "#14744a", "#7a3ba3", "#a62852", "#5a646e")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1a1d21; } .small { font-size: 11px; fill: #59616a; }
.page { fill: #ffffff; } .frame { fill: none; stroke: #d9dde2; } .equal { stroke: #59616a; stroke-dasharray: 4 4; }
.good { fill: #1b7a49; } .bad { fill: #b83d10; } .open { fill: #806800; } .quiet { fill: #a1abb5; }
.bar { fill: #0a5ca8; fill-opacity: 0.75; } .error { stroke: #1a1d21; stroke-width: 1.5; }
.sign { font-size: 12px; fill: #ffffff; text-anchor: middle; }
"""


class Bar(NamedTuple):
    name: str
    value: float
    error: float
    text: str


class Bars(NamedTuple):
    """One column of a table, in per cent."""

    title: str
    bars: list[Bar]


def picture(graph: Graph, tables: list[FilledTable], claims: dict[str, list[JudgedClaim]]) -> str:
    titles = {study: story.title for study, story in graph.stories.items()}
    judged = {study: found for study, found in claims.items() if found}
    parts = [part for at, (study, found) in enumerate(judged.items()) for part in _marks(at, titles[study], found)]
    height = 2 * MARGIN + LINE * len(judged) + 20
    if graph.comparable and (found := scatter(tables, titles)):
        height = max(height, 2 * MARGIN + PLOT + 40 + 16 * len(found.studies))
        parts += _plot(found)
    elif not graph.comparable and (bars := _bars(graph, tables)):
        height = max(height, 2 * MARGIN + 24 + BAR * len(bars.bars))
        parts += _draw_bars(bars)
    parts.append(_text(MARGIN, height - 14, _legend(claims), "small"))
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    label = f"<title>Claims and numbers at scale {escape(graph.scale)}</title>"
    page = f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    return "\n".join([head, label, f"<style>{STYLE}</style>", page, *parts, "</svg>", ""])


def _legend(claims: dict[str, list[JudgedClaim]]) -> str:
    found = {claim.verdict for judged in claims.values() for claim in judged}
    return ", ".join(f"{SIGNS[verdict]} {words}" for verdict, words in VERDICTS.items() if verdict in found)


def _bars(graph: Graph, tables: list[FilledTable]) -> Bars | None:
    """The first percentage of the overview; None where no study has one."""
    overviews = {story.overview for story in graph.stories.values()}
    for table in [table for table in tables if table.id in overviews]:
        for column in [column for column in table.columns if PERCENT in column.name]:
            rows = [(row, row.cells[column.id]) for row in table.rows if row.selected and column.id in row.cells]
            bars = [
                Bar(_with_epochs(graph, row), cell.ours, cell.error or 0.0, value_of(cell, column.decimals))
                for row, cell in rows
                if cell.ours is not None
            ]
            if bars:
                return Bars(f"{column.name}, by method and epochs", bars)
    return None


def _with_epochs(graph: Graph, row: FilledRow) -> str:
    """Such as `MP3, 50 + 30`: models that were trained longer must not look better by their method alone."""
    epochs = epochs_of(graph, [name for names in row.runs.values() for name in names])
    return ", ".join(filter(None, [row.name, epochs.removesuffix(" epochs")]))


def _draw_bars(bars: Bars) -> Iterable[str]:
    """A bar for each model, and its standard error as a line."""
    yield _text(PLOT_LEFT, MARGIN + 13, bars.title)
    scale = BARS_WIDTH / (max(bar.value + bar.error for bar in bars.bars) or 1.0)
    for at, bar in enumerate(bars.bars):
        width, error = bar.value * scale, bar.error * scale
        top = MARGIN + 24 + BAR * at
        middle = top + BAR / 2 - 3
        yield _text(PLOT_LEFT, middle + 4, bar.name, "small")
        yield f'<rect x="{BARS_LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 6}" class="bar"/>'
        yield f'<path d="M{BARS_LEFT + width - error:.1f} {middle:g}h{2 * error:.1f}" class="error"/>'
        yield _text(BARS_LEFT + width + error + 6, middle + 4, bar.text, "small")


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
