"""How sure a comparison is, given the noise of its cells: how often it holds for numbers drawn around the measured.

Four kinds of noise are drawn. Cells measured on the same images are drawn together, from a normal distribution with
the covariance of their means over images: two models fail on much the same images, so their difference is known better
than either of them. Cells without values by image are drawn alone, from their standard error. Seeds add t-distributed
noise to each cell; a little of it is in the images' noise already, so several seeds are judged on the careful side.
A single run gets the noise that seeds were seen to have at this scale; that of two or three seeds is pooled with it.
Where the noise of a cell is not known, or not all of it, the difference may be off by the tolerance of its column, too.

`>=` and `<=` between cells mean "not worse": they leave room for a margin. Without one, equal models could never be so.

The largest of several noisy numbers is too large on average, and more so when noise is drawn around it. Each drawn
difference is therefore also mirrored at the measured one, and a verdict needs both; for sums and differences of cells
the two are the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import eq, ge, le

import numpy as np

from pipeline.study.claims.formula import Cell, Comparison, Functions, Operator, Sides
from pipeline.study.claims.reading import Reading

DRAWS = 10_000
SURE = 0.975  # both tails together are the usual 5 %
FUNCTIONS: Functions = {
    "min": lambda values: reduce(np.minimum, values),
    "max": lambda values: reduce(np.maximum, values),
    "mean": lambda values: sum(values) / len(values),
}


@dataclass(frozen=True)
class Step:
    """One `left < right` of a comparison; `noise` is half the width of the 95 % interval of the difference."""

    left: float
    right: float
    noise: float
    margin: float  # that `right` is given, or `left` if it should be the smaller one
    unknown: float  # a difference below it says nothing; 0 where the noise of all cells is known
    is_false: bool
    is_equality: bool = False

    @property
    def doubt(self) -> float:
        """The noise in units of the difference."""
        gap = abs(self.left - self.right)
        return self.noise / gap if gap else self.noise and float("inf")


@dataclass(frozen=True)
class ComparisonResult:
    """What the draws say of a comparison: of each step of its chain, and whether all of them hold."""

    steps: list[Step]
    is_true: bool


def draw_comparison(
    comparison: Comparison, readings: Mapping[Cell, Reading], margin: float | None = None, num_steps: int = 1
) -> ComparisonResult:
    """`margin` is the claim's, for cells whose columns have no tolerance; `num_steps` any of which would refute it."""
    measured = comparison.terms({cell: reading.value for cell, reading in readings.items()})
    with np.errstate(divide="ignore", invalid="ignore"):
        # Cells of one run share its seed: their mean has all of its noise, their difference less. Both are asked.
        drawn = [comparison.terms(_draw(readings, is_shared), FUNCTIONS) for is_shared in (False, True)]
    steps, holds = [], np.ones((8, DRAWS), bool)
    for number, (operator, sides) in enumerate(zip(comparison.operators, comparison.sides, strict=True)):
        gaps = np.stack([np.broadcast_to(terms[number] - terms[number + 1], DRAWS) for terms in drawn])
        left, right = measured[number : number + 2]
        step, held = _take_step(left, right, gaps, operator, *_small(operator, sides, readings, margin), num_steps)
        steps.append(step)
        holds &= held
    return ComparisonResult(steps, is_true=bool(holds.mean(axis=1).min() >= SURE))


def _take_step(
    left: float, right: float, gaps: np.ndarray, operator: Operator, room: float, unknown: float, num_steps: int
) -> tuple[Step, np.ndarray]:
    """One step, and in which draws it holds: those around the measured difference, then the same mirrored at it.

    Both are moved down and up by what is not known of the noise: only what holds either way is sure.
    """
    gap, shift = left - right, room if operator is ge else -room
    if operator is eq:  # draws are never equal; the numbers themselves decide
        gaps, unknown = np.full_like(gaps, gap), 0.0
    around = np.concatenate([gaps, 2 * gap - gaps]) + shift
    held = operator(np.concatenate([around - unknown, around + unknown]), 0)
    low, high = np.nanpercentile(gaps, [100 * (1 - SURE), 100 * SURE], axis=1)
    is_false = bool(held.mean(axis=1).max() <= (1 - SURE) / num_steps)
    return Step(left, right, float((high - low).max()) / 2, room, unknown, is_false, operator is eq), held


