"""Results that other code made than there is today: which ones, what to do, and which changes a user has accepted.

Code changes remake nothing by themselves. Whoever knows that a change affects no number says so once
(`verify --accept-code`); both digests are then kept with the date, and the results keep the digest that made them.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from pipeline.core.config import CONFIGS, Record, names, nearest, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.results.records import EvalResult, TrainRecord, read_intact, write_record
from pipeline.study.resolve.entries import Graph

CodeOf = Literal["method", "evaluation"]
NUM_SHOWN = 2  # at each start of Snakemake


class Code(NamedTuple):
    """The code that would make a result now."""

    kind: CodeOf
    name: str  # of the method or the evaluation
    today: str  # digest


class AcceptedCode(Record):
    """A change of code that affects no number, as a user said on this date."""

    kind: CodeOf
    name: str
    made_by: str  # digest of the code that made results
    today: str  # digest of the code at that date
    date: str


class AcceptedCodes(Record):
    accepted: list[AcceptedCode]


class OtherCode(NamedTuple):
    """Results of one method or evaluation that other code made."""

    kind: CodeOf
    name: str
    results: list[str]
    changes: list[tuple[str, str]]  # digest that made results, digest of today; each once
    files: list[str]  # configs of these results, without suffix
    scale: str

    def __str__(self) -> str:
        folder = {"method": "method", "evaluation": "eval"}[self.kind]
        results = ", ".join(self.results[:3]) + (f" and {len(self.results) - 3} more" if len(self.results) > 3 else "")
        files = self.files[0] if len(self.files) == 1 else f"{{{','.join(self.files)}}}"
        return (
            f"{self.kind} {self.name}: its code has changed since {results}. If the change affects numbers, raise "
            f"code_epoch in configs/{folder}/{files}.yaml and they are made again; if not, "
            f"`python -m pipeline verify --scale {self.scale} --accept-code {self.name}` records that"
        )


def made_by_other_code(graph: Graph) -> list[OtherCode]:
    """Finished runs and evaluations of this scale whose code is different today, without accepted changes."""
    known = {(each.kind, each.name, each.made_by, each.today) for each in accepted_code(graph)}
    found: dict[tuple[CodeOf, str], dict[str, tuple[str, str]]] = defaultdict(dict)  # -> result -> change
    for result, made_by, code in _finished(graph):
        if made_by != code.today and (code.kind, code.name, made_by, code.today) not in known:
            found[code.kind, code.name][result] = made_by, code.today
    return [_other_code(graph, kind, name, changes) for (kind, name), changes in sorted(found.items())]


def notices(graph: Graph) -> list[str]:
    """A line each; of many, which one edit of shared code makes, the first ones and how to see all."""
    lines = [str(each) for each in made_by_other_code(graph)]
    if len(lines) <= NUM_SHOWN:
        return lines
    command = f"python -m pipeline verify --scale {graph.scale}"
    rest = f"{len(lines) - NUM_SHOWN} more methods and evaluations have changed since their results"
    return [*lines[:NUM_SHOWN], f"{rest}: `{command}` names them, `{command} --accept-code` accepts all"]


def _other_code(graph: Graph, kind: CodeOf, name: str, changes: dict[str, tuple[str, str]]) -> OtherCode:
    files = _method_files(name) if kind == "method" else [graph.evals[result].file for result in changes]
    each_once = [*dict.fromkeys(changes.values())]
    return OtherCode(kind, name, [*changes], each_once, sorted({*files}), graph.scale)


def accept_code(graph: Graph, chosen: list[str]) -> list[OtherCode]:
    """Write down that what changed in these methods and evaluations (none named: in all) affects no number."""
    found = made_by_other_code(graph)
    for name in chosen:
        if name not in (known := [each.name for each in found]):
            near = nearest(name, known) if known else "no code has changed since the results were made"
            raise ConfigError(f"no results of {name!r} were made by other code; {near}")
    taken = [each for each in found if not chosen or each.name in chosen]
    date = datetime.now(UTC).date().isoformat()
    new = [
        AcceptedCode(kind=each.kind, name=each.name, made_by=made_by, today=today, date=date)
        for each in taken
        for made_by, today in each.changes
    ]
    if new:
        write_record(graph.results.accepted_code, AcceptedCodes(accepted=[*accepted_code(graph), *new]))
    return taken


def accepted_code(graph: Graph) -> list[AcceptedCode]:
    """Everything accepted so far; nothing where the record is missing or damaged, so that the user is asked again."""
    found = read_intact(graph.results.accepted_code, AcceptedCodes)
    return found.accepted if found else []


def accepted_on(graph: Graph, code: Code, made_by: str) -> str:
    """The date on which the change from `made_by` to this code was accepted; empty if it was not."""
    change = (code.kind, code.name, made_by, code.today)
    dates = [each.date for each in accepted_code(graph) if (each.kind, each.name, each.made_by, each.today) == change]
    return dates[-1] if dates else ""


def _finished(graph: Graph) -> Iterator[tuple[str, str, Code]]:
    """Result, digest of the code that made it, code of today. A result without a digest is older than those."""
    for name, run in graph.runs.items():
        record = read_intact(graph.results.run(name).done, TrainRecord)
        if record and (made_by := record.provenance.get("code")):
            yield name, made_by, Code("method", run.method, graph.code_of_run(name))
    for name, entry in graph.evals.items():
        result = read_intact(graph.results.evaluation(name).result, EvalResult)
        if result and (made_by := result.provenance.get("code")):
            yield name, made_by, Code("evaluation", entry.config["name"], graph.code_of_evaluation(name))


def _method_files(name: str) -> list[str]:
    """The files of configs/method that configure a method."""
    folder = CONFIGS / "method"
    return [file for file in names(folder) if read_yaml(folder / f"{file}.yaml").get("method", {}).get("name") == name]
