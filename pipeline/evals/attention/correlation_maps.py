"""How patch vectors of the last layer correlate, position with position (MP3 Fig. 10).

Pearson's correlation over the channels, of two positions in the same image (`within`) or in two different images
(`across`), averaged over the validation images. The paper draws random pairs of images; here the mean is over every
pair of different images, which is what random pairs come close to, and needs no more than a running sum.

`within_mean` and `across_mean` are over pairs of different positions, `within_near` and `across_near` over neighbours
in a row or column, `across_same` over the same position in two images. The vectors are those after the last norm.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.engine.validate import evaluating
from pipeline.evals.attention.attention import reason_not_vit
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, refused_by, spread
from pipeline.evals.heat import SIGNED, bar, coloured, zoom_to
from pipeline.evals.pictures import grid_of_grids
from pipeline.models.patches import Grid, grid_of
from pipeline.models.position import encode, patch_tokens

SIDE, MIN_RANGE = 840, 0.05
GROUPS = 40  # of images


@EVALS.register("correlation_maps")
class CorrelationMaps(Evaluation):
    class Config(EvalConfig):
        name: Literal["correlation_maps"] = "correlation_maps"
        limit: int | None = Field(None, ge=2, description="validation images, spread over the set; null: all")

        metrics: ClassVar[tuple[str, ...]] = ("within_mean", "within_near", "across_mean", "across_near", "across_same")

        files: ClassVar[tuple[str, ...]] = ("within.png", "across.png")

    reason_against = refused_by(reason_not_vit)
    cfg: Config

    @torch.no_grad()
    def compute(self, model: Subject) -> Outcome:
        encoder = model.method.encoder
        grid = grid_of(encoder)
        if grid.size < 2:
            raise ConfigError("the model has one patch; expected at least two, to compare their vectors")
        sums = CorrelationSums(grid)
        chosen = spread(model.run.data.num_val, self.cfg.limit)
        for batch in self.batches(model.run.data, indices=chosen):
            with evaluating(encoder), self.precision():
                tokens = encode(encoder, batch.images)
            sums.add(patch_tokens(encoder, tokens))
        within, across = sums.within(), sums.across()
        others = ~np.eye(grid.size, dtype=bool)
        metrics = {"within_mean": within[others].mean(), "within_near": within[neighbours(grid)].mean()}
        metrics |= across_means(across, grid)
        limit = max(MIN_RANGE, *(float(np.abs(matrix[others]).max()) for matrix in (within, across)))
        return Outcome(
            {name: float(value) for name, value in metrics.items()},
            {name: sums.error(name) for name in sums.each} | sums.across_errors(),
            sums.count,
            files={
                "within.png": _draw(within, grid, limit, "two positions of one image"),
                "across.png": _draw(across, grid, limit, "a position of one image and one of another"),
            },
        )


class CorrelationSums:
    """Running sums over images, from which both matrices follow. With z the vectors of an image, centred and scaled to
    length 1, its correlations are z z'; over all pairs of different images their sum is (sum z)(sum z)' - sum z z'.
    Sums are kept by groups of images, each of which is left out once: pairs share images, so that the errors of means
    over pairs are those of the jackknife.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.near = grid, torch.as_tensor(neighbours(grid), dtype=torch.float)
        self.count = 0
        self.vectors: Tensor | float = 0.0  # (GROUPS, N, D)
        self.own: Tensor | float = 0.0  # (GROUPS, N, N)
        self.each: dict[str, list[Tensor]] = {"within_mean": [], "within_near": []}

    def add(self, tokens: Tensor) -> None:
        """tokens (B, N, D)."""
        vectors = standardised(tokens.float())
        products = vectors @ vectors.transpose(1, 2)  # (B, N, N)
        near = self.near.to(products.device)
        size = products.shape[1]
        off_diagonal = products.sum(dim=(1, 2)) - products.diagonal(dim1=1, dim2=2).sum(dim=1)
        self.each["within_mean"].append((off_diagonal / (size * (size - 1))).cpu())
        self.each["within_near"].append(((products * near).sum(dim=(1, 2)) / near.sum()).cpu())
        group = (self.count + torch.arange(len(tokens), device=products.device)) % GROUPS
        self.count += len(tokens)
        self.vectors = self.vectors + _grouped(vectors.double(), group)
        self.own = self.own + _grouped(products.double(), group)

    def within(self) -> np.ndarray:
        return self._numpy(self.own).sum(axis=0) / self.count

    def across(self) -> np.ndarray:
        return _across(self._numpy(self.vectors).sum(axis=0), self._numpy(self.own).sum(axis=0), self.count)

    def across_errors(self) -> dict[str, float]:
        """Standard errors of `across_means`, from those without the images of each group in turn."""
        vectors, own = self._numpy(self.vectors), self._numpy(self.own)
        totals, sizes = (vectors.sum(axis=0), own.sum(axis=0)), np.bincount(np.arange(self.count) % GROUPS)
        left = [
            across_means(_across(totals[0] - vectors[group], totals[1] - own[group], self.count - size), self.grid)
            for group, size in enumerate(sizes)
            if self.count - size > 1
        ]
        names, share = left[0] if left else {}, (len(left) - 1) ** 2 / max(1, len(left))
        return {name: float(np.sqrt(share * np.var([each[name] for each in left], ddof=1))) for name in names}

    def error(self, name: str) -> float:
        values = torch.cat(self.each[name]).double()
        return float(values.std() / len(values) ** 0.5)

    @staticmethod
    def _numpy(value: Tensor | float) -> np.ndarray:
        return torch.as_tensor(value).cpu().numpy()


