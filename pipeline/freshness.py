"""What must be remade, and why: one answer for Snakemake, `verify`, `status`, `plan`, `clean` and the report.

A file is fresh if it is there, undamaged, and was made from what there is now: its record says so. It is stale, too, if
anything that it is made from is. No file times and no notes of Snakemake are asked, so that results may be copied,
pulled and moved, and nothing that a user may delete is needed to know what is current.

Files are the outputs of the rules, named as below results/<scale>:
  data/<data>/manifest.json, runs/<run>/train.json, evals/<job>.json, tables|figures/<rows>/<table>.json,
  tables/<rows>/<study>.claims.json, report/<rows>.html
"""

import re
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.config import FILE, Record, shown
from pipeline.data.kind import kind_of, made_from, made_with
from pipeline.data.manifest import MANIFEST, Manifest, read_manifest
from pipeline.data.opening import compare_folder
from pipeline.data.prepare import counts_of
from pipeline.errors import DataError
from pipeline.files import Digests, stat_stamp
from pipeline.records import EvalJobRecord, EvalResult, Kind, TrainRecord, read_record, short_digest, write_record
from pipeline.results import ScaleFolder, drawn_in
from pipeline.site import Site, named_folder, site_file, weights_path
from pipeline.source import PACKAGE, digest_behind
from pipeline.study.entries import Graph
from pipeline.study.fingerprints import claims_fingerprint, report_fingerprint, table_fingerprint
from pipeline.study.planned import data_of
from pipeline.study.targets import target_name

ROWS = ("headline", "all")
MOST_FILES = 200  # of a data folder whose state is remembered by the times of its files


class Made(Record):
    """What a drawing was made from and which files it consists of: SHA-256 by name below results/<scale>."""

    spec: str = Field(description="fingerprint of what the configs say of it, and of the code that draws")
    inputs: dict[str, str]
    files: dict[str, str]


def data_file(name: str) -> str:
    return f"data/{name}/{MANIFEST}"


def run_file(name: str) -> str:
    return f"runs/{name}/train.json"


def job_file(name: str) -> str:
    return f"evals/{name}.json"


def table_file(table: str, rows: str) -> str:
    return f"{drawn_in(table)}/{rows}/{table}.json"


def claims_file(study: str, rows: str) -> str:
    return f"tables/{rows}/{study}.claims.json"


def report_file(rows: str) -> str:
    return f"report/{rows}.html"


KINDS_OF_FILES = re.compile(
    r"data/[^/]+/manifest\.json|runs/[^/]+/train\.json|evals/[^/]+\.json|report/(headline|all)\.html"
    r"|tables/(headline|all)/[^/]+\.json|figures/(headline|all)/[^/]+\.json"
)


def is_output(file: str) -> bool:
    """Whether some rule makes a file of this name."""
    return KINDS_OF_FILES.fullmatch(file) is not None and not file.endswith(".made.json")


def files_of_targets(graph: Graph) -> dict[str, list[str]]:
    """What people type -> the files behind it."""
    found = {"all": [report_file("all")]}
    if graph.scale == "demo":
        found["demo"] = [report_file("headline")]
    for table in graph.tables:
        found[target_name(table)] = [table_file(table, "all")]
    for study in graph.studies():
        tables = [table_file(table, "all") for table in graph.tables if graph.tables[table].study == study]
        found[study] = [*tables, claims_file(study, "all")]
    return found


