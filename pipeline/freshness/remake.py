"""What must be remade, and why: one answer for Snakemake, `verify`, `status`, `plan`, `clean` and the report.

A file is fresh if it is there, undamaged, and was made from what there is now: its record says so. It is stale, too, if
anything that it is made from is. No file times and no notes of Snakemake are asked, so that results may be copied,
pulled and moved, and nothing that a user may delete is needed to know what is current.

Files are the outputs of the rules, by the names that outputs.py gives them.
"""

from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.config import FILE, shown
from pipeline.core.errors import DataError
from pipeline.core.files import Digests, stat_stamp
from pipeline.core.source import PACKAGE, digest_behind
from pipeline.data.kind import kind_of, reference_run, source_set
from pipeline.data.store.manifest import Manifest, read_manifest
from pipeline.data.store.opening import compare_folder
from pipeline.data.store.prepare import reason_to_prepare
from pipeline.freshness.outputs import (
    data_file,
    drawing_record,
    job_file,
    report_file,
    report_inputs,
    run_file,
    table_file,
)
from pipeline.results import ScaleFolder, changed_file
from pipeline.results.records import (
    DrawingRecord,
    EvalInputs,
    EvalJobRecord,
    EvalResult,
    Inputs,
    Kind,
    TrainRecord,
    read_record,
    write_record,
)
from pipeline.site import Site, named_folder, site_file, site_path, weights_path
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.fingerprints import claims_fingerprint, report_fingerprint, table_fingerprint
from pipeline.study.resolve.graph_configs import data_of
from pipeline.study.targets import ROWS

