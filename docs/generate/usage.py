"""Which studies use which value of a key, at the papers' own scale."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph

SCALE = "paper"
MOST_VALUES = 8


class Usage:
    """Values of keys in the runs and evaluations of a scale."""

    def __init__(self, scale: str = SCALE) -> None:
        self.graph: Graph = load_graph(scale)

    def of_run_key(self, path: str, chosen_by: str = "", name: str = "") -> str:
        """Values of a key such as optim.lr_curve; only of runs where another key, such as method.name, is `name`."""
        values: dict[str, set[str]] = {}
        for run in self.graph.runs.values():
            found = _at(run.config, path)
            if found is not _ABSENT and (not chosen_by or _at(run.config, chosen_by) == name):
                values.setdefault(shown(found), set()).update(run.studies)
        return _listed(values)

    def of_eval_key(self, name: str, path: str) -> str:
        """Values of a key of an evaluation, with the studies that show its numbers."""
        values: dict[str, set[str]] = {}
        for key, entry in self.graph.evals.items():
            found = _at(entry.config, path)
            if entry.config["name"] == name and found is not _ABSENT:
                values.setdefault(shown(found), set()).update(self._studies_by_eval.get(key, set()))
        return _listed(values)

    @cached_property
    def _studies_by_eval(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for table_id, source in self._sources():
            if source.startswith("evals/"):
                found.setdefault(source.split("/")[1], set()).add(table_id.split(".")[0])
        return found

    def _sources(self) -> Iterator[tuple[str, str]]:
        for table_id, table in self.graph.tables.items():
            for row in table.rows.values():
                for cell in row.cells.values():
                    yield from ((table_id, source) for source in cell.sources)


_ABSENT = object()


def _at(content: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(content, dict) or part not in content:
            return _ABSENT
        content = content[part]
    return content


def shown(value: Any) -> str:
    """A value as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(below)}" for key, below in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _listed(values: dict[str, set[str]]) -> str:
    """Values and the studies that have them, those of most studies first."""
    ordered = sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
    texts = [f"`{value}` ({', '.join(sorted(studies))})" for value, studies in ordered[:MOST_VALUES] if studies]
    rest = len(ordered) - MOST_VALUES
    return "; ".join(texts) + (f"; and {rest} more values" if rest > 0 else "")
