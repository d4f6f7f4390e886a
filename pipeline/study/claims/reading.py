"""What a table cell shows, and how well it is known: what claims are decided from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.study.claims.formula import Cell

if TYPE_CHECKING:
    import numpy as np

FEW_SEEDS = 4  # fewer are pooled with others of this scale: two by themselves need 12.7 standard errors


class SeedNoise(NamedTuple):
    """How much runs differ that have different seeds and are otherwise the same, as measured at this scale."""

    spread: float  # standard deviation over seeds, pooled over all runs that have several
    dof: int


def tells_more(seeds: SeedNoise, dof: int) -> bool:
    """Whether the runs of a scale tell more of the noise of a number than its own few seeds do."""
    return 0 < dof < FEW_SEEDS - 1 and seeds.dof > dof


@dataclass(frozen=True)
class Reading:
    """What a cell shows and how well it is known, in the cell's own unit."""

    value: float
    error: float | None = None  # standard error over images, which seeds share; None: not known
    seed_error: float | None = None  # standard error of the mean over seeds; None: one seed
    dof: int = 0  # number of seeds - 1
    per_image: tuple["np.ndarray", ...] = ()  # one array for each seed; the mean of them all is `value`
    images: str = ""  # names the images and their order; cells with the same one are paired
    unit: str = "images"  # what its samples are: images, texts or clips
    source: str = ""  # names the measurement, so that two cells that show the same one are known to be equal
    run: str = ""  # names the training; cells of the same one move together with its seed
    tolerance: float | None = None  # of its column
    is_one_run: bool = False  # of one training; another seed would give another number
    seeds: SeedNoise | None = None  # what seeds do at this scale, its own included; None: not measured

    @property
    def has_noise(self) -> bool:
        return self.error is not None or bool(self.per_image) or self.seed_error is not None

    @property
    def is_known(self) -> bool:
        """Whether its noise is known. A metric that is no mean over images has only that of training."""
        return self.seeds is not None if self.is_one_run else self.has_noise

    @property
    def is_pooled(self) -> bool:
        """Whether it has few seeds, and is judged by others of this scale, too."""
        return self.seeds is not None and tells_more(self.seeds, self.dof)

    @property
    def training(self) -> tuple[float, int] | None:
        """Standard error of the noise of training, and its degrees of freedom; None: it has none, or it is unknown."""
        if self.seeds and self.is_pooled:
            return self.seeds.spread / math.sqrt(self.dof + 1), self.seeds.dof
        if self.is_one_run:
            return self.seeds
        return (self.seed_error, self.dof) if self.seed_error else None


class Unavailable(NamedTuple):
    """The cell has no number and cannot get one at this scale, whatever is run."""

    why: str


Readings = Mapping[Cell, Reading | Unavailable | None]  # None, as well as no entry: the cell has no number yet
