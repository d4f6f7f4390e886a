"""Bring finished results of one scale here: from another machine, usually without their weights, or published ones.

Every file is compared with its record before anything is copied, and all contradictions are reported at once: a file
that is damaged, a run that is here with other weights, an evaluation of other weights or data. What is here already is
skipped, so that an interrupted merge continues when it is started again.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.config import shown
from pipeline.core.errors import DataError
from pipeline.core.files import digest, draft_of, explained, is_held, remove_folder
from pipeline.data.store.manifest import read_manifest
from pipeline.publishing.metrics import METRICS, lay_out, read_metrics
from pipeline.results import RESULT, WEIGHTS, RunFolder, ScaleFolder, changed_file
from pipeline.results.records import (
    EvalInputs,
    EvalJobRecord,
    EvalResult,
    FilesElsewhere,
    TrainRecord,
    read_record,
    short_digest,
    write_record,
)
from pipeline.study.resolve.entries import Graph
from pipeline.study.scales import DEFAULT

KINDS = ("runs", "evals")


@dataclass
class Merge:
    """What a merge would copy, and why it must not."""

    here: ScaleFolder
    there: ScaleFolder
    graph: Graph
    files: dict[str, list[str]] = field(default_factory=dict)  # folder below results/<scale> -> its files to copy
    elsewhere: dict[str, dict[str, str]] = field(default_factory=dict)  # run -> files that were not brought along
    num_same: int = 0
    unknown: list[str] = field(default_factory=list)  # no config of this project names them
    conflicts: list[str] = field(default_factory=list)

    def counted(self, kind: str) -> int:
        """Folders of one kind (data, runs, evals) that are copied."""
        return sum(folder.startswith(f"{kind}/") for folder in self.files)


@contextmanager
def open_results(folder: Path, scale: str | None) -> Iterator[tuple[str, ScaleFolder]]:
    """The scale and the results in a folder; those of a published folder are laid out for as long as the block runs."""
    published = _find_published(folder, scale or DEFAULT)
    if not published:
        yield scale or DEFAULT, find_results(folder, scale or DEFAULT)
        return
    found = read_metrics(published / METRICS).scale
    if scale and scale != found:
        raise DataError(f"{published} has results of scale {found}, expected {scale}; leave out `--scale {scale}`")
    with tempfile.TemporaryDirectory() as place:
        results = ScaleFolder(Path(place))
        lay_out(published, results)
        yield found, results


def _find_published(folder: Path, scale: str) -> Path | None:
    """The folder itself, or one in `results/published` or in a project that has no other results of the scale."""
    if any((folder / "results" / scale / kind).is_dir() for kind in KINDS):
        return None
    candidates = (folder, folder / scale, folder / "results" / "published" / scale)
    return next((each for each in candidates if (each / METRICS).is_file()), None)


def find_results(folder: Path, scale: str) -> ScaleFolder:
    """Results of a scale in a folder: of a project, its `results`, or those of the scale themselves."""
    for candidate in (folder / "results" / scale, folder / scale, folder):
        if any((candidate / kind).is_dir() for kind in KINDS):
            return ScaleFolder(candidate)
    raise DataError(
        f"{folder}: found neither runs nor evals, expected results of scale {scale}: a folder such as "
        f"results/{scale} of another machine, or results/published/{scale}"
    )


def plan_merge(graph: Graph, there: ScaleFolder) -> Merge:
    """Compare everything that is there with its record and with what is here; nothing is written."""
    merge = Merge(graph.results, there, graph)
    for kind, compare in (("data", _compare_data), ("runs", _compare_run), ("evals", _compare_evaluation)):
        for folder in sorted((there.folder / kind).glob("*/")):
            try:
                compare(merge, folder.name)
            except DataError as error:
                merge.conflicts.append(str(error))
    return merge


def _compare_data(merge: Merge, name: str) -> None:
    if name not in merge.graph.data:
        merge.unknown.append(f"data/{name}")
        return
    found = read_manifest(merge.there.manifest(name))
    if not merge.here.manifest(name).exists():
        merge.files[f"data/{name}"] = sorted(
            path.name for path in merge.there.manifest(name).parent.iterdir() if path.suffix in (".json", ".csv")
        )
    elif (known := read_manifest(merge.here.manifest(name))).fingerprint == found.fingerprint:
        merge.num_same += 1
    else:
        prints = f"{short_digest(found.fingerprint)} there, {short_digest(known.fingerprint)} here"
        merge.conflicts.append(f"data/{name}: other samples ({prints}); its results cannot be compared with those here")


def _compare_run(merge: Merge, name: str) -> None:
    here, there = merge.here.run(name), merge.there.run(name)
    if not there.done.exists():
        return  # not finished
    if name not in merge.graph.runs:
        merge.unknown.append(f"runs/{name}")
        return
    record = read_record(there.done, TrainRecord)
    if known := here.record():
        if (known.inputs, known.files) == (record.inputs, record.files):
            merge.num_same += 1
        else:
            merge.conflicts.append(
                f"runs/{name}: trained here, too, to other weights; keep one: delete {shown(here.folder)} and "
                f"{shown(here.state)}, or merge a copy of the other results without it"
            )
        return
    if is_held(here.lock) or here.last_step():
        merge.conflicts.append(f"runs/{name}: its training has begun here; let it end, or delete {shown(here.state)}")
        return
    absent = _left_out(there, record)
    present = {file: sha for file, sha in record.files.items() if file not in absent}
    _require_intact(f"runs/{name}", there.folder, present)
    _compare_fingerprint(merge, f"runs/{name}", {merge.graph.runs[name].data: record.inputs.data})
    extra = [there.done.name, *([there.timing.name] if there.timing.exists() else [])]
    merge.files[f"runs/{name}"] = [*present, *extra]
    if absent:
        merge.elsewhere[name] = absent


def _compare_evaluation(merge: Merge, name: str) -> None:
    here, there = merge.here.evaluation(name), merge.there.evaluation(name)
    if not there.result.exists():
        return
    if name not in merge.graph.evals:
        merge.unknown.append(f"evals/{name}")
        return
    found = read_record(there.result, EvalResult)
    if here.result.exists():
        known = read_record(here.result, EvalResult)
        if (known.inputs, known.metrics) == (found.inputs, found.metrics):  # files may not all be published
            merge.num_same += 1
        else:
            merge.conflicts.append(
                f"evals/{name}: computed here, too, with other inputs or numbers; delete one of both"
            )
        return
    _require_intact(f"evals/{name}", there.folder, found.files)
    if change := _inputs_now(merge, name, found).change_since(found.inputs):
        merge.conflicts.append(f"evals/{name}: computed with {change}")
    merge.files[f"evals/{name}"] = [*found.files, RESULT]


def _inputs_now(merge: Merge, name: str, found: EvalResult) -> EvalInputs:
    """What the evaluation would be computed from after the merge: weights of runs and data of either machine."""
    weights = {}
    for role, run in merge.graph.evals[name].subjects.items():
        record = merge.here.run(run).record() or merge.there.run(run).record()
        if record:
            weights[role] = record.files.get(merge.here.run(run).encoder.name, "")
        elif merge.graph.runs[run].trained:
            raise DataError(f"evals/{name}: run {run}, which it evaluates, is neither here nor there")
    return EvalInputs(weights=weights, data=_fingerprints(merge, found.inputs.data))


def _compare_fingerprint(merge: Merge, what: str, data: dict[str, str]) -> None:
    for name, known in _fingerprints(merge, data).items():
        if known != data[name]:
            merge.conflicts.append(
                f"{what}: made from data {short_digest(data[name])} of {name}, which is {short_digest(known)} now"
            )


def _fingerprints(merge: Merge, names: dict[str, str]) -> dict[str, str]:
    """Fingerprint of each data set that one of the two machines has verified; the one here wins."""
    manifests = {name: [each.manifest(name) for each in (merge.here, merge.there)] for name in names}
    found = {name: next((path for path in paths if path.exists()), None) for name, paths in manifests.items()}
    return {name: read_manifest(path).fingerprint for name, path in found.items() if path}


def _left_out(there: RunFolder, record: TrainRecord) -> dict[str, str]:
    """Files that may stay where they are: weights, and whatever is not there either."""
    known = there.files_elsewhere()
    may_miss = {*(known.files if known else ()), *(name for name in record.files if name.endswith(WEIGHTS))}
    return {name: sha for name, sha in record.files.items() if name in may_miss and not (there.folder / name).exists()}


def _require_intact(what: str, folder: Path, files: dict[str, str]) -> None:
    """Names come from another machine: none may lead out of its folder."""
    if odd := [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise DataError(
            f"{what}: its record names {odd[0]!r}, expected files of its own folder; it was not written here"
        )
    if changed := changed_file(folder, files, digest):
        raise DataError(f"{what}: {changed}; copy it again from the machine that computed it")


def carry_out(merge: Merge, place: str) -> Iterator[str]:
    """Copy what is new, folder by folder; yields each when it is here. `place` says where weights were left."""
    for folder, files in merge.files.items():
        draft = draft_of(merge.here.folder / folder)
        with explained(draft):
            for name in files:
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(merge.there.folder / folder / name, draft / name)
        if absent := merge.elsewhere.get(Path(folder).name):
            elsewhere = merge.here.run(Path(folder).name).elsewhere
            write_record(draft / elsewhere.name, FilesElsewhere(place=place, files=absent))
        remove_folder(merge.here.folder / folder)
        draft.rename(merge.here.folder / folder)
        yield folder
    _record_jobs(merge)


def _record_jobs(merge: Merge) -> None:
    """Evaluations that share a process have one record; it is written where all of them are here."""
    for job, entry in merge.graph.eval_jobs.items():
        found = {name: digest(merge.here.evaluation(name).result) for name in entry.evaluations}
        known = {name: sha for name, sha in found.items() if sha}
        if len(known) == len(found) and not merge.here.eval_job(job).exists():
            write_record(merge.here.eval_job(job), EvalJobRecord(results=known))
