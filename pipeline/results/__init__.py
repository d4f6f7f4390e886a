"""Defines where every result is stored, and whether a run is finished. No other module puts these paths together."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.config import CONFIGS, names, nearest, read_yaml, shown
from pipeline.core.errors import CheckpointError, DataError
from pipeline.core.files import digest, digest_by_stat, lock_of, remove, write_text
from pipeline.results.records import (
    EvalInputs,
    EvalResult,
    FilesElsewhere,
    Inputs,
    TrainRecord,
    read_intact,
    read_record,
    short_digest,
)

if TYPE_CHECKING:
    from torch import nn

ROOT = CONFIGS.parent
RESULTS = ROOT / "results"
RESULT = "result.json"  # of an evaluation
PER_IMAGE = "per_image.npz"
LOGGED = "metrics.jsonl"  # by training, line by line
WEIGHTS = ".safetensors"  # how the names of weight files end

DigestOf = Callable[[Path], str | None]  # SHA-256 of a file, or None without one

CHECKPOINT = re.compile(r"step-(\d+)-([0-9a-f]{16})\.pt")  # a checkpoint's name: its step and the digest of its bytes


def results_of(scale: str) -> "ScaleFolder":
    return ScaleFolder(RESULTS / scale)


def drawn_in(table_id: str) -> str:
    """The folder of a table or a figure, by its id: mjp.t4, mjp.f3a."""
    return "figures" if table_id.split(".")[1].startswith("f") else "tables"


def made_folder(data: str) -> Path:
    """The files of a data set that is made here, unless the site names a folder for it. No scale owns them."""
    return RESULTS / "made" / data


def attack_folder(name: str) -> Path:
    """What an attack on an image of the user's own found. No scale owns it."""
    return RESULTS / "attacks" / name


def published_folder(scale: str = "") -> Path:
    """Results of a scale as they are kept in git; without a scale, the folder of all that are."""
    return RESULTS / "published" / scale


def compiled_folder() -> Path:
    """What torch has compiled, unless the site names a folder for it. No scale owns it; it may be deleted."""
    return RESULTS / "compiled"


def prepare_command(manifest: Path) -> str:
    """The command that writes the manifest at this path."""
    return f"python -m pipeline prepare --scale {manifest.parents[2].name} --data {manifest.parent.name}"


def changed_file(folder: Path, files: dict[str, str], digest_of: DigestOf) -> str:
    """The first of these files that is not as the record beside it says, in words; empty if all are."""
    for name, known in files.items():
        if (found := digest_of(folder / name)) != known:
            what = f"has SHA-256 {short_digest(found)}, recorded was {short_digest(known)}" if found else "not found"
            return f"{Path(name).name} {what}"
    return ""


def scales_with_results() -> list[str]:
    """Scales of configs/scale at which something was trained or evaluated, or begun."""
    scales = [results_of(name) for name in names(CONFIGS / "scale")]
    return [scale.folder.name for scale in scales if scale.run_names() or scale.evaluations()]


@dataclass(frozen=True)
class ScaleFolder:
    """Paths of everything that one scale has in common."""

    folder: Path  # results/<scale>

    def read(self, name: str) -> bytes:
        """The content of a file below this folder."""
        return (self.folder / name).read_bytes()

    def run(self, name: str) -> "RunFolder":
        return RunFolder(self.folder, name)

    @property
    def runs(self) -> Path:
        """What training wrote, a folder for each run."""
        return self.folder / "runs"

    def run_names(self) -> list[str]:
        """Every run that left something here, whether or not a config still names it."""
        folders = [*self.folder.glob("runs/*/"), *self.folder.glob("state/*/")]
        return sorted({folder.name for folder in folders})

    def log(self, rule: str, job: str) -> Path:
        """What the last job of a rule printed."""
        return self.folder / "logs" / rule / f"{job}.log"

    def manifest(self, data: str) -> Path:
        return self.folder / "data" / data / "manifest.json"

    def data_lock(self, data: str) -> Path:
        """Held by the process that prepares a set."""
        return lock_of(self.manifest(data).parent)

    def evaluation(self, name: str) -> "EvalFolder":
        return EvalFolder(self.folder / "evals" / name)

    def evaluations(self) -> "list[EvalFolder]":
        """Every evaluation that left something here, whether or not a config still names it."""
        return [EvalFolder(path) for path in sorted(self.folder.glob("evals/*/"))]

    def eval_job(self, name: str) -> Path:
        """Which results one process wrote, or found finished."""
        return self.folder / "evals" / f"{name}.json"

    def table(self, table_id: str, rows: str) -> Path:
        """A table or a figure, as data."""
        return self.folder / drawn_in(table_id) / rows / f"{table_id}.json"

    def claims(self, study: str, rows: str) -> Path:
        return self.folder / "tables" / rows / f"{study}.claims.json"

    def report(self, rows: str) -> Path:
        return self.folder / "report" / f"{rows}.html"

    @property
    def graph(self) -> Path:
        """Everything that the configs say, resolved."""
        return self.folder / "graph.json"

    @property
    def costs(self) -> Path:
        """Operations of each step, counted for the plan."""
        return self.folder / "costs.json"

    @property
    def digests(self) -> Path:
        """SHA-256 of results, so that unchanged ones need not be read at every start; it may be deleted."""
        return self.folder / "digests.json"

    @property
    def accepted_code(self) -> Path:
        """Changes of code of which a user said that they affect no number."""
        return self.folder / "accepted_code.json"

    @property
    def benchmarks(self) -> Path:
        """Seconds that each job took, by rule."""
        return self.folder / "benchmarks"

    def benchmark(self, rule: str, job: str) -> Path:
        """Seconds that the last job of a rule took; deleted when one begins, written when it succeeds."""
        return self.benchmarks / rule / f"{job}.tsv"

    @property
    def workflow_lock(self) -> Path:
        """Held by the one Snakemake that works on this scale."""
        return self.folder / "workflow.lock"

    @property
    def track_lock(self) -> Path:
        return self.folder / "track.lock"

    @property
    def track_log(self) -> Path:
        return self.folder / "logs" / "track.log"

    @property
    def tracking_database(self) -> Path:
        """MLflow's, of all scales, where no server is named."""
        return self.folder.parent / "mlflow.db"

    @property
    def tracking_artifacts(self) -> Path:
        return self.folder.parent / "mlflow-artifacts"

    @property
    def queue(self) -> Path:
        """What SLURM said last, for all launchers of this project."""
        return self.folder.parent / "queue.json"