@dataclass
class Freshness:
    """Why files of one scale must be remade on this site. Each is looked at once."""

    graph: Graph
    site: Site
    digests: Digests = field(default_factory=Digests)
    reasons: dict[str, str] = field(default_factory=dict)
    own_reasons: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, list[str]] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)

    @property
    def results(self) -> ScaleFolder:
        return self.graph.results

    def why(self, file: str) -> str:
        """Why a file must be made, or made again; empty if it is as it should be."""
        if file not in self.reasons:
            for each in self.needed_for([file], known=self.reasons):
                self.reasons[each] = self.own_reason(each) or self._inherited_reason(each)
        return self.reasons[file]

    def own_reason(self, file: str) -> str:
        """What is wrong with the file itself, whatever becomes of its inputs."""
        if file not in self.own_reasons:
            self.own_reasons[file] = self._own_reason(file)
        return self.own_reasons[file]

    def _own_reason(self, file: str) -> str:
        kind, name, *_ = file.split("/")
        if not self.exists(file):
            return "deleted" if self.was_made(file) else "not found"
        try:
            if kind == "data":
                return self._data_reason(name)
            if kind == "runs":
                return self._run_reason(name)
            if kind == "evals":
                return self._job_reason(name.removesuffix(".json"))
            return self._drawing_reason(file)
        except DataError as error:
            return str(error)

    def _inherited_reason(self, file: str) -> str:
        stale = next((each for each in self.inputs_of(file) if self.reasons[each]), None)
        return f"{shown(self.results.folder / stale)} is made again" if stale else ""

    def needed_for(self, files: Iterable[str], known: Container[str] = ()) -> list[str]:
        """These files and all that they are made from, inputs first, without what is known already.

        No recursion: runs may start from each other in a long chain.
        """
        found: dict[str, None] = {}
        waiting = [*files][::-1]
        while waiting:
            file = waiting[-1]
            before = [] if file in found else [each for each in self.inputs_of(file) if each not in found]
            before = [each for each in before if each not in known]
            if before:
                waiting += before[::-1]
            else:
                found[file] = None
                waiting.pop()
        return [*found]

    def needed_at_all(self) -> list[str]:
        """Everything that any target of this scale needs, inputs first; the graph may have runs that no table shows."""
        return self.needed_for(map(report_file, ROWS))

    def stale(self, files: Iterable[str]) -> dict[str, str]:
        """File -> why it must be made, of everything that these files need."""
        return {file: why for file in self.needed_for(files) if (why := self.why(file))}

    def problems(self, files: Iterable[str]) -> dict[str, str]:
        """File -> what is wrong with it, of those that were made and of what they were made from."""
        needed = self.needed_for(files)
        made = [file for file in needed if self.was_made(file)]
        expected = {*made, *(each for file in made for each in self.inputs_of(file))}
        return {file: why for file in needed if file in expected and (why := self.own_reason(file))}

    def exists(self, file: str) -> bool:
        return (self.results.folder / file).exists()

    def was_made(self, file: str) -> bool:
        """Whether a file is there, or is a drawing that was there: its record stays."""
        return self.exists(file) or self.exists(made_file(file))

    # What files are made from

    def inputs_of(self, file: str) -> list[str]:
        """The other files of this scale that a file is made from."""
        if file not in self.inputs:
            self.inputs[file] = self._inputs_of(file)
        return self.inputs[file]

    def _inputs_of(self, file: str) -> list[str]:
        kind, name, *rest = file.split("/")
        if kind == "data":
            return self._data_inputs(name)
        if kind == "runs":
            run = self.graph.run(name)
            return [data_file(run.data), *([run_file(run.init)] if run.init else [])]
        if kind == "evals":
            job = self.graph.eval_job(name.removesuffix(".json"))
            trained = [run_file(run) for run in job.runs if self.graph.runs[run].trained]
            return [*trained, *map(data_file, job.data)]
        if kind == "report":
            rows = name.removesuffix(".html")
            tables = [table_file(table, rows) for table in self.graph.selected(rows)]
            return [*tables, *(claims_file(study, rows) for study in self.graph.studies())]
        if rest[0].endswith(".claims.json"):
            study = rest[0].removesuffix(".claims.json")
            return [table_file(table, name) for table in self.graph.judged_on(study, name)]
        return self.graph.files(rest[0].removesuffix(".json"), name)

    def _data_inputs(self, name: str) -> list[str]:
        """The set that this one is made from and the run that chooses its samples; none if the site has the set."""
        data = data_of(self.graph, name)
        source, run, folder = made_from(data), made_with(data), named_folder(self.site, data)
        if not source or (folder and kind_of(data).is_there(folder)):
            return []
        return [data_file(source), *([run_file(run)] if run else [])]

    def weight_files(self, file: str) -> list[Path]:
        """Weights that are not made here: what a run starts from, what a job evaluates as it is."""
        kind, name, *_ = file.split("/")
        if kind == "runs":
            init = self.graph.run(name).config["init"] or ""
            return [weights_path(self.site, init)] if init.startswith(FILE) else []
        if kind != "evals":
            return []
        runs = [self.graph.runs[run] for run in self.graph.eval_job(name.removesuffix(".json")).runs]
        return [weights_path(self.site, run.config["init"]) for run in runs if not run.trained]

    def files_elsewhere(self, file: str) -> list[Path]:
        """Everything that is not made here: weights, and the files that a job reads where the site names them."""
        kind, name, *_ = file.split("/")
        jobs = [self.graph.eval_job(name.removesuffix(".json"))] if kind == "evals" else []
        names = [each for job in jobs for each in job.evaluations]
        keys = dict.fromkeys(key for each in names for key in self.graph.evals[each].site_files)
        named = [site_file(self.site, key) for key in keys]
        return [*self.weight_files(file), *(path for path in named if path)]

    # Data

    def manifest(self, name: str) -> Manifest:
        if name not in self.manifests:
            self.manifests[name] = read_manifest(self.results.manifest(name))
        return self.manifests[name]

    def _data_reason(self, name: str) -> str:
        manifest, data = self.manifest(name), data_of(self.graph, name)
        if manifest.counted not in (None, counts_of(data)):
            return f"prepared as {_difference(manifest.counted or {}, counts_of(data))}"
        kind = kind_of(data)
        for split, found in manifest.splits.items():
            if not kind.is_count(split, found.count):
                return f"prepared with {found.count} {split} {kind.unit}, expected {kind.expected()}"
        for source, known in (manifest.made_of or {}).items():
            if (now := self._source(source)) and now != known:
                return f"made with {source} {short_digest(known)}, which is {short_digest(now)} now"
        return self._folder_reason(name)

    def _source(self, name: str) -> str | None:
        """What a set is made with, as it is now: the samples of another one, the weights of a run, or code."""
        if name.endswith(".py"):
            return digest_behind(PACKAGE / name)
        with suppress(DataError):
            if name not in self.graph.data and not name.endswith("/train"):
                return self.weights_of(name)
            splits = self.manifest(name.removesuffix("/train")).splits
            return splits["train" if name.endswith("/train") else "val"].fingerprint
        return None

    def _folder_reason(self, name: str) -> str:
        """Whether the folder that the site names holds the samples that were verified.

        Finished results need no data: a machine without the folder has nothing to prepare.
        """
        data, index = data_of(self.graph, name), self.results.manifest(name).parent
        folder = named_folder(self.site, data)
        if folder is None or not folder.is_dir():
            # The lock of `prepare` stays where a set was made; results that were pulled have none.
            was_made = self.manifest(name).made_of and self.results.data_lock(name).exists()
            return f"{shown(folder)} not found" if folder and was_made else ""
        key, state = f"data {name}", _state_of(folder, index)
        if state and self.digests.kept.get(key) == state:
            return ""
        try:
            (known,) = self.digests.kept.get(f"files of {key}", [""])
            files = compare_folder(data, folder, index, known)
        except DataError as error:
            return f"{shown(folder)} does not hold what was verified: {_first_problem(str(error))}"
        if files != known:
            self.digests.keep_state(f"files of {key}", [files])
        if state:
            self.digests.keep_state(key, state)
        return ""

    # Runs

    def _run_reason(self, name: str) -> str:
        record, folder = self._record(run_file(name), TrainRecord), self.results.run(name)
        if reason := self._changed_files(folder.folder, record.files):
            return reason
        run = self.graph.runs[name]
        with suppress(DataError):  # stale by itself, and the run with it
            now = self.manifest(run.data).fingerprint
            if record.inputs.data != now:
                return f"trained on data {short_digest(record.inputs.data)}; {run.data} is {short_digest(now)} now"
        init = run.config["init"]
        found = self._init(init) if init else None
        if found and record.inputs.init != found:
            return f"started from weights {short_digest(record.inputs.init)}; {init} has {short_digest(found)} now"
        return ""

    def _init(self, init: str) -> str | None:
        """What a run would start from now; None where that is not on this machine: a finished run does not need it."""
        if init.startswith(FILE):
            return self.digests.of(weights_path(self.site, init))
        with suppress(DataError):
            return self.weights_of(init)
        return None

    def weights_of(self, run: str) -> str | None:
        """SHA-256 of the encoder of a run, or of the file that is evaluated as it is."""
        if not self.graph.runs[run].trained:
            return self.digests.of(weights_path(self.site, self.graph.runs[run].config["init"]))
        return self._record(run_file(run), TrainRecord).files[self.results.run(run).encoder.name]

    # Evaluations

    def _job_reason(self, job: str) -> str:
        recorded, wanted = self._record(job_file(job), EvalJobRecord), self.graph.eval_job(job).evaluations
        for name in wanted:
            if name not in recorded.results:
                return f"{name} is not among its results"
            if reason := self._evaluation_reason(name, recorded.results[name]):
                return reason
        return ""

    def _evaluation_reason(self, name: str, recorded: str) -> str:
        folder = self.results.evaluation(name)
        if self.digests.of(folder.result) != recorded:
            return self._changed(folder.result, recorded)
        result = read_record(folder.result, EvalResult)
        if reason := self._changed_files(folder.folder, result.files):
            return reason
        for role, used in result.inputs.weights.items():
            run = result.subjects[role]
            with suppress(DataError):
                found = self.weights_of(run)
                if found and found != used:
                    return f"{name} was computed with weights {short_digest(used)}; {run} has {short_digest(found)} now"
        for data, used in result.inputs.data.items():
            with suppress(DataError):
                now = self.manifest(data).fingerprint
                if now != used:
                    return f"{name} was computed on data {short_digest(used)}; {data} is {short_digest(now)} now"
        for key in self.graph.evals[name].site_files:
            path, known = site_file(self.site, key), result.inputs.site_files.get(key)
            found = self.digests.of(path) if path else None
            if found and found != known:
                return f"{name} was computed with {key} {short_digest(known)}, which is {short_digest(found)} now"
        return ""

    # Tables, claims, the report

    def spec_of(self, file: str) -> str:
        """A fingerprint of what the configs say of a drawing, and of the code that draws it."""
        kind, name, *rest = file.split("/")
        if kind == "report":
            return report_fingerprint(self.graph, name.removesuffix(".html"))
        if rest[0].endswith(".claims.json"):
            return claims_fingerprint(self.graph, rest[0].removesuffix(".claims.json"))
        return table_fingerprint(self.graph, rest[0].removesuffix(".json"))

    def _drawing_reason(self, file: str) -> str:
        made = self._record(made_file(file), Made)
        if reason := self._changed_files(self.results.folder, made.files):
            return reason
        if made.spec != self.spec_of(file):
            return "its definition or the code that draws it has changed"
        inputs = self.inputs_of(file)
        if made.inputs.keys() != set(inputs):
            return "it is made from other results now"
        changed = [each for each in inputs if self.digests.of(self.results.folder / each) != made.inputs[each]]
        return f"{shown(self.results.folder / changed[0])} has changed since it was drawn" if changed else ""

    # Records and digests

    def _record(self, file: str, kind: type[Kind]) -> Kind:
        if file not in self.records:
            self.records[file] = read_record(self.results.folder / file, kind)
        return self.records[file]

    def _changed_files(self, folder: Path, files: dict[str, str]) -> str:
        """The first file that is not as the record beside it says."""
        paths = ((folder / name, known) for name, known in files.items())
        return next((reason for path, known in paths if (reason := self._changed(path, known))), "")

    def _changed(self, path: Path, known: str) -> str:
        found = self.digests.of(path)
        if found == known:
            return ""
        what = f"has SHA-256 {short_digest(found)}, recorded was {short_digest(known)}" if found else "not found"
        return f"{path.name} {what}"