def _small(
    operator: Operator, sides: Sides, readings: Mapping[Cell, Reading], margin: float | None
) -> tuple[float, float]:
    """What a step leaves room for, and by how much more it may be off where noise is not known."""
    cells = [readings[cell] for side in sides for cell in side]
    room = _tolerance(cells, margin or 0.0) if all(sides) and operator in (ge, le) else 0.0
    left, right = ({_identity(cell, readings[cell]) for cell in side} for side in sides)
    in_doubt = [each for each in cells if not each.is_known] if left != right else []  # equal to itself, without doubt
    return room, _tolerance(in_doubt, margin or np.inf)


def _tolerance(readings: Iterable[Reading], without: float) -> float:
    """The largest tolerance of these cells; `without` is for a column that has none."""
    return max((without if each.tolerance is None else each.tolerance for each in readings), default=0.0)


def _draw(readings: Mapping[Cell, Reading], is_shared: bool) -> dict[Cell, np.ndarray]:
    """DRAWS numbers for each cell; the same measurement in two cells is drawn once.

    `is_shared`: the noise of training moves all cells of a run together.
    """
    generator = np.random.default_rng(0)
    first: dict[object, Cell] = {}  # a measurement -> the first cell that shows it
    for cell, reading in readings.items():
        first.setdefault(_identity(cell, reading), cell)
    once = {cell: readings[cell] for cell in first.values()}
    noise = _noise_of_images(once, generator)
    by_run: dict[object, np.ndarray] = {}
    for cell, reading in once.items():
        spread, dof = reading.training or (0.0, 0)
        if spread:
            normal, scale = generator.standard_normal(DRAWS), np.sqrt(generator.chisquare(dof, DRAWS) / dof)
            if is_shared:
                run = reading.run or cell
                normal, scale = by_run.setdefault(run, normal), by_run.setdefault((run, dof), scale)
            noise[cell] = noise[cell] + spread * normal / scale  # Student's t
    return {cell: reading.value + noise[first[_identity(cell, reading)]] for cell, reading in readings.items()}


def _identity(cell: Cell, reading: Reading) -> object:
    by_image = tuple(values.tobytes() for values in reading.per_image)
    return reading.source or ((reading.images, by_image) if by_image else cell)


def _noise_of_images(readings: Mapping[Cell, Reading], generator: np.random.Generator) -> dict[Cell, np.ndarray]:
    noise: dict[Cell, np.ndarray] = {}
    for together in paired(readings):
        means = np.stack([_by_image(cell, readings[cell]) for cell in together])
        covariance = np.atleast_2d(np.cov(means)) / means.shape[1]
        drawn = generator.multivariate_normal(np.zeros(len(together)), covariance, DRAWS, method="eigh")
        noise |= dict(zip(together, drawn.T, strict=True))
    for cell, reading in readings.items():
        if cell not in noise:
            noise[cell] = generator.standard_normal(DRAWS) * (reading.error or 0.0)
    return noise


def _by_image(cell: Cell, reading: Reading) -> np.ndarray:
    """Values by image, averaged over seeds."""
    values = np.stack(reading.per_image).mean(axis=0, dtype=np.float64)
    if abs(values.mean() - reading.value) > 1e-3 * max(1.0, abs(reading.value)):
        raise ValueError(f"{cell}: the mean over images is {values.mean()}, the cell says {reading.value}")
    return values


def paired(readings: Mapping[Cell, Reading]) -> list[list[Cell]]:
    """Cells with values by image, grouped by the images."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell, reading in readings.items():
        if reading.per_image and len(reading.per_image[0]) > 1:
            groups.setdefault((reading.images, len(reading.per_image[0])), []).append(cell)
    return list(groups.values())