@dataclass(frozen=True)
class EvalFolder:
    """Paths of one evaluation."""

    folder: Path  # results/<scale>/evals/<name>-<fingerprint>

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def result(self) -> Path:
        return self.folder / RESULT

    @property
    def per_image(self) -> Path:
        """One value per image of each metric that is a mean over images."""
        return self.folder / PER_IMAGE

    @property
    def lock(self) -> Path:
        """Held by the process that computes it: several may be asked to, such as a job that outlives its Snakemake."""
        return lock_of(self.folder)

    @property
    def parts(self) -> Path:
        """What a long evaluation has finished so far; gone when its result is written."""
        return self.folder / "parts"

    def finished(self, inputs: EvalInputs) -> EvalResult | None:
        """The result, unless there is none or a reason to compute it again."""
        try:
            found = read_record(self.result, EvalResult)
        except DataError:
            return None
        return None if self.reason_to_repeat(found, inputs) else found

    def reason_to_repeat(self, result: EvalResult, now: EvalInputs, digest_of: DigestOf = digest) -> str:
        """Why to compute it again: other inputs than there are now, or files that are not as recorded; else empty."""
        if change := now.change_since(result.inputs):
            return f"{self.name} was computed with {change}"
        return changed_file(self.folder, result.files, digest_of)


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. State is apart from results: Snakemake and DVC delete what they declare as outputs."""

    results: Path  # results/<scale>
    name: str

    @property
    def folder(self) -> Path:
        return self.results / "runs" / self.name

    @property
    def state(self) -> Path:
        return self.results / "state" / self.name

    @property
    def metrics(self) -> Path:
        return self.folder / LOGGED

    @property
    def timing(self) -> Path:
        return self.folder / "timing.jsonl"

    @property
    def encoder(self) -> Path:
        return self.folder / "encoder.safetensors"

    @property
    def heads(self) -> Path:
        return self.folder / "heads.safetensors"

    @property
    def config(self) -> Path:
        return self.folder / "config.resolved.yaml"

    @property
    def started(self) -> Path:
        """Written when training begins: the identity that the run keeps through every interruption."""
        return self.folder / "started.json"

    @property
    def done(self) -> Path:
        return self.folder / "train.json"

    @property
    def elsewhere(self) -> Path:
        """Which files are not here; `merge` writes it."""
        return self.folder / "weights_elsewhere.json"

    @property
    def finished(self) -> Path:
        """What `done` is copied from: Snakemake deletes its outputs, but a finished run stays finished."""
        return self.state / "train.json"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def submit_lock(self) -> Path:
        """Held by the launcher that submits: there is one job per run."""
        return self.state / "submit.lock"

    @property
    def identity(self) -> Path:
        """The run's identity: the same from the first step to the last, through every interruption."""
        return self.state / "identity.json"

    @property
    def job(self) -> Path:
        """Which SLURM job works on this run."""
        return self.state / "job.json"

    @property
    def submitted(self) -> Path:
        """The config that was submitted: what waits in a queue must not change with an edit."""
        return self.state / "submitted.yaml"

    @property
    def jobs(self) -> Path:
        """What SLURM and submitit write: scripts and logs."""
        return self.state / "jobs"

    @property
    def outcome(self) -> Path:
        """What a job said when it ended."""
        return self.state / "outcome.json"

    def sibling(self, name: str) -> "RunFolder":
        """Another run of the same scale."""
        return RunFolder(self.results, name)

    def manifest(self, data: str) -> Path:
        return ScaleFolder(self.results).manifest(data)

    def last_step(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        names = [CHECKPOINT.fullmatch(path.name) for path in self.state.glob("step-*.pt")]
        return max((int(match[1]) for match in names if match), default=0)

    def is_finished(self, inputs: Inputs) -> bool:
        """Whether training from these inputs has come to its end, and what it made is unchanged. Cheap to ask often."""
        record = self.record()
        return record is not None and not self.reason_to_repeat(record, inputs)

    def reason_to_repeat(self, record: TrainRecord, now: Inputs, digest_of: DigestOf = digest_by_stat) -> str:
        """Why to train it again: other inputs than there are now, or files that are not as recorded; else empty."""
        if change := now.change_since(record.inputs):
            return f"{change} since it was trained"
        elsewhere = self.files_elsewhere()
        absent = {name for name in elsewhere.files if not (self.folder / name).exists()} if elsewhere else set()
        return changed_file(self.folder, {k: v for k, v in record.files.items() if k not in absent}, digest_of)

    @property
    def is_without_weights(self) -> bool:
        """Whether this finished run was merged without its weights, and they are still elsewhere."""
        return self.elsewhere.exists() and not self.encoder.exists()

    def files_elsewhere(self) -> FilesElsewhere | None:
        """Which files stayed on the machine that trained this run, if it was merged without them."""
        return read_intact(self.elsewhere, FilesElsewhere) if self.elsewhere.exists() else None

    def record(self) -> TrainRecord | None:
        """What training wrote when it came to its end. A run that was brought from elsewhere has no state."""
        return read_intact(self.finished, TrainRecord) or read_intact(self.done, TrainRecord)

    def trained(self) -> TrainRecord:
        """The record next to the weights or, before the graph knows that the run is finished, the one in its state."""
        found = read_intact(self.done, TrainRecord) or read_intact(self.finished, TrainRecord)
        if found is None:
            raise CheckpointError(f"run {self.name} is not finished ({self.done} not found); train it first")
        return found

    def verified(self, path: Path) -> Path:
        """A file of this finished run, after comparing it with what training recorded."""
        known, found = self.trained().files.get(path.name), digest(path)
        elsewhere = self.files_elsewhere()
        if found is None and elsewhere and path.name in elsewhere.files:
            raise CheckpointError(
                f"{path} not found: run {self.name} was merged without its weights, which are at {elsewhere.place}; "
                f"copy {path.name} (SHA-256 {short_digest(known)}) into {path.parent}, or delete that folder to train "
                "the run again"
            )
        if found is None or found != known:
            state = f"has SHA-256 {short_digest(found)}" if found else "not found"
            raise CheckpointError(
                f"{path} {state}, expected {short_digest(known)} as {self.done.name} recorded it: it was changed or "
                f"damaged after training; restore it, or train run {self.name} again, which exports it again"
            )
        return path

    def unpublish(self) -> None:
        """Forget that the run was finished."""
        for path in (self.done, self.finished):
            remove(path)

    def publish(self) -> None:
        """Let the graph see that the run is finished."""
        if self.finished.exists():  # else it was brought from elsewhere, published
            write_text(self.done, self.finished.read_text())


def load_encoder(run: str, scale: str | None = None) -> "nn.Module":
    """The trained encoder of a finished run, as the timm model it is: for a notebook, or another project.

    `run` is its name, or as much of the beginning or end of it as no other finished run has.
    """
    from pipeline.core.registry import KINDS, METHODS, TASKS
    from pipeline.models.encoder import ModelConfig
    from pipeline.models.weights import fill_weights, read_weights

    folder = find_run(run, scale)
    config = read_yaml(folder.config)
    method = METHODS.get(config["method"]["name"]).Config(**config["method"])
    model, kind = ModelConfig(**config["model"]), KINDS.get(config["data"].get("kind", "images"))
    data = kind.Config(**config["data"])
    encoder = TASKS.get(data.task_of(method.task)).build_encoder(method, model, data)
    fill_weights(encoder, read_weights(folder.verified(folder.encoder)), folder.encoder)
    return encoder.eval()


def find_run(name: str, scale: str | None = None) -> RunFolder:
    """The finished run of this name at any scale, or at one."""
    done = sorted(RESULTS.glob(f"{scale or '*'}/runs/*/train.json"))
    folders = [RunFolder(path.parents[2], path.parent.name) for path in done]
    found = [folder for folder in folders if folder.name.startswith(name) or folder.name.endswith(name)]
    exact = [folder for folder in found if folder.name == name]
    if len(exact or found) != 1:
        labels = [f"{folder.name} ({folder.results.name})" for folder in found or folders]
        hint = nearest(name, labels, f"ls -d {shown(RESULTS)}/*/runs/*") if labels else "no run is finished yet"
        begun = f"{len(found)} finished runs have" if found else "no finished run has"
        raise DataError(f"{begun} a name that begins or ends with {name!r}, expected one; {hint}")
    return (exact or found)[0]
