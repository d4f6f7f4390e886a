"""What one check found, and what to do about it."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pipeline.freshness.remake import Freshness, open_freshness
from pipeline.plan.rough import RoughCosts, rough
from pipeline.plan.work import pending_work
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph

MARKS = {"ok": "\N{CHECK MARK}", "failed": "\N{BALLOT X}", "not applicable": "-"}


class Finding(NamedTuple):
    """One line, and a remedy where something is wrong."""

    state: str
    what: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{MARKS[self.state]} {self.what:<20} {self.text}"
        return f"{line}\n{'':>23}-> {self.remedy}" if self.remedy else line


def ok(what: str, text: str) -> Finding:
    return Finding("ok", what, text)


def failed(what: str, text: str, remedy: str) -> Finding:
    return Finding("failed", what, text, remedy)


def not_applicable(what: str, text: str) -> Finding:
    return Finding("not applicable", what, text)


@dataclass(frozen=True)
class Subject:
    """A scale on a site, and the file that describes the site."""

    graph: Graph
    site: Site
    site_file: str

    @cached_property
    def freshness(self) -> Freshness:
        return open_freshness(self.graph, self.site)

    @cached_property
    def needed(self) -> set[str]:
        """The files that the targets of this scale need; the graph may have runs that no table shows."""
        return {*self.freshness.needed_at_all()}

    @cached_property
    def rough(self) -> RoughCosts:
        """What is still to be trained takes about or at least this."""
        return rough(self.graph, pending_work(self.freshness, []).runs)
