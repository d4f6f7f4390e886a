"""The block of the project's README that shows published results: written from their folders, never typed."""

import re
from pathlib import Path

from pipeline.core.config import shown
from pipeline.core.errors import DataError
from pipeline.core.files import write_text
from pipeline.publishing.folder import published_scales, read_publication
from pipeline.publishing.front import section
from pipeline.results import published_folder

BEGIN, END = "<!-- published: begin -->", "<!-- published: end -->"
BLOCK = re.compile(rf"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
NOTHING_YET = "No results have been published yet. CONTRIBUTING has a section Publishing results.\n"
LARGEST_FIRST = ("paper", "tiny", "demo")


def readme() -> Path:
    return published_folder().parents[1] / "README.md"


def lock() -> str:
    """The versions that an installation of today gets."""
    path = readme().with_name("requirements.lock")
    return path.read_text() if path.exists() else ""


def block() -> str:
    """What stands between the marks: the largest scale, and links to the others.

    While results of the largest scale are missing, few of its claims are decided: the largest scale without gaps
    follows under a heading of its own, so that numbers and verdicts of two scales are never mixed.
    """
    places = {scale: place for place, scale in enumerate(LARGEST_FIRST)}
    scales = sorted(published_scales(), key=lambda scale: (places.get(scale, len(places)), scale))
    if not scales:
        return NOTHING_YET
    found = {scale: read_publication(scale) for scale in scales}
    whole = next((scale for scale in scales if not found[scale].is_partial), scales[0])
    first, *more = dict.fromkeys([scales[0], whole])
    lines = section(found[first], _folder(first), lock())
    for scale in more:
        lines += section(found[scale], _folder(scale), lock(), is_short=True)
    if links := [f"[scale {name}]({_folder(name)}/README.md)" for name in scales if name not in (first, *more)]:
        lines += [f"Also published: {', '.join(links)}.", ""]
    return "\n".join(lines)


def _folder(scale: str) -> str:
    return f"results/published/{scale}"


def block_of(text: str) -> str:
    """The block of a README as it is."""
    found = BLOCK.search(text)
    if not found:
        raise DataError(
            f"README.md has no lines {BEGIN} and {END}, between which published results are shown; add them"
        )
    return found[0]


def write_block() -> str:
    """Bring README up to date; say what was done."""
    path, new = readme(), block()
    text = path.read_text()
    if block_of(text) == new:
        return f"{shown(path)} shows them already"
    write_text(path, BLOCK.sub(lambda _: new, text))
    return f"{shown(path)} was brought up to date"