def across_means(across: np.ndarray, grid: Grid) -> dict[str, float]:
    """Means of correlations (N, N) between two images: at different positions, at neighbours, at the same position."""
    others = ~np.eye(grid.size, dtype=bool)
    return {
        "across_mean": float(across[others].mean()),
        "across_near": float(across[neighbours(grid)].mean()),
        "across_same": float(across.diagonal().mean()),
    }


def _across(vectors: np.ndarray, own: np.ndarray, count: int) -> np.ndarray:
    return (vectors @ vectors.T - own) / (count * (count - 1))


def _grouped(values: Tensor, group: Tensor) -> Tensor:
    """Sums (GROUPS, ...) of values (B, ...)."""
    return values.new_zeros(GROUPS, *values.shape[1:]).index_add_(0, group, values)


def standardised(vectors: Tensor) -> Tensor:
    """Centred over the last dimension and scaled to length 1: the product of two is their correlation."""
    centred = vectors - vectors.mean(dim=-1, keepdim=True)
    return torch.nn.functional.normalize(centred, dim=-1)


def neighbours(grid: Grid) -> np.ndarray:
    """(N, N) bool: pairs of patches that touch in a row or a column."""
    place = grid.coordinates()
    return (torch.cdist(place.float(), place.float(), p=1) == 1).numpy()


def _draw(matrix: np.ndarray, grid: Grid, limit: float, what: str) -> bytes:
    """Row i of the matrix as a small map, drawn where patch i lies."""
    maps = coloured((matrix + limit) / (2 * limit), SIGNED).unflatten(2, tuple(grid))  # (3, N, rows, cols)
    ticks = [(0.0, f"{-limit:.2f}"), (0.5, "0"), (1.0, f"{limit:.2f}")]
    text = (
        f"Pearson correlation of the last layer's vectors at {what}. Each small map belongs to the patch at its place, "
        "framed in it; its cells are the patches it is compared with."
    )
    zoom = zoom_to(SIDE, max(grid.rows**2, grid.cols**2))
    return grid_of_grids(maps.transpose(0, 1), grid, zoom, lambda width: bar(SIGNED, ticks, text, width))
