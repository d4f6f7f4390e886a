"""What data sets are made from: the samples of other sets, and what trained runs say of them.

torch is imported where a run is asked: corrupting images needs none of it, and is done by many short processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.data.kind import BaseDataConfig
from pipeline.data.readers.classes import class_names
from pipeline.data.samples import SplitName
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.results import ScaleFolder
from pipeline.site import Site, data_folder

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig


@dataclass(frozen=True)
class PreparedSources:
    """The sets and runs of one scale; `Sources` in data/kind.py says what each function is."""

    results: ScaleFolder
    site: Site
    configs: Mapping[str, BaseDataConfig]
    run_of: "Callable[[str], RunConfig]"

    def config(self, name: str) -> Any:
        return self.configs[name]

    def open(self, name: str, split: SplitName = "val") -> Any:
        data = self.configs[name]
        return open_split(data, data_folder(self.site, data), split, self.results.manifest(name).parent)

    def fingerprint(self, name: str, split: SplitName = "val") -> str:
        return read_manifest(self.results.manifest(name)).splits[split].fingerprint

    def classes(self, name: str) -> list[str]:
        return class_names(self.results.manifest(name))

    def weights(self, run: str) -> str:
        folder = self.results.run(run)
        return folder.trained().files[folder.encoder.name]

    def predict(self, run: str) -> np.ndarray:
        import torch

        from pipeline.engine.parallel.distributed import World, device_of
        from pipeline.engine.train import load_method
        from pipeline.evals.base import EvalConfig, Evaluation
        from pipeline.evals.finite import finite_outputs

        config, world = self.run_of(run), World(0, 1, device_of(self.site.device))
        method = load_method(config, self.results.run(run), world)
        evaluation = Evaluation(EvalConfig(name="predict"), {}, self.results, self.site, world)
        found = []
        with finite_outputs([method]):
            for batch in evaluation.batches(config.data, batch=evaluation.full_batch(config.data)):
                with torch.no_grad(), evaluation.precision():
                    logits = method.predict(batch.images).logits
                found.append(logits.float().softmax(dim=1))
        return torch.cat(found).cpu().numpy()
