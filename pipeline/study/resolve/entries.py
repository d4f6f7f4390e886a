"""The graph as plain data: what there is at one scale, resolved, and how to look it up."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeVar

from pydantic import Field

from pipeline.core.code import PluginNames, code_of_evaluation, code_of_run
from pipeline.core.config import Record, nearest
from pipeline.core.errors import ConfigError
from pipeline.evals.needs import Needs
from pipeline.results import ScaleFolder, results_of
from pipeline.study.claims.decide import ResolvedClaim
from pipeline.study.overrides import Override
from pipeline.study.spec import Column, Drawing, SeedValues

Entry = TypeVar("Entry")


class RunEntry(Record):
    """A run and what is known of it without torch; `config` is its RunConfig as JSON."""

    config: dict[str, Any]
    label: str
    studies: list[str] = Field(default_factory=list)
    data: str
    task: str = Field("", description="its name in the registry of tasks")
    init: str | None = Field(description="name of the run it starts from; null also where it starts from a file")
    trained: bool = Field(True, description="false: a weight file, which is evaluated as it is")

    @property
    def method(self) -> str:
        return self.config["method"]["name"]

    @property
    def named(self) -> PluginNames:
        """What its config names, and so which code trains it."""
        return PluginNames(self.method, self.task, self.config["data"].get("kind", "images"))


class EvalEntry(Record):
    """An evaluation of certain subjects on certain data with a certain config; its name is that of its result."""

    fragment: str  # the name that columns give it: a file of configs/eval, or an entry of the study's `evals`
    file: str  # the file of configs/eval from which its keys come
    config: dict[str, Any]
    subjects: dict[str, str]  # role -> run
    data: dict[str, dict[str, Any]]  # role -> config of a data set, beside those of the subjects
    site_files: list[str] = Field(default_factory=list, description="keys of the site that name files it reads")
    job: str


class EvalJob(Record):
    """Evaluations that share a process. That is scheduling: each writes its own result."""

    evaluations: list[str] = Field(default_factory=list)
    runs: list[str]
    data: list[str]  # every data set whose manifest it reads
    needs: Needs = Needs(gpu=False, hours=0.1)


class CellEntry(Record):
    """Where a cell's number, or its picture, comes from: result files below the scale's folder, one per seed."""

    sources: list[str] = Field(default_factory=list)
    metric: str = ""
    file: str = ""
    why: str = Field("", description="the reason why there is no source")


class RowEntry(Record):
    """A row with the names of its runs by role, one per seed, its cells, and the paper's numbers by column."""

    label: str
    headline: bool
    runs: dict[str, list[str]]
    cells: dict[str, CellEntry]
    expected: dict[str, float | None]
    x: float | None = None
    outside_headline: list[str] = Field(default_factory=list, description="columns that the headline leaves out")

    def in_headline(self) -> "RowEntry":
        """This row with the cells of the headline alone."""
        cells = {key: cell for key, cell in self.cells.items() if key not in self.outside_headline}
        return self.model_copy(update={"cells": cells})

    def run_names(self) -> list[str]:
        return [name for names in self.runs.values() for name in names]

    def sources(self) -> list[str]:
        """Result files behind its cells."""
        return [source for cell in self.cells.values() for source in cell.sources]


class TableEntry(Record):
    """A table, or a figure: a figure is drawn from cells, too, and has a `figure` that says how."""

    study: str
    study_title: str
    label: str
    title: str
    note: str
    terms: dict[str, str] = Field(default_factory=dict, description="words of its labels -> what they mean")
    columns: dict[str, Column]
    rows: dict[str, RowEntry]  # by full id, such as mjp.t4.a
    figure: Drawing | None = None


class StudyEntry(Record):
    """What a study says about itself, for the report."""

    title: str
    about: str = ""
    main_claim: str = Field("", description="id of a claim, such as mjp.c03")
    overview: str = Field("", description="id of the table that README shows, such as crossing.t1")


