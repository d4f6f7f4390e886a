"""A trained tiny run and evaluations of it, each with a folder of its own."""

import functools
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from tiny_runs import tiny_run

from pipeline.core.files import digest
from pipeline.engine.run import RunConfig
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.evals.accuracy.classify import Classify
from pipeline.evals.evaluate import PlannedEvaluation, evaluate_job
from pipeline.evals.positions.consistency import Consistency
from pipeline.results import EvalFolder, ScaleFolder
from pipeline.results.records import EvalResult, TrainRecord, read_record, write_record
from pipeline.site import Site

# Two of one kind, and a seed that is not the run's.
CONFIGS = {
    "classify": Classify.Config(seed=5, shuffle_ratio=0.5),
    "mild": Classify.Config(seed=5, shuffle_ratio=0.2),
    "consistency": Consistency.Config(shuffle_ratio=0.5),
}


@dataclass(frozen=True)
class Lab:
    """A run of seed 3 that was trained to its end, and where evaluations of it go."""

    run: RunConfig
    results: ScaleFolder
    site: Site

    def planned(self, *keys: str) -> list[PlannedEvaluation]:
        return [
            PlannedEvaluation(f"{key}-aaaaaaaa", key, CONFIGS[key], subjects={"model": self.run}, data={})
            for key in keys or CONFIGS
        ]

    def evaluate(self, *planned: PlannedEvaluation, job: str = "job") -> None:
        evaluate_job(job, planned or self.planned(), self.results, self.site)

    def folder(self, key: str) -> EvalFolder:
        return self.results.evaluation(f"{key}-aaaaaaaa")

    def result(self, key: str) -> EvalResult:
        return read_record(self.folder(key).result, EvalResult)

    def change_weights(self) -> None:
        """As if the run had been trained again from other inputs."""
        folder = self.results.run(self.run.name)
        weights = {
            name: -value if name == "head.weight" else value for name, value in load_file(folder.encoder).items()
        }
        save_file(weights, folder.encoder)
        for path in (folder.done, folder.finished):
            record = read_record(path, TrainRecord)
            record.files[folder.encoder.name] = digest(folder.encoder)
            write_record(path, record)


def train_in(results: Path, images: Path) -> Lab:
    """Train the run in a results folder in which the small set is prepared."""
    run = tiny_run({"seed": 3, "optim": {"epochs": 2}, "data": {"eval_crop": 0.9}})
    site = Site(device="cpu", data={"small": images})
    folder = ScaleFolder(results).run(run.name)
    train_run(run, folder, site, StopRequest())
    folder.publish()
    return Lab(run, ScaleFolder(results), site)


def recorded(compute, names: list[str]):
    """The `compute` of an evaluation, which adds its name to the list."""

    @functools.wraps(compute)
    def wrapper(self, **subjects):
        names.append(self.cfg.name)
        return compute(self, **subjects)

    return wrapper
