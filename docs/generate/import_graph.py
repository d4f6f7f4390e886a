"""A picture of the architecture: the folders of `pipeline` in layers, from what their files import.

Imports for type checkers are left out. Files that lie beside the folders are one box in each layer. A line leads from a
box to what it uses; it is left out where another way leads there.
"""

import ast
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import NamedTuple

from pipeline.core.source import PACKAGE

Graph = dict[str, set[str]]
BOX_HEIGHT, LAYER, GAP, CHARACTER, MARGIN = 34, 92, 16, 7.6, 20
MOST_NAMES = 5  # of files in one line of a box


class Box(NamedTuple):
    name: str
    lines: list[str]
    is_folder: bool
    x: float
    y: float
    width: float

    @property
    def height(self) -> float:
        return BOX_HEIGHT + 16 * (len(self.lines) - 1)


def picture() -> str:
    """An SVG that is as wide as its page."""
    graph = folders_in_use()
    layers = layers_of(graph)
    groups = grouped(graph, layers)
    boxes = {box.name: box for box in _placed(groups, layers)}
    edges = [(start, end) for start, ends in essential(groups).items() for end in ends]
    width = max(box.x + box.width for box in boxes.values()) + MARGIN
    height = max(box.y + box.height for box in boxes.values()) + MARGIN
    lines = "".join(_line(boxes[start], boxes[end]) for start, end in sorted(edges))
    drawn = "".join(map(_drawn, boxes.values()))
    return (
        f'<svg class="imports" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {width:.0f}px" role="img"'
        f' aria-label="What imports what">{lines}{drawn}</svg>'
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


def layers_of(graph: Graph) -> dict[str, int]:
    """The layer of each name: above everything that it uses. Names that use each other share a layer."""
    layers, reached = dict.fromkeys(graph, 0), {name: _reached(graph, name) for name in graph}
    circles = {name: {other for other in reached[name] if name in reached[other]} for name in graph}
    for _ in graph:  # as often as there are layers at most
        for name, ends in graph.items():
            above = [layers[end] + 1 for end in ends - circles[name]]
            layers[name] = max([layers[name], *above, *(layers[other] for other in circles[name])])
    return layers


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [*graph.get(start, ())]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def grouped(graph: Graph, layers: dict[str, int]) -> Graph:
    """The graph with the single files of a layer as one box, whose name is that of its files."""
    groups = {name: name if (PACKAGE / name).is_dir() else f"layer {layers[name]}" for name in graph}
    found: Graph = {}
    for name, ends in graph.items():
        here = found.setdefault(groups[name], set())
        here |= {groups[end] for end in ends if layers[end] < layers[name] or (PACKAGE / end).is_dir()}
        here.discard(groups[name])
    return found


def essential(graph: Graph) -> Graph:
    """Without the lines between names that another way connects."""
    reached = {name: _reached(graph, name) for name in graph}

    def follows(name: str, end: str) -> bool:
        return any(end in reached[other] and name not in reached[other] for other in graph[name] - {end})

    return {name: {end for end in ends if not follows(name, end)} for name, ends in graph.items()}


def _placed(groups: Graph, layers: dict[str, int]) -> list[Box]:
    rows: dict[int, list[str]] = {}
    for group in groups:
        layer = int(group.split()[1]) if group.startswith("layer ") else layers[group]
        rows.setdefault(layer, []).append(group)
    texts = {group: _texts(group, layers) for group in groups}
    widths = {group: max(map(len, text)) * CHARACTER + 24 for group, text in texts.items()}
    whole = max(sum(widths[group] + GAP for group in row) for row in rows.values())
    boxes, top = [], float(MARGIN)
    for _, row in sorted(rows.items(), reverse=True):
        left = MARGIN + (whole - sum(widths[group] + GAP for group in row)) / 2
        for group in sorted(row, key=lambda name: name.startswith("layer ")):
            boxes.append(Box(group, texts[group], not group.startswith("layer "), left, top, widths[group]))
            left += widths[group] + GAP
        top += LAYER - BOX_HEIGHT + max(box.height for box in boxes[-len(row) :])
    return boxes


def _texts(group: str, layers: dict[str, int]) -> list[str]:
    if not group.startswith("layer "):
        return [f"{group}/"]
    files = [name for name, layer in layers.items() if f"layer {layer}" == group and not (PACKAGE / name).is_dir()]
    return [", ".join(files[at : at + MOST_NAMES]) for at in range(0, len(files), MOST_NAMES)]


def _line(start: Box, end: Box) -> str:
    x1, y1 = start.x + start.width / 2, start.y + start.height
    x2, y2 = end.x + end.width / 2, end.y
    bend = (y2 - y1) / 2
    title = f"<title>{escape(start.name)} imports {escape(end.name)}</title>"
    curve = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{curve}">{title}</path>'


def _drawn(box: Box) -> str:
    kind = "folder" if box.is_folder else "files"
    first = box.y + (BOX_HEIGHT + 9) / 2
    texts = "".join(
        f'<text x="{box.x + box.width / 2:.0f}" y="{first + 16 * number:.0f}">{escape(text)}</text>'
        for number, text in enumerate(box.lines)
    )
    size = f'width="{box.width:.0f}" height="{box.height:.0f}"'
    return f'<g class="{kind}"><rect x="{box.x:.0f}" y="{box.y:.0f}" {size} rx="6"/>{texts}</g>'
