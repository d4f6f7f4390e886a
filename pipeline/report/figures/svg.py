"""Matplotlib drawings as SVG that takes its colours from the page around it: light, dark and print.

They are drawn in placeholder colours, each of which becomes a variable of `colours.css`. A file of its own brings
that sheet along. Same drawing, same bytes.
"""

import io
import re
from contextlib import AbstractContextManager

import matplotlib.style
from markupsafe import escape
from matplotlib.figure import Figure

from pipeline.report import TEMPLATES

INK, MUTED, GRID, BAND, ACCENT, PAGE = (f"#00000{digit}" for digit in range(1, 7))
SERIES = [f"#00001{digit}" for digit in range(1, 7)]
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    BAND: "--band",
    ACCENT: "--accent",
    PAGE: "--page",
    **{colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)},
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "patchwork",
    "text.parse_math": False,  # a label may hold a dollar
    "text.color": MUTED,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.solid_capstyle": "round",
}
COLOURS = TEMPLATES / "colours.css"


def style(**changes: object) -> AbstractContextManager[None]:
    """Inside it, figures are drawn as the page wants them; `changes` are further settings of matplotlib."""
    return matplotlib.style.context(["default", STYLE, changes])


def inline(drawing: Figure, prefix: str, label: str = "") -> str:
    """What an HTML page can hold: the bare element, the page's colours, and ids that no other drawing has.

    Without a label the drawing is hidden from a reader that cannot see: the page says the same in words.
    """
    target = io.StringIO()
    drawing.savefig(target, format="svg", transparent=True, metadata=dict.fromkeys(["Date", "Creator"]))
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :]
    # Its style sheet would apply to the whole page.
    svg = re.sub(r"<(style|metadata)\b.*?</\1>", "", svg, flags=re.DOTALL)
    # Text between tags is not touched: a label may read like anything.
    svg = re.sub(r"<[^>]*>", lambda tag: _for_page(tag[0], prefix), svg)
    svg = _smaller(svg)
    about = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    svg = re.sub(r"<svg [^>]*?(viewBox=\S+ [^\"]*\")[^>]*>", lambda tag: f"<svg {tag[1]} {about}>", svg, count=1)
    return re.sub(r"\n\s*", "\n", svg)


def _for_page(tag: str, prefix: str) -> str:
    """One tag with the page's colours and ids of its own."""
    tag = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}-", tag).replace("xlink:href", "href")
    return re.sub(r"#0000[01]\d", lambda colour: f"var({VARIABLES[colour[0]]})", tag)


def _smaller(svg: str) -> str:
    """Without what a page does not need: its own font is inherited, a hundredth of a unit is less than a pixel."""
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))

    def tag(found: re.Match[str]) -> str:
        text = re.sub(r" transform=\"rotate\(-?0 [^\"]*\"| font-family: [^;\"]*;?", "", found[0])
        text = re.sub(r"\d+\.\d\d+", _rounded, re.sub(r"\s+", " ", text))
        return re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in used else "", text)

    svg = re.sub(r"<[^>]*>", tag, svg)
    while (less := re.sub(r"<g>\s*</g>|<defs>\s*</defs>", "", svg)) != svg:
        svg = less
    return svg


def _rounded(digits: re.Match[str]) -> str:
    return f"{float(digits[0]):.2f}".rstrip("0").rstrip(".")


def standalone(svg: str) -> str:
    """An inline drawing as a file of its own, with the colours it needs and the page behind it."""
    sheet = f"{COLOURS.read_text()}text {{ font-family: system-ui, sans-serif !important; }}"
    start = svg.index(">") + 1
    opening = svg[:start].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    background = '<rect width="100%" height="100%" style="fill: var(--page)"/>'
    return f"{opening}\n<style>\n{sheet}\n</style>\n{background}{svg[start:]}"
