"""A study file as its author wrote it: read, expanded, and with errors that name the lines that were written."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path

import yaml

from pipeline.core.config import UNKNOWN_KEY, Layers, SafeLoader, parse, parse_as_meant, read_yaml, shown
from pipeline.core.errors import ConfigError
from pipeline.study.expand import Expanded, Place, expand
from pipeline.study.spec import Study

LINE = re.compile(r" \(line \d+\)$")


@dataclass(frozen=True)
class StudyFile:
    path: Path
    expanded: Expanded
    unsaved: str = ""  # the text of a study that has no file yet

    def parse(self) -> Study:
        try:
            return parse(Study, Layers((shown(self.path), self.expanded.content)))
        except ConfigError as error:
            raise ConfigError(self.in_written_terms(str(error))) from None

    def parse_as_meant(self) -> tuple[Study | None, list[str]]:
        """The study and its problems, as far as it can be read."""
        study, lines = parse_as_meant(Study, Layers((shown(self.path), self.expanded.content)))
        return study, self.in_written_terms("\n".join(lines)).splitlines()

    def in_written_terms(self, text: str) -> str:
        """Lines of an error, each once, with the key and the line that were written, not what was made of them."""
        return "\n".join(dict.fromkeys(map(self._rename, text.splitlines())))

    def _rename(self, line: str) -> str:
        before, file, rest = line.partition(f"{shown(self.path)}: ")
        if before or not file or LINE.search(line):
            return line
        # `runs.a.set: optim.x: ...` may come from an axis that changes optim.x, and from elsewhere in `set` else.
        for text in (rest.replace(": ", ".", 1), rest):
            found = next((key for key in self._longest_first if text.startswith((f"{key}.", f"{key}:"))), "")
            if len(found) > rest.find(": ") or (found and text == rest):
                rest = ".".join(self._longest_first[found]) + text.removeprefix(found)
                break
        number = _line_number(self._node, rest)
        return f"{file}{rest}{f' (line {number})' if number else ''}"

    @cached_property
    def _node(self) -> yaml.Node | None:
        return yaml.compose(self.unsaved or self.path.read_text(encoding="utf-8"), Loader=SafeLoader)

    @cached_property
    def _longest_first(self) -> dict[str, Place]:
        """Key path as it is named in errors -> where it was written."""
        dotted = {".".join(key): place for key, place in self.expanded.origins.items()}
        return dict(sorted(dotted.items(), key=lambda item: -len(item[0])))


def read_study(path: Path) -> StudyFile:
    raw = read_yaml(path)
    try:
        return StudyFile(path, expand(raw))
    except ConfigError as error:
        lines = "\n".join(f"{shown(path)}: {line}" for line in str(error).splitlines())
        raise ConfigError(StudyFile(path, Expanded({}, {})).in_written_terms(lines)) from None


def unknown_keys_once(lines: list[str]) -> list[str]:
    """A key of `common` is unknown to each method that has no such key: the line with the nearest name is enough."""
    found: dict[str, str] = {}
    for line in lines:
        place, is_unknown, _ = line.partition(f": {UNKNOWN_KEY}; ")
        known = found.setdefault(place if is_unknown else line, line)
        if _likeness(line, place) > _likeness(known, place):
            found[place] = line
    return [*found.values()]


def _likeness(line: str, place: str) -> float:
    """How near the key at a place is to the name that a line suggests."""
    suggested = re.search("did you mean '([^']+)'", line)
    return SequenceMatcher(None, place.rpartition(".")[2], suggested[1]).ratio() if suggested else 0.0


def _line_number(node: yaml.Node | None, text: str) -> int:
    """The line of the key whose path a text begins with, as far as it leads; 0 where it leads nowhere."""
    if isinstance(node, yaml.MappingNode):
        below = {key.value: (key.start_mark.line + 1, value) for key, value in node.value}
    elif isinstance(node, yaml.SequenceNode):
        below = {str(at): (value.start_mark.line + 1, value) for at, value in enumerate(node.value)}
    else:
        return 0
    found = [key for key in below if text.startswith((f"{key}.", f"{key}:"))]
    if not found:
        return 0
    key = max(found, key=len)  # keys may have dots in them
    line, value = below[key]
    return _line_number(value, text[len(key) + 1 :].lstrip()) or line
