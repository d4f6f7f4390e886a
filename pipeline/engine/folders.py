"""Where the files of a run live."""

from dataclasses import dataclass
from pathlib import Path


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

    def evaluation(self, group: str) -> Path:
        return self.folder / "evals" / f"{group}.json"

    def manifest(self, data: str) -> Path:
        return self.results / "data" / data / "manifest.json"
