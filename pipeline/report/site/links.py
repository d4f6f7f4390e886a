"""Addresses inside a report: which page shows what, from the page that links to it.

A site has a first page beside a folder with all others. A report to send by mail is one page, where every address is
an anchor. Names of anchors are the same in both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from pipeline.report.records import Cell, EvaluationSummary, RunSummary

OTHERS = "evaluations"  # the page of evaluations that belong to no run of the report


@dataclass(frozen=True)
class Links:
    index: str  # address of the first page
    folder: str  # what stands before the names of all other pages
    hosts: Mapping[str, str]  # run or evaluation -> the page that shows it
    is_single: bool = False

    def on_first_page(self, name: str) -> "Links":
        """The same links, from the page that lies beside the folder `name`."""
        return replace(self, index="", folder=f"{quote(name)}/")

    def page(self, name: str, anchor: str = "") -> str:
        if self.is_single:
            return f"#{quote(anchor or name)}"
        return f"{self.folder}{quote(name)}.html" + (f"#{quote(anchor)}" if anchor else "")

    def overview(self) -> str:
        return "#overview" if self.is_single else self.index or "#overview"

    def study(self, name: str) -> str:
        return self.page(f"study-{name}")

    def table(self, table_id: str) -> str:
        return self.page(f"study-{table_id.split('.')[0]}", table_id)

    def claim(self, claim_id: str) -> str:
        return self.page(f"study-{claim_id.split('.')[0]}", f"claim-{claim_id}")

    def run(self, name: str) -> str:
        """Empty where the report does not have the run."""
        return self.page(self.hosts[name]) if name in self.hosts else ""

    def evaluation(self, name: str) -> str:
        return self.page(self.hosts[name], f"eval-{name}") if name in self.hosts else ""

    def cell(self, row: str, column: str, cell: Cell) -> str:
        """The line that says where a number comes from; empty where that is not known."""
        return self.page(host_of(cell, self.hosts), f"cell-{row}:{column}") if cell.provenance else ""

    def file(self, path: str) -> str:
        """Where the report shows what a file of the results holds; empty where it does not."""
        name = PurePath(path).parent.name
        return self.evaluation(name) if "evals" in PurePath(path).parts else self.run(name)


def host_of(cell: Cell, hosts: Mapping[str, str]) -> str:
    """The page of the run or evaluation that a number comes from."""
    return hosts.get(source_of(cell), OTHERS)


def source_of(cell: Cell) -> str:
    """The run or the evaluation that a number was read from; of several seeds the first. Empty where none is known."""
    files = (cell.provenance or {}).get("file", "")
    return PurePath(files.split(", ")[0]).parent.name


def hosts_of(runs: list[RunSummary], evaluations: Any) -> dict[str, str]:
    """Run or evaluation -> page: an evaluation is on the page of the first of its runs that has one."""
    hosts = {run.name: f"run-{run.name}" for run in runs}
    each: EvaluationSummary
    for each in evaluations:
        hosts[each.name] = next((hosts[run] for run in each.subjects.values() if run in hosts), OTHERS)
    return hosts
