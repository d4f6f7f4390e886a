"""The graph as plain data: every run, evaluation, table and claim of one scale, resolved, and how to look them up."""

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import Field

from pipeline.config import Record, nearest
from pipeline.errors import ConfigError
from pipeline.results import ScaleFolder, results_of
from pipeline.study.spec import TRAIN, Claim, Column

Entry = TypeVar("Entry")


class RunEntry(Record):
    """A run and what is known of it without torch; `config` is its RunConfig as JSON."""

    config: dict[str, Any]
    label: str
    studies: list[str] = Field(default_factory=list)
    data: str
    init: str | None = Field(description="name of the run it starts from; null also where it starts from a file")
    groups: dict[str, list[str]] = Field(default_factory=dict, description="group -> keys of its evaluations")

    @property
    def method(self) -> str:
        return self.config["method"]["name"]


class RowEntry(Record):
    """A row with the names of its runs by role, and the paper's numbers by column."""

    label: str
    why: str
    headline: bool
    runs: dict[str, str]
    expected: dict[str, float | None]

    def source(self, column: Column) -> tuple[str, str] | None:
        """The run and the key of the evaluation behind a cell; None where the row has no run for it."""
        return source(self.runs, column)


class TableEntry(Record):
    study: str
    study_title: str
    label: str
    title: str
    note: str
    columns: dict[str, Column]
    rows: dict[str, RowEntry]  # by full id, such as mjp.t4.a


class Graph(Record):
    """Everything that can run at one scale."""

    scale: str
    note: str
    comparable: bool
    runs: dict[str, RunEntry] = Field(default_factory=dict)  # by name
    evals: dict[str, dict[str, Any]] = Field(default_factory=dict)  # key -> config of the evaluation, as JSON
    tables: dict[str, TableEntry] = Field(default_factory=dict)  # by id, such as mjp.t4
    claims: dict[str, dict[str, Claim]] = Field(default_factory=dict)  # study -> claim id -> claim

    @property
    def results(self) -> ScaleFolder:
        return results_of(self.scale)

    def data_sets(self) -> list[str]:
        return sorted({run.data for run in self.runs.values()})

    def studies(self) -> list[str]:
        return sorted({table.study for table in self.tables.values()})

    def run(self, name: str) -> RunEntry:
        return self._find("runs", self.runs, name)

    def table(self, table_id: str) -> TableEntry:
        return self._find("tables", self.tables, table_id)

    def run_with_data(self, data: str) -> RunEntry:
        """Any run on this data set; all of them agree on it."""
        if data not in self.data_sets():
            raise ConfigError(f"no run at scale {self.scale} uses data {data!r}; {nearest(data, self.data_sets())}")
        return next(run for run in self.runs.values() if run.data == data)

    def rows(self, table_id: str, selection: str) -> dict[str, RowEntry]:
        """Rows of a table that a selection (`headline` or `all`) runs."""
        rows = self.table(table_id).rows
        return {key: row for key, row in rows.items() if selection == "all" or row.headline}

    def selected(self, selection: str, study: str = "") -> list[str]:
        """Tables (of one study) of which a selection runs at least one row."""
        ids = [key for key, table in self.tables.items() if study in ("", table.study)]
        return [key for key in ids if self.rows(key, selection)]

    def files(self, table_id: str, selection: str) -> list[str]:
        """The metrics files behind a table, below the results of the scale."""
        columns = [column for column in self.table(table_id).columns.values() if column.eval]
        sources = [row.source(column) for row in self.rows(table_id, selection).values() for column in columns]
        return sorted({f"runs/{run}/{self.metrics_file(key)}" for run, key in filter(None, sources)})

    def metrics_file(self, key: str) -> str:
        """The file of an evaluation, below the folder of a run."""
        return "train.json" if key == TRAIN else f"evals/{self.evals[key]['group']}.json"

    def evaluations(self, run: str, group: str) -> dict[str, dict[str, Any]]:
        """Configs of the evaluations of a run that one job computes, by key."""
        return {key: self.evals[key] for key in self.run(run).groups.get(group, [])}

    def partners(self, run: str, group: str) -> list[str]:
        """The runs that evaluations of this one are done together with."""
        configs = self.evaluations(run, group).values()
        return sorted({config["partner"] for config in configs if config.get("partner")})

    def with_inits(self, names: Iterable[str]) -> set[str]:
        """These runs, those they start from, and so on."""
        found: set[str] = set()
        for first in names:
            name: str | None = first
            while name and name not in found:
                found.add(name)
                name = self.runs[name].init
        return found

    def _find(self, kind: str, entries: dict[str, Entry], name: str) -> Entry:
        if name not in entries:
            raise ConfigError(f"{name!r} is not among the {kind} at scale {self.scale}; {nearest(name, entries)}")
        return entries[name]


def source(runs: dict[str, str], column: Column) -> tuple[str, str] | None:
    """The run, of a row's runs by role, and the key of the evaluation behind a cell."""
    run = runs.get("") or runs.get(column.run or "")
    if run is None or (column.partner and column.partner not in runs):
        return None
    key = column.eval or ""
    return run, f"{key}+{runs[column.partner]}" if column.partner else key