MOST_FILES = 200  # of a data folder whose state is remembered by the times of its files


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
    numbers: dict[str, str] = field(default_factory=dict)  # of result files -> why

    @property
    def results(self) -> ScaleFolder:
        return self.graph.results

    def why(self, file: str) -> str:
        """Why a file must be made, or made again; empty if it is as it should be."""
        if file not in self.reasons:
            for each in self.needed_for([file], known=self.reasons):
                self.reasons[each] = self.own_reason(each) or self._stale_input(self.inputs_here(each))
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

    def _stale_input(self, files: Iterable[str]) -> str:
        stale = next((each for each in files if self.why(each)), None)
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
        expected = {*made, *(each for file in made for each in self.inputs_here(file))}
        return {file: why for file in needed if file in expected and (why := self.own_reason(file))}

    def exists(self, file: str) -> bool:
        return (self.results.folder / file).exists()

    def is_without_weights(self, file: str) -> bool:
        """Whether a file stands for a finished run that was merged without its weights, and is not made again."""
        kind, name, *_ = file.split("/")
        return kind == "runs" and self.results.run(name).is_without_weights and not self.why(file)

    def was_made(self, file: str) -> bool:
        """Whether a file is there, or is a drawing that was there: its record stays."""
        return self.exists(file) or self.exists(drawing_record(file))

    # What files are made from

    def inputs_of(self, file: str) -> list[str]:
        """The other files of this scale that a file is made from."""
        if file not in self.inputs:
            self.inputs[file] = self._inputs_of(file)
        return self.inputs[file]

    def inputs_here(self, file: str) -> list[str]:
        """The inputs that a finished file is compared with: published results are merged without data."""
        kind, inputs = file.split("/")[0], self.inputs_of(file)
        if kind not in ("runs", "evals"):
            return inputs
        return self._without_absent_data(inputs, [file] if kind == "runs" else inputs)

    def _without_absent_data(self, inputs: list[str], files: list[str]) -> list[str]:
        """Inputs of results of these runs; where all of these came from elsewhere, data may never have been here."""
        runs = [self.results.run(file.split("/")[1]) for file in files if file.startswith("runs/")]
        if not all(run.elsewhere.exists() for run in runs):
            return inputs
        return [each for each in inputs if not each.startswith("data/") or self.exists(each)]

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
            return report_inputs(self.graph, name.removesuffix(".html"))
        if rest[0].endswith(".claims.json"):
            study = rest[0].removesuffix(".claims.json")
            return [table_file(table, name) for table in self.graph.judged_on(study, name)]
        return self.graph.files(rest[0].removesuffix(".json"), name)

    def _data_inputs(self, name: str) -> list[str]:
        """The set that this one is made from and the run that chooses its samples; none if the site has the set."""
        data = data_of(self.graph, name)
        source, run, folder = source_set(data), reference_run(data), named_folder(self.site, data)
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
        sources = {source: self._source(source) for source in manifest.source_digests or {}}
        return reason_to_prepare(manifest, data, sources) or self._folder_reason(name)

    def _source(self, name: str) -> str | None:
        """What a set is made with, as it is now: the samples of another one, the weights of a run, or code."""
        if name.endswith(".py"):
            return digest_behind(PACKAGE / name) if (PACKAGE / name).exists() else None
        with suppress(DataError):
            if name in self.graph.runs:
                return self.weights_of(name)
            if name.removesuffix("/train") not in self.graph.data:
                return None
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
            was_made = self.manifest(name).source_digests and self.results.data_lock(name).exists()
            return f"{shown(folder)} not found" if folder and was_made else ""
        key, state = f"data {name}", _state_of(folder, index)
        if state and self.digests.kept.get(key) == state:
            return ""
        try:
            (known,) = self.digests.kept.get(f"files of {key}", [""])
            files = compare_folder(data, folder, index, known)
        except DataError as error:
            return (
                f"{shown(folder)} does not hold what was verified: {_first_problem(str(error))}; is it the folder that "
                f"is meant? If not, correct `data: {data.folder_name}:` in {shown(site_path())} first"
            )
        if files != known:
            self.digests.keep_state(f"files of {key}", [files])
        if state:
            self.digests.keep_state(key, state)
        return ""

    # Runs

    def _run_reason(self, name: str) -> str:
        record, run = self._record(run_file(name), TrainRecord), self.graph.runs[name]
        data, init = self._data(run.data), self._weights(run.config["init"])
        now = Inputs(data=data or record.inputs.data, init=init or record.inputs.init)
        return self.results.run(name).reason_to_repeat(record, now, self.digests.of)

    def _data(self, name: str) -> str | None:
        """The fingerprint of a set as it was prepared last; None where its manifest is missing or damaged."""
        with suppress(DataError):
            return self.manifest(name).fingerprint
        return None

    def _weights(self, init: str | None) -> str | None:
        """What `init` of a run names, as it is now; None where that is not on this machine."""
        if init and init.startswith(FILE):
            return self.digests.of(weights_path(self.site, init))
        with suppress(DataError):
            return self.weights_of(init) if init else None
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

    def _evaluation_reason(self, name: str, recorded: str | None) -> str:
        folder = self.results.evaluation(name)
        if recorded and (changed := changed_file(folder.folder, {folder.result.name: recorded}, self.digests.of)):
            return changed
        result = read_record(folder.result, EvalResult)
        return folder.reason_to_repeat(result, self._eval_inputs(name), self.digests.of)

    def _eval_inputs(self, name: str) -> EvalInputs:
        """What an evaluation would be computed from now, without what is missing, damaged or not on this machine."""
        entry = self.graph.evals[name]
        weights = {role: self._weights(run) for role, run in entry.subjects.items()}
        data = {each: self._data(each) for each in self.graph.data_behind(name)}
        paths = {key: site_file(self.site, key) for key in entry.site_files}
        files = {key: self.digests.of(path) for key, path in paths.items() if path}
        return EvalInputs(weights=_known(weights), data=_known(data), site_files=_known(files))

    def why_number(self, source: str) -> str:
        """Why the numbers of a result file (train.json, result.json) must be made again; empty if they are current.

        An evaluation is judged by itself, whatever is wrong with others of its job.
        """
        if source not in self.numbers:
            self.numbers[source] = self._why_number(source)
        return self.numbers[source]

    def _why_number(self, source: str) -> str:
        kind, name, _ = source.split("/")
        if kind == "runs":
            return self.why(source)
        entry, recorded = self.graph.evals[name], None
        try:
            with suppress(DataError):
                recorded = self._record(job_file(entry.job), EvalJobRecord).results.get(name)
            if reason := self._evaluation_reason(name, recorded):
                return reason
        except DataError as error:
            return str(error)
        trained = [run_file(run) for run in entry.subjects.values() if self.graph.runs[run].trained]
        inputs = [*trained, *map(data_file, self.graph.data_behind(name))]
        return self._stale_input(self._without_absent_data(inputs, trained))

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
        drawn = self._record(drawing_record(file), DrawingRecord)
        if reason := changed_file(self.results.folder, drawn.files, self.digests.of):
            return reason
        if drawn.spec != self.spec_of(file):
            return "its definition or the code that draws it has changed"
        inputs = self.inputs_of(file)
        if drawn.inputs.keys() != set(inputs):
            return "it is made from other results now"
        changed = [each for each in inputs if self.digests.of(self.results.folder / each) != drawn.inputs[each]]
        return f"{shown(self.results.folder / changed[0])} has changed since it was drawn" if changed else ""

    # Records and digests

    def _record(self, file: str, kind: type[Kind]) -> Kind:
        if file not in self.records:
            self.records[file] = read_record(self.results.folder / file, kind)
        return self.records[file]


def open_freshness(graph: Graph, site: Site) -> Freshness:
    """With the digests that were kept; whoever may write calls `digests.keep()` afterwards."""
    return Freshness(graph, site, Digests(graph.results.digests))


def begin_drawing(freshness: Freshness, drawing: str) -> DrawingRecord:
    """What a drawing is made from, before any of it is read: what changes meanwhile is not in the drawing."""
    inputs = {
        name: freshness.digests.of(freshness.results.folder / name) or "" for name in freshness.inputs_of(drawing)
    }
    return DrawingRecord(spec=freshness.spec_of(drawing), inputs=inputs, files={})


def record_drawing(freshness: Freshness, drawing: str, begun: DrawingRecord, files: Iterable[Path]) -> None:
    """Write down what a drawing that was just made consists of."""
    root = freshness.results.folder
    written = {str(path.relative_to(root)): freshness.digests.of(path) or "" for path in files}
    write_record(root / drawing_record(drawing), begun.model_copy(update={"files": written}))


def _known(found: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in found.items() if value}


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
