"""Pages from the sections of README, GUIDE and CONTRIBUTING: each sentence is written once, there."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## (.+)$", re.M)
FENCED = re.compile(r"^```.*?^```", re.M | re.S)


class Section(NamedTuple):
    title: str
    text: str

    @property
    def slug(self) -> str:
        return slug(self.title)

    @property
    def page(self) -> str:
        return f"# {self.title}\n\n{self.text}\n"


def slug(title: str) -> str:
    """The name of the file of a section."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def sections(file: str) -> list[Section]:
    """The parts of a file below headings of the second level, in order."""
    text = (ROOT / file).read_text(encoding="utf-8")
    fenced = [match.span() for match in FENCED.finditer(text)]
    heads = [head for head in HEADING.finditer(text) if not any(start < head.start() < end for start, end in fenced)]
    ends = [*[head.start() for head in heads[1:]], len(text)]
    return [Section(head[1], readable(text[head.end() : end].strip())) for head, end in zip(heads, ends, strict=True)]


def section(file: str, title: str) -> Section:
    """One of them; a section that was renamed stops the build."""
    found = {each.title: each for each in sections(file)}
    if title not in found:
        raise KeyError(f"{file} has no section {title!r}; it has: {', '.join(found)}")
    return found[title]


def readable(text: str) -> str:
    """Python's Markdown needs an empty line before a list and before a fence."""
    lines: list[str] = []
    for line in text.splitlines():
        starts = line.startswith(("- ", "```"))
        if starts and lines and lines[-1] and not lines[-1].startswith(("- ", "  ", "```")) and not _in_fence(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _in_fence(lines: list[str]) -> bool:
    return sum(line.startswith("```") for line in lines) % 2 == 1
