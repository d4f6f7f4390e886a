"""The short forms of a study file, written out before it is validated: a pure function from mapping to mapping.

`like: KEY`, in an entry of recipes, evals, runs, tables, figures, columns or rows: start from the sibling entry KEY.
Maps are merged deep, everything else is replaced, `over` and `along` included.

`over:`, in a run, column or row: one entry for each value of an axis, or of a grid of axes. An axis is a map from the
key of a value to what it changes in the entry, with its `label`; a text alone is the label, and without one it is the
key: `over: {eta: {low: {label: "0.1", budget: 0.5}, high: "0.9"}}`. The `axes:` of a study have names, so that several
entries can share them: runs that they change write `over: [eta]`; entries that only go with those, such as finetuned
runs, columns and rows, write `along: [eta]`, which takes the keys, the labels and, for columns and rows, `x`.

Each * in the key of such an entry stands for an axis, the first for the first, those of `along` before those of `over`:
along eta, `tuned_*` becomes `tuned_low` and `tuned_high`. So it does in `init`, `run`, `eval`, `metric`, `metrics` and
`file`, where later axes may be left out. In `label` it stands for the label; without any, an entry has the labels of
its axes.

`column_sets:` of a study: columns by name of the set. A table's `columns` may be the name of a set, or a list of names
and of further columns. `notes:` of a study: texts by name; a table's `notes: [NAME]` go before its own `note`.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.config import nearest
from pipeline.core.errors import ConfigError
from pipeline.study.spec import Study

Place = tuple[str, ...]  # keys from the top of the file
SHORT_FORMS = Study.short_forms
REFERENCES = ("init", "run", "eval", "metric", "metrics", "file")
OF_RUNS, OF_CELLS = "runs", "cells"


@dataclass(frozen=True)
class Node:
    """A value of the file and where it is written; maps and lists hold nodes."""

    value: Any
    place: Place

    @property
    def map(self) -> "dict[str, Node]":
        return self.value if isinstance(self.value, dict) else {}

    def without(self, *keys: str) -> "Node":
        return Node({key: node for key, node in self.map.items() if key not in keys}, self.place)


@dataclass(frozen=True)
class Expanded:
    """A study without short forms, and where each of its values is written if not at the same place."""

    content: dict[str, Any]
    origins: dict[Place, Place]


def expand(raw: Mapping[str, Any]) -> Expanded:
    """Write out every short form; raises one ConfigError with all mistakes, each beginning with its key path."""
    study, expander = _wrap(dict(raw), ()), _Expander()
    expander.check_maps(study)
    expander.axes = study.map.get("axes", Node({}, ())).map
    sections = study.without(*SHORT_FORMS).map
    for key in ("recipes", "evals"):
        if key in sections:
            sections[key] = expander.likes(sections[key])
    if "runs" in sections:
        sections["runs"] = expander.entries(sections["runs"], OF_RUNS)
    for key in ("tables", "figures"):
        if key in sections:
            sections[key] = expander.tables(sections[key], study)
    if expander.problems:
        expander.problems[:0] = _unknown_sections(sections)  # a mistyped `axes:` is why an axis is missing
        raise ConfigError("\n".join(dict.fromkeys(expander.problems)))
    origins: dict[Place, Place] = {}
    return Expanded(_unwrap(Node(sections, ()), (), origins), origins)


def _unknown_sections(sections: Iterable[str]) -> list[str]:
    valid = [*Study.model_fields, *SHORT_FORMS]
    return [f"{key}: unknown key; {nearest(key, valid)}" for key in sections if key not in valid]


class _Expander:
    """Writes out sections of a study, and gathers what is wrong with them."""

    def __init__(self) -> None:
        self.axes: dict[str, Node] = {}
        self.problems: list[str] = []

    def check_maps(self, study: Node) -> None:
        """What is named in short forms is written as maps, also where nothing uses it yet."""
        for node in [study.map[key] for key in SHORT_FORMS if key in study.map]:
            if not isinstance(node.value, dict):
                self._problem(node.place, f"found {_plain(node)!r}; expected a map")
        for columns in study.map.get("column_sets", Node({}, ())).map.values():
            if not isinstance(columns.value, dict):
                self._problem(columns.place, f"found {_plain(columns)!r}; expected a map of columns")
        for axis in study.map.get("axes", Node({}, ())).map.values():
            self._values(axis)

    def tables(self, section: Node, study: Node) -> Node:
        sets, notes = (study.map.get(key, Node({}, ())).map for key in ("column_sets", "notes"))
        tables = self.likes(section)
        if not tables.map:
            return tables  # not a mapping; validation says so
        return Node({key: self._table(table, sets, notes) for key, table in tables.map.items()}, tables.place)

    def _table(self, table: Node, sets: dict[str, Node], notes: dict[str, Node]) -> Node:
        if not table.map:
            return table  # not a mapping; validation says so
        parts = table.without("notes").map
        if "columns" in parts:
            parts["columns"] = self.entries(self._columns(parts["columns"], sets), OF_CELLS)
        if "rows" in parts:
            parts["rows"] = self.entries(parts["rows"], OF_CELLS)
        if "notes" in table.map:
            parts["note"] = self._note(table.map["notes"], notes, parts.get("note"))
        return Node(parts, table.place)

    def _columns(self, columns: Node, sets: dict[str, Node]) -> Node:
        """One map of columns, from the names of sets and from maps."""
        found: dict[str, Node] = {}
        for part in columns.value if isinstance(columns.value, list) else [columns]:
            if isinstance(part.value, dict):
                found |= part.map
            elif isinstance(part.value, str) and part.value in sets:
                found |= sets[part.value].map
            else:
                self._problem(part.place, f"no column set {_plain(part)!r}; {nearest(str(part.value), sets)}")
        return Node(found, columns.place)

    def _note(self, named: Node, notes: dict[str, Node], own: Node | None) -> Node:
        texts = []
        for part in named.value if isinstance(named.value, list) else [named]:
            if isinstance(part.value, str) and part.value in notes:
                texts.append(str(notes[part.value].value))
            else:
                self._problem(part.place, f"no note {_plain(part)!r}; {nearest(str(part.value), notes)}")
        return Node(" ".join([*texts, *([str(own.value)] if own else [])]), named.place)

    def likes(self, section: Node) -> Node:
        """Every entry merged onto the one that it is like."""
        entries = {key: self._like(section, key, []) for key in section.map}
        return Node(entries, section.place) if entries else section

    def _like(self, section: Node, key: str, chain: list[str]) -> Node:
        entry = section.map[key]
        like = entry.map.get("like")
        if like is None:
            return entry
        if not isinstance(like.value, str):
            self._problem(like.place, f"found {_plain(like)!r}, expected the key of one sibling entry")
        elif like.value in (*chain, key):
            self._circle(section, [*chain, key], like.value)
        elif like.value not in section.map:
            self._problem(like.place, f"no sibling entry {like.value!r}; {nearest(str(like.value), section.map)}")
        else:
            return _merged(self._like(section, like.value, [*chain, key]), entry.without("like"))
        return entry.without("like")

    def _circle(self, section: Node, chain: list[str], again: str) -> None:
        """The same words, whichever of its entries it is found from."""
        circle = chain[chain.index(again) :]
        first = circle.index(min(circle))
        circle = [*circle[first:], *circle[: first + 1]]
        place = section.map[circle[0]].map["like"].place
        self._problem(place, f"entries refer to each other with `like`: {' -> '.join(circle)}; break the cycle")

    def entries(self, section: Node, kind: str) -> Node:
        """Entries with their likes and grids written out, in the order of the file."""
        found: dict[str, Node] = {}
        for key, entry in self.likes(section).map.items():
            for new_key, new in self._grid(key, entry, kind).items():
                if new_key in found:
                    place = found[new_key].place
                    self._problem(entry.place, f"defines {new_key!r}, as does {'.'.join(place)}; rename one of them")
                found[new_key] = new
        return Node(found, section.place) if section.map else section

    def _grid(self, key: str, entry: Node, kind: str) -> dict[str, Node]:
        """An entry, or those that its axes make."""
        axes, base = self._axes(entry, kind), entry.without("over", "along")
        if not axes:
            if not {"over", "along"} & entry.map.keys():
                self._check_no_stars(key, entry)
            return {key: base if entry.map else entry}  # what is not a map is left to validation
        self._check_stars(key, base, len(axes))
        found = {}
        for values in itertools.product(*axes):
            member = base
            for value in values:
                member = _merged(member, value.change)
            keys = [value.key for value in values]
            found[_fill(key, keys)] = Node(_filled(member, keys, [value.label for value in values]).value, entry.place)
        return found

    def _check_no_stars(self, key: str, entry: Node) -> None:
        places = [entry.place] if "*" in key else []
        places += [node.place for name, node in entry.map.items() if name in REFERENCES and _has_star(node)]
        for place in places:
            self._problem(place, "found *, which stands for the value of an axis; name the axis in `over` or `along`")

    def _check_stars(self, key: str, base: Node, axes: int) -> None:
        if key.count("*") != axes:
            self._problem(base.place, f"found {key.count('*')} * in the key for {axes} axes; write one for each")
        for name, node in base.map.items():
            stars = max((str(text.value).count("*") for text in _texts(node)), default=0)
            if name == "label" and stars != axes:
                self._problem(node.place, f"found {stars} * for {axes} axes; write one for each, or no label")
            elif name in REFERENCES and stars > axes:
                self._problem(node.place, f"found {stars} * for {axes} axes; write at most one for each")

    def _axes(self, entry: Node, kind: str) -> "list[list[_Value]]":
        """The values of each axis of an entry; what `along` changes is only for those that write `over`."""
        along, over = (entry.map.get(name) for name in ("along", "over"))
        axes = [[value.followed() for value in axis] for axis in self._named_axes(along)] if along else []
        if over and over.map:
            axes += [self._values(axis) for axis in over.map.values()]
        elif over and over.value and kind == OF_CELLS:
            self._problem(over.place, "columns and rows use the study's axes with `along`; `over` needs a map of axes")
        elif over:
            axes += self._named_axes(over)
        return [[value.of_kind(kind) for value in axis] for axis in axes if axis]

    def _named_axes(self, names: Node) -> "list[list[_Value]]":
        found = []
        for name in names.value if isinstance(names.value, list) else [names]:
            if not isinstance(name.value, str):
                self._problem(name.place, f"found {_plain(name)!r}, expected the name of an axis")
            elif name.value not in self.axes:
                self._problem(name.place, f"no axis {name.value!r}; {nearest(name.value, self.axes)}")
            else:
                found.append(self._values(self.axes[name.value]))
        return found

    def _values(self, axis: Node) -> "list[_Value]":
        found = []
        for key, change in axis.map.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                self._problem(change.place, f"found the key {key!r}, expected text; put it in quotes")
            label = change.map.get("label") if isinstance(change.value, dict) else change
            text = str(key) if label is None or label.value is None else str(label.value)
            found.append(_Value(str(key), text, change.without("label")))
        if not found:
            self._problem(axis.place, f"found {_plain(axis)!r}; expected a map of the axis's values")
        return found

    def _problem(self, place: Place, message: str) -> None:
        self.problems.append(f"{'.'.join(place)}: {message}")


@dataclass(frozen=True)
class _Value:
    """One value of an axis."""

    key: str
    label: str
    change: Node

    def followed(self) -> "_Value":
        kept = {key: node for key, node in self.change.map.items() if key == "x"}
        return _Value(self.key, self.label, Node(kept, self.change.place))

    def of_kind(self, kind: str) -> "_Value":
        return _Value(self.key, self.label, self.change.without("x")) if kind == OF_RUNS else self


def _fill(text: str, words: Iterable[str]) -> str:
    """Each * replaced by its word; an empty one leaves no gap."""
    for word in words:
        text = text.replace("*", word, 1)
    return text


def _filled(member: Node, keys: list[str], labels: list[str]) -> Node:
    parts = dict(member.map)
    for name in REFERENCES:
        if name in parts:
            parts[name] = _mapped(parts[name], keys)
    if "label" in parts:
        text = " ".join(_fill(str(parts["label"].value), labels).split())
        parts["label"] = Node(text, parts["label"].place)
    else:
        parts["label"] = Node(", ".join(filter(None, labels)), member.place)
    return Node(parts, member.place)


def _mapped(node: Node, keys: list[str]) -> Node:
    if isinstance(node.value, dict):
        return Node({key: _mapped(below, keys) for key, below in node.map.items()}, node.place)
    return Node(_fill(node.value, keys), node.place) if isinstance(node.value, str) else node


def _has_star(node: Node) -> bool:
    return any(isinstance(text.value, str) and "*" in text.value for text in _texts(node))


def _plain(node: Node) -> Any:
    """What was written, for an error."""
    return _unwrap(node, node.place, {})


def _texts(node: Node) -> list[Node]:
    return [text for below in node.map.values() for text in _texts(below)] if node.map else [node]


def _wrap(value: Any, place: Place) -> Node:
    if isinstance(value, dict):
        return Node({key: _wrap(below, (*place, str(key))) for key, below in value.items()}, place)
    if isinstance(value, list):
        return Node([_wrap(below, (*place, str(at))) for at, below in enumerate(value)], place)
    return Node(value, place)


def _unwrap(node: Node, at: Place, origins: dict[Place, Place]) -> Any:
    if node.place != at:
        origins[at] = node.place
    if isinstance(node.value, dict):
        return {key: _unwrap(below, (*at, str(key)), origins) for key, below in node.value.items()}
    if isinstance(node.value, list):
        return [_unwrap(below, (*at, str(index)), origins) for index, below in enumerate(node.value)]
    return node.value


def _merged(base: Node, change: Node) -> Node:
    """Maps deep, everything else replaced; what only one of them has keeps its place."""
    if not (isinstance(base.value, dict) and isinstance(change.value, dict)):
        return change
    both = {key: _merged(base.map[key], node) if key in base.map else node for key, node in change.map.items()}
    return Node({**base.map, **both}, change.place)
