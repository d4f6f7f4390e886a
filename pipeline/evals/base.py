"""What an evaluation is: a pure function of one finished run and its data that returns named metrics.

One file, one config class, the names of its metrics, `@EVALS.register("name")`. Evaluations with the same `group` are
computed by one job, which writes one JSON: starting a process costs more than a small evaluation.
"""

from typing import Any, ClassVar

from pydantic import Field

from pipeline.config import Strict, fingerprint, science
from pipeline.data.loader import eval_loader
from pipeline.data.sources import open_split
from pipeline.data.transforms import BatchTransform, eval_view
from pipeline.engine.distributed import World
from pipeline.engine.precision import precision_of
from pipeline.engine.run import RunConfig
from pipeline.engine.validate import Measure, mean_over_set
from pipeline.methods.base import Method
from pipeline.registry import EVALS as EVALS
from pipeline.results import RunFolder
from pipeline.site import Site, data_folder


class EvalConfig(Strict):
    """Fields every evaluation has. `code_epoch` is raised by hand when a change of code invalidates old results."""

    name: str
    code_epoch: int = Field(1, ge=1)
    group: str = Field("quick", pattern=r"^[a-z0-9_]+$")
    seed: int = Field(0, ge=0)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names that `compute` returns with this config."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Of everything but the group: which evaluations share a process changes no number."""
        content = science(self)
        del content["group"]
        return fingerprint(content)


class Evaluation:
    """One evaluation of one run; `compute` returns the metrics that its config names."""

    Config: ClassVar[type[EvalConfig]] = EvalConfig
    # Names of the methods it is for; empty: every method that classifies.
    methods: ClassVar[tuple[str, ...]] = ()

    def __init__(self, cfg: EvalConfig, run: RunConfig, paths: RunFolder, site: Site, world: World) -> None:
        self.cfg, self.run, self.paths, self.site, self.world = cfg, run, paths, site, world

    def compute(self, method: Any) -> dict[str, float]:
        """`method` is of one of the `methods`."""
        raise NotImplementedError

    def over_validation_set(self, method: Method, crop: float, measure: Measure) -> dict[str, float]:
        """Mean per validation image, seen through a centre crop (1.0: resized on both sides)."""
        data = self.run.data
        images = open_split(data, data_folder(self.site, data), "val", self.paths.manifest(data.name).parent)
        loader = eval_loader(images, eval_view(data, crop), 128, self.world.rank, self.world.size, self.site.workers)
        transform = BatchTransform(data, smoothing=0.0, device=self.world.device)
        precision = precision_of(self.site, self.world.device)
        return mean_over_set(method, loader, transform, self.world, precision, measure, self.cfg.seed)
