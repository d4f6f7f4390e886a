"""The part of a graph that is published: the headline's tables of numbers, their claims, runs and evaluations.

It is kept beside the numbers, so that tables and verdicts can be drawn again whatever the configs say later.
"""

from pathlib import Path
from typing import Any

from pipeline.report.words import counted
from pipeline.results import RESULT, ScaleFolder
from pipeline.study.resolve.entries import Graph, TableEntry

ROWS = "headline"


class PlacedGraph(Graph):
    """A graph whose results lie in a folder of their own."""

    place: Path

    @property
    def results(self) -> ScaleFolder:
        return ScaleFolder(self.place)


def place_results(graph: Graph, place: Path) -> PlacedGraph:
    return PlacedGraph(**dict(graph), place=place)


def published_part(graph: Graph) -> Graph:
    """The headline of a graph, with every run and evaluation that one of its rows names."""
    tables = {key: _part_of(graph, key) for key in graph.selected(ROWS) if _has_numbers(graph.tables[key])}
    rows = [row for table in tables.values() for row in table.rows.values()]
    sources = {source for row in rows for source in row.sources()}
    evals = {name: entry for name, entry in graph.evals.items() if f"evals/{name}/{RESULT}" in sources}
    subjects = {run for entry in evals.values() for run in entry.subjects.values()}
    runs = graph.with_inits([*(name for row in rows for name in row.run_names()), *subjects])
    studies = {table.study for table in tables.values()}
    # Claims also name tables without headline rows: their columns tell which cells have no number at this scale.
    named = {key for study in studies for claim in graph.claims.get(study, {}).values() for key in claim.tables()}
    others = {key: table.model_copy(update={"rows": {}}) for key, table in graph.tables.items() if key in named}
    changes: dict[str, Any] = {
        "tables": others | tables,
        "evals": evals,
        "runs": {name: run for name, run in graph.runs.items() if name in runs},
        "claims": {study: claims for study, claims in graph.claims.items() if study in studies},
        "stories": {study: story for study, story in graph.stories.items() if study in studies},
        "noise": {kind: values for kind, values in graph.noise.items() if any(each.run in runs for each in values)},
    }
    return graph.model_copy(update={**changes, "data": {}, "eval_jobs": {}, "overrides": {}})


def _has_numbers(table: TableEntry) -> bool:
    """Curves may have columns, such as a mean over the epochs; pictures have files in theirs."""
    return bool(table.columns) and (table.figure is None or table.figure.kind != "pictures")


def _part_of(graph: Graph, key: str) -> TableEntry:
    """The table with its headline rows, and the rows to which they show differences."""
    table = graph.tables[key]
    bases = {f"{key}.{column.against}" for column in table.columns.values() if column.against}
    rows = {name: row for name, row in table.rows.items() if row.headline or name in bases}
    return table.model_copy(update={"rows": rows})


def changes_between(published: Graph, now: Graph) -> str:
    """In words, what the configs ask otherwise than when a headline was published; more seeds are no change."""
    part = published_part(now)
    cells = _num_unequal(_requested_cells(published), _requested_cells(part))
    counts = {"cell": cells, "claim": _num_unequal(_stated_claims(published), _stated_claims(part))}
    return " and ".join(counted(count, kind) for kind, count in counts.items() if count)


def _requested_cells(graph: Graph) -> dict[str, Any]:
    """Cell -> the first of its results, and the metric."""
    rows = [row for key in graph.tables for row in graph.rows(key, ROWS).items()]
    return {f"{name}:{key}": (cell.sources[:1], cell.metric) for name, row in rows for key, cell in row.cells.items()}


def _stated_claims(graph: Graph) -> dict[str, Any]:
    return {name: (claim.statement, claim.holds) for found in graph.claims.values() for name, claim in found.items()}


def _num_unequal(one: dict[str, Any], other: dict[str, Any]) -> int:
    return sum(one.get(key) != other.get(key) for key in {*one, *other})


def sources_of(graph: Graph) -> list[str]:
    """Result files behind the cells of the headline, and those of every run that led to them."""
    rows = [row for key in graph.tables for row in graph.rows(key, ROWS).values()]
    found = dict.fromkeys(source for row in rows for source in row.sources())
    evaluations = [source.split("/")[1] for source in found if source.startswith("evals/")]
    subjects = [run for name in evaluations for run in graph.evals[name].subjects.values()]
    trained = [source.split("/")[1] for source in found if source.startswith("runs/")]
    runs = [name for name in graph.runs if name in graph.with_inits([*trained, *subjects])]
    return [*dict.fromkeys([*(f"runs/{name}/train.json" for name in runs if graph.runs[name].trained), *found])]