def open_freshness(graph: Graph, site: Site) -> Freshness:
    """With the digests that were kept; whoever may write calls `digests.keep()` afterwards."""
    return Freshness(graph, site, Digests(graph.results.digests))


def made_file(drawing: str) -> str:
    """The record of a drawing, beside it."""
    path = Path(drawing)
    return str(path.with_name(f"{path.stem}.made.json"))


def begin_made(freshness: Freshness, drawing: str) -> Made:
    """What a drawing is made from, before any of it is read: what changes meanwhile is not in the drawing."""
    inputs = {
        name: freshness.digests.of(freshness.results.folder / name) or "" for name in freshness.inputs_of(drawing)
    }
    return Made(spec=freshness.spec_of(drawing), inputs=inputs, files={})


def write_made(freshness: Freshness, drawing: str, begun: Made, files: Iterable[Path]) -> None:
    """Write down what a drawing that was just made consists of."""
    root = freshness.results.folder
    written = {str(path.relative_to(root)): freshness.digests.of(path) or "" for path in files}
    write_record(root / made_file(drawing), begun.model_copy(update={"files": written}))


def drawings(graph: Graph) -> Iterator[str]:
    """Every table, figure, list of claims and report that this scale can have."""
    for rows in ROWS:
        yield from (table_file(table, rows) for table in graph.selected(rows))
        yield from (claims_file(study, rows) for study in graph.studies())
        yield report_file(rows)


def _difference(before: dict, now: dict) -> str:
    keys = [key for key in now if before.get(key) != now[key]]
    return ", ".join(f"{key} {before.get(key)}, expected {now[key]}" for key in keys)


def _first_problem(message: str) -> str:
    lines = [line.strip().removeprefix("- ") for line in message.splitlines() if line.strip().startswith("- ")]
    return lines[0] if lines else message.splitlines()[0]


def _state_of(*folders: Path) -> list | None:
    """Names, sizes and times of all files below; None where there are too many to look at each time."""
    found: list = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if len(found) >= MOST_FILES:
                return None
            is_file = path.is_file()  # neither a folder nor a link that leads nowhere
            found.append([str(path), *stat_stamp(path)] if is_file else [str(path)])
    return found
