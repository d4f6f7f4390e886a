"""Where every result lies, and whether a run is finished. No other module puts these paths together."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import CONFIGS
from pipeline.files import digest, write_text

ROOT = CONFIGS.parent
RESULTS = ROOT / "results"

CHECKPOINT = re.compile(r"step-(\d+)-([0-9a-f]{16})\.pt")  # a checkpoint's name: its step and the digest of its bytes


def results_of(scale: str) -> "ScaleFolder":
    return ScaleFolder(RESULTS / scale)


def prepare_command(manifest: Path) -> str:
    """The command that writes the manifest at this path."""
    return f"python -m pipeline prepare --scale {manifest.parents[2].name} --data {manifest.parent.name}"


@dataclass(frozen=True)
class ScaleFolder:
    """Paths of everything that one scale has in common."""

    folder: Path  # results/<scale>

    def run(self, name: str) -> "RunFolder":
        return RunFolder(self.folder, name)

    def manifest(self, data: str) -> Path:
        return self.folder / "data" / data / "manifest.json"

    def table(self, table_id: str, rows: str) -> Path:
        return self.folder / "tables" / rows / f"{table_id}.json"

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
    def origins(self) -> Path:
        """How each result was made, for results that DVC brings elsewhere."""
        return self.folder / "origins.json"

    @property
    def benchmarks(self) -> Path:
        """Seconds that each job took, by rule."""
        return self.folder / "benchmarks"

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
        return self.folder / "metrics.jsonl"

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
        """Written when training begins: who this run is, whatever interrupts it."""
        return self.folder / "started.json"

    @property
    def done(self) -> Path:
        return self.folder / "train.json"

    @property
    def finished(self) -> Path:
        """What `done` is copied from: Snakemake deletes its outputs, but a finished run stays finished."""
        return self.state / "train.json"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def identity(self) -> Path:
        return self.state / "identity"

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

    def evaluation(self, group: str) -> Path:
        return self.folder / "evals" / f"{group}.json"

    def manifest(self, data: str) -> Path:
        return ScaleFolder(self.results).manifest(data)

    def last_step(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        names = [CHECKPOINT.fullmatch(path.name) for path in self.state.glob("step-*.pt")]
        return max((int(match[1]) for match in names if match), default=0)

    def is_finished(self) -> bool:
        """Whether training has come to its end, and what it made is still there as it was."""
        if not self.finished.exists():
            return False
        files = json.loads(self.finished.read_text())["files"]
        return all(digest(self.folder / name) == known for name, known in files.items())

    def publish(self) -> None:
        """Let the graph see that the run is finished."""
        write_text(self.done, self.finished.read_text())