class Graph(Record):
    """Everything that can run at one scale."""

    scale: str
    note: str
    comparable: bool
    data: dict[str, dict[str, Any]] = Field(default_factory=dict)  # name -> config of the data set, as JSON
    runs: dict[str, RunEntry] = Field(default_factory=dict)  # by name
    evals: dict[str, EvalEntry] = Field(default_factory=dict)  # by name, such as classify-3fa9c1d2
    eval_jobs: dict[str, EvalJob] = Field(default_factory=dict)
    tables: dict[str, TableEntry] = Field(default_factory=dict)  # by id, such as mjp.t4 and mjp.f3
    claims: dict[str, dict[str, ResolvedClaim]] = Field(default_factory=dict)  # study -> claim id -> claim
    stories: dict[str, StudyEntry] = Field(default_factory=dict)  # by study
    stand_ins: dict[str, str] = Field(default_factory=dict)  # names of the papers -> what runs in their place
    noise: dict[str, list[SeedValues]] = Field(default_factory=dict)  # what seeds were seen to do, by metric
    overrides: dict[str, list[Override]] = Field(default_factory=dict)  # study -> its values that the scale replaces

    @property
    def results(self) -> ScaleFolder:
        return results_of(self.scale)

    def studies(self, selection: str = "all") -> list[str]:
        """Studies of which a selection runs anything."""
        return sorted({self.tables[key].study for key in self.selected(selection)})

    @cached_property
    def trained_on(self) -> set[str]:
        """Data sets of runs."""
        return {run.data for run in self.runs.values()}

    @cached_property
    def starts(self) -> set[str | None]:
        """Runs that others start from."""
        return {run.init for run in self.runs.values()}

    def trained_runs(self) -> list[str]:
        return [name for name, run in self.runs.items() if run.trained]

    def run(self, name: str) -> RunEntry:
        return self._find("runs", self.runs, name)

    def code_of_run(self, name: str) -> str:
        """A digest of the code that would train a run now."""
        return code_of_run(self.run(name).named)

    def code_of_evaluation(self, name: str) -> str:
        """A digest of the code that would compute an evaluation now."""
        entry = self.evals[name]
        subjects = [self.run(run).named for run in entry.subjects.values()]
        kinds = [data.get("kind", "images") for data in entry.data.values()]
        return code_of_evaluation(entry.config["name"], subjects, kinds)

    def table(self, table_id: str) -> TableEntry:
        return self._find("tables", self.tables, table_id)

    def eval_job(self, name: str) -> EvalJob:
        return self._find("evaluation jobs", self.eval_jobs, name)

    def data_set(self, name: str) -> dict[str, Any]:
        return self._find("data sets", self.data, name)

    def rows(self, table_id: str, selection: str) -> dict[str, RowEntry]:
        """Rows of a table that a selection (`headline` or `all`) runs."""
        rows = self.table(table_id).rows
        if selection == "all":
            return rows
        return {key: row.in_headline() for key, row in rows.items() if row.headline}

    def selected(self, selection: str, study: str = "") -> list[str]:
        """Tables (of one study) of which a selection runs at least one row."""
        ids = [key for key, table in self.tables.items() if study in ("", table.study)]
        return [key for key in ids if any(selection == "all" or row.headline for row in self.tables[key].rows.values())]

    def judged_on(self, study: str, selection: str) -> list[str]:
        """Tables that the claims of a study are judged on: its own, and those of other studies that they name."""
        named = {table for claim in self.claims.get(study, {}).values() for table in claim.tables()}
        return [key for key in self.selected(selection) if self.tables[key].study == study or key in named]

    def files(self, table_id: str, selection: str) -> list[str]:
        """What a table waits for, below the scale's results: train.json of runs, and the files of evaluation jobs."""
        sources = {source for row in self.rows(table_id, selection).values() for source in row.sources()}
        return sorted({self.written_by(source) for source in sources})

    def written_by(self, source: str) -> str:
        """The output of the rule behind a result file: itself, or the file of the job that wrote it."""
        kind, name, _ = source.split("/")
        return f"evals/{self.evals[name].job}.json" if kind == "evals" else source

    def run_behind(self, source: str) -> str | None:
        """The run that a result file is of; of an evaluation of several, the first."""
        kind, name, _ = source.split("/")
        return next(iter(self.evals[name].subjects.values()), None) if kind == "evals" else name

    def data_behind(self, evaluation: str) -> list[str]:
        """The data sets that an evaluation is computed on: its own, and those of its subjects."""
        entry = self.evals[evaluation]
        own = [config["name"] for config in entry.data.values()]
        return [*dict.fromkeys([*own, *(self.runs[run].data for run in entry.subjects.values())])]

    def evaluations_of(self, run: str) -> list[str]:
        return [name for name, entry in self.evals.items() if run in entry.subjects.values()]

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
            lists = {"runs": f"check --scale {self.scale}", "evaluation jobs": f"status --scale {self.scale}"}
            hint = nearest(name, entries, f"python -m pipeline {lists.get(kind, 'check --names')}")
            raise ConfigError(f"{name!r} is not among the {kind} at scale {self.scale}; {hint}")
        return entries[name]
