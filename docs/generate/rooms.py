"""The rooms of `pipeline`, which are its folders and a few files beside them: in layers, with a sentence for each.

The sentence is the first one of the docstring of the folder's `__init__.py`, or of the file.
"""

import ast
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from pipeline.core.source import PACKAGE

# From what people type down to what everything rests on. A room uses rooms of its own layer and of those below.
LAYERS = {
    "Commands": ("commands", "cli"),
    "Before and after": (
        "audit",
        "doctor",
        "export",
        "frame",
        "method_checks",
        "plan",
        "publishing",
        "schema",
        "standalone",
        "sweep",
        "tracking",
    ),
    "Jobs and reports": ("freshness", "launch", "report"),
    "Studies": ("study",),
    "Measuring": ("evals", "privacy"),
    "Training": ("engine", "methods", "tasks"),
    "Data and models": ("data", "dense", "download", "models", "permutation", "results", "site"),
    "Foundations": ("core", "published_sets"),
}


class Room(NamedTuple):
    name: str  # of a folder below another one: data/readers
    path: Path  # of the folder, or of a file beside the folders
    about: str  # one sentence

    @property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @property
    def label(self) -> str:
        return f"{self.name}/" if self.is_folder else f"{self.name}.py"


@cache
def rooms() -> dict[str, Room]:
    """Those of the first level by name, in the order of their layers."""
    return {name: _room(name) for names in LAYERS.values() for name in names}


def rooms_within(room: Room) -> list[Room]:
    """Folders with code below a room, at any depth."""
    found = sorted(path.parent for path in room.path.rglob("__init__.py") if path.parent != room.path)
    return [_room(path.relative_to(PACKAGE).as_posix()) for path in found]


def _room(name: str) -> Room:
    folder = PACKAGE / name
    path = folder if folder.is_dir() else folder.with_suffix(".py")
    return Room(name, path, first_sentence(path / "__init__.py" if folder.is_dir() else path))


def first_sentence(file: Path) -> str:
    """What a file is for, in the words of its docstring."""
    text = ast.get_docstring(ast.parse(file.read_bytes())) or ""
    return re.split(r"(?<=\.)\s", " ".join(text.partition("\n\n")[0].split()))[0]


def list_of_rooms() -> str:
    """For each layer a heading and a table of its rooms, with the rooms inside of them; names are not broken."""
    known, text = rooms(), ""
    for layer, names in LAYERS.items():
        lines = "".join(
            _line(room, "") + "".join(_line(each, "inside") for each in rooms_within(room))
            for room in map(known.__getitem__, names)
        )
        text += f'### {layer}\n\n<div class="rooms"><table>{lines}</table></div>\n\n'
    return text


def _line(room: Room, kind: str) -> str:
    about = re.sub(r"`(.*?)`", r"<code>\1</code>", escape(room.about))
    return f'<tr><td class="{kind}"><code>{room.label}</code></td><td>{about}</td></tr>'


def short_table() -> str:
    """Markdown: the folders of `pipeline` on one page, as CONTRIBUTING has them."""
    lines = [f"| `{room.label}` | {room.about} |\n" for room in rooms().values() if room.is_folder]
    return "| folder | what it is for |\n|---|---|\n" + "".join(lines)
