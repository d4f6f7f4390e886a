"""A picture of the architecture: the rooms of `pipeline` in their layers, from what their files import.

A line leads from a room to what it uses in a layer below; it is left out where other lines lead there. Lines pass
between the boxes of the layers that they cross, and those of a room stand out when the mouse is on it or the keyboard
reaches it. Imports for type checkers are left out.
"""

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import NamedTuple

from rooms import LAYERS, rooms

from pipeline.core.source import PACKAGE

Graph = dict[str, set[str]]
Place = tuple[str, int]  # a room, or where the line between two rooms passes a layer, and the layer
BOX_HEIGHT, CHANNEL, GAP, CHARACTER, MARGIN, TITLE = 34, 64, 14, 7.6, 14, 142
PASSAGE = 12  # width of the gap through which a line passes a layer
WIDTH = 1180
EVERYWHERE = "core"  # every room uses it: no lines lead there


class Box(NamedTuple):
    x: float  # of its middle
    y: float
    width: float


def picture() -> str:
    """An SVG that is as wide as its page."""
    graph = folders_in_use()
    drawn = essential(downwards(graph))
    ways = [way_of(start, end) for start, ends in sorted(drawn.items()) for end in sorted(ends)]
    places = placed(ways)
    height = MARGIN + len(LAYERS) * (BOX_HEIGHT + CHANNEL) - CHANNEL + MARGIN
    bands = "".join(map(_band, range(len(LAYERS)), LAYERS))
    lines = "".join(_line(way, places) for way in ways)
    boxes = "".join(_drawn(name, places[name, layer_of(name)], graph[name]) for name in rooms())
    return (
        f'<div class="imports-frame"><svg class="imports" viewBox="0 0 {WIDTH} {height}"'
        f' style="max-width: {WIDTH}px" role="img" aria-label="What imports what">'
        f"<style>{_styles()}</style>{bands}{lines}{boxes}</svg></div>"
    )


@cache
def folders_in_use() -> Graph:
    """Folder or file of the package -> those that it imports when it runs."""
    graph: Graph = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if not name.startswith("__"):
            found = {imported for imported in _imported(ast.parse(path.read_bytes())) if _exists(imported)}
            graph.setdefault(name, set()).update(found - {name})
    return graph


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE.name}."):
            yield str(node.module).split(".")[1]
        yield from _imported(node)


def _exists(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def layer_of(name: str) -> int:
    """Counted from the top."""
    return next(number for number, names in enumerate(LAYERS.values()) if name in names)


def upwards(graph: Graph) -> list[str]:
    """Imports of a room in a higher layer: there are none."""
    return [f"{name} imports {end}" for name in graph for end in graph[name] if layer_of(end) < layer_of(name)]


def downwards(graph: Graph) -> Graph:
    """Without what rooms of one layer use of each other, and what every room uses."""
    return {
        name: {end for end in ends - {EVERYWHERE} if layer_of(end) > layer_of(name)} for name, ends in graph.items()
    }


def essential(graph: Graph) -> Graph:
    """Without the lines between names that another way connects."""
    reached = {name: _reached(graph, name) for name in graph}

    def follows(name: str, end: str) -> bool:
        return any(end in reached[other] and name not in reached[other] for other in graph[name] - {end})

    return {name: {end for end in ends if not follows(name, end)} for name, ends in graph.items()}


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [*graph.get(start, ())]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def way_of(start: str, end: str) -> list[Place]:
    """From a room to one in a lower layer, with the places where the line passes the layers between."""
    first, last = layer_of(start), layer_of(end)
    return [(start, first), *((f"{start} {end}", layer) for layer in range(first + 1, last)), (end, last)]


def placed(ways: list[list[Place]]) -> dict[Place, Box]:
    """Every box and every passage; those of a layer are ordered by what they are connected with."""
    rows: list[list[Place]] = [[(name, layer) for name in names] for layer, names in enumerate(LAYERS.values())]
    for way in ways:
        for place in way[1:-1]:
            rows[place[1]].append(place)
    neighbours: dict[Place, list[Place]] = {}
    for way in ways:
        for above, below in itertools.pairwise(way):
            neighbours.setdefault(above, []).append(below)
            neighbours.setdefault(below, []).append(above)
    found: dict[Place, Box] = {}
    for row in rows:
        _spread(row, found)
    for turn in range(24):
        for row in rows if turn % 2 else rows[::-1]:
            row.sort(key=lambda place: _middle([found[each].x for each in neighbours.get(place, [place])]))
            _spread(row, found)
    return found


def _middle(values: list[float]) -> float:
    return sum(values) / len(values)


def _spread(row: list[Place], found: dict[Place, Box]) -> None:
    """Across the whole width, in the order of the row."""
    widths = [PASSAGE if " " in name else len(rooms()[name].label) * CHARACTER + 22 for name, _ in row]
    room = WIDTH - TITLE - MARGIN - sum(widths)
    gap = room / (len(row) + 1)
    left = TITLE + gap
    for (name, layer), width in zip(row, widths, strict=True):
        found[name, layer] = Box(left + width / 2, MARGIN + layer * (BOX_HEIGHT + CHANNEL), width)
        left += width + gap


def _line(way: list[Place], places: dict[Place, Box]) -> str:
    """Curved between layers, straight where it passes one."""
    start, end = way[0][0], way[-1][0]
    curve = f"M{places[way[0]].x:.0f} {places[way[0]].y + BOX_HEIGHT}"
    for above, below in itertools.pairwise(way):
        x1, x2, y1, y2 = places[above].x, places[below].x, places[above].y + BOX_HEIGHT, places[below].y
        bend = (y1 + y2) / 2
        curve += f" C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} {x2:.0f} {y2}"
        curve += f" V{y2 + BOX_HEIGHT}" if below != way[-1] else ""
    title = f"<title>{escape(start)} uses {escape(end)}</title>"
    return f'<path class="of-{start} of-{end}" d="{curve}">{title}</path>'


def _styles() -> str:
    """The lines of a room stand out, and the others fade, while it is looked at."""
    fade = "svg.imports:has(.room:is(:hover, :focus)) path { opacity: 0.12; }"
    lines = [
        f"svg.imports:has(#room-{name}:is(:hover, :focus)) .of-{name}"
        " { opacity: 1; stroke: var(--md-accent-fg-color); stroke-width: 2.5; }"
        for name in rooms()
    ]
    return fade + "".join(lines)


def _band(number: int, layer: str) -> str:
    y = MARGIN + number * (BOX_HEIGHT + CHANNEL)
    return (
        f'<rect class="band" x="0" y="{y - 10}" width="{WIDTH}" height="{BOX_HEIGHT + 20}" rx="8"/>'
        f'<text class="layer" x="{MARGIN}" y="{y + BOX_HEIGHT / 2 + 4:.0f}">{escape(layer)}</text>'
    )


def _drawn(name: str, box: Box, ends: set[str]) -> str:
    room = rooms()[name]
    kind = "folder" if room.is_folder else "files"
    title = escape(f"{room.label}: {room.about} It uses {', '.join(sorted(ends)) or 'no other folder'}.")
    return (
        f'<g class="room {kind}" id="room-{name}" tabindex="0"><title>{title}</title>'
        f'<rect x="{box.x - box.width / 2:.0f}" y="{box.y}" width="{box.width:.0f}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text x="{box.x:.0f}" y="{box.y + BOX_HEIGHT / 2 + 4:.0f}">{escape(room.label)}</text></g>'
    )
