"""What a table of position embeddings holds (MJP Tables 6 and 8, Fig. 4), of a run or of a weight file.

`ev3` is Definition 1 with three dimensions: the leading squared singular values over all of them, in per cent.
`energy_3` is the same without the squares: Fig. 4 speaks of singular values and of eigenvalues, so it may show either.
The paper says neither whether the table is centred nor whether CLS is in it. PCA centres, and Table 8 drops CLS, so
both are done here; the 54.61 / 68.55 / 77.95 / 85.54 / 90.74 % that it prints for 3 to 7 dimensions of the published
DeiT-S would tell, but have not been compared.

`mae_1d` and `mae_2d` are mean absolute errors, on the held-out fifth, of a linear regression from the embedding to the
index and to (row, column), the mean of both. The paper does not say what its +/- is; `mae_1d_pm` is the standard
deviation over `repeats` shuffles of the rows into folds.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.models.patches import Encoder, Grid
from pipeline.models.position import position_grid, position_table

TARGETS = ("mae_1d", "mae_2d")
ONE_TABLE = "a model has one table of positions, which is no sample"


@EVALS.register("position_embeddings")
class PositionEmbeddings(Evaluation):
    class Config(EvalConfig):
        name: Literal["position_embeddings"] = "position_embeddings"
        dims: tuple[Annotated[int, Field(ge=1)], ...] = Field(tuple(range(1, 21)), min_length=1)
        """Numbers of leading dimensions whose share of the variance is measured."""
        centred: bool = Field(True, description="subtract the mean embedding before the SVD, as PCA does")
        with_cls: bool = Field(False, description="the row of CLS is part of the SVD; never of the regression")
        folds: int = Field(5, ge=2)
        """Parts of the table; each is predicted by a regression on the others."""
        repeats: int = Field(10, ge=2, description="shuffles of the rows into folds")

        @property
        def metrics(self) -> tuple[str, ...]:
            shares = [name for dim in self.dims for name in (f"ev{dim}", f"energy_{dim}")]
            return (*shares, *(name for target in TARGETS for name in (target, f"{target}_pm")))

    without_error = MappingProxyType(
        {
            "ev*": ONE_TABLE,
            "energy_*": ONE_TABLE,
            "*_pm": "it is a spread itself",
        }
    )
    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        return reason_without_table(subjects)

    def compute(self, model: Subject) -> Outcome:
        prefix, patches, grid = tables_of(model.method.encoder)
        table = np.concatenate([prefix, patches]) if self.cfg.with_cls else patches
        metrics, reasons = self._shares(singular_values(table, self.cfg.centred))
        if grid.size < self.cfg.folds:
            names = [name for target in TARGETS for name in (target, f"{target}_pm")]
            few = f"{grid.size} patches cannot be divided into {self.cfg.folds} folds"
            return Outcome(metrics, reasons=reasons | dict.fromkeys(names, few))
        errors = {}
        for name, target in zip(TARGETS, (np.arange(grid.size), grid.coordinates().numpy()), strict=True):
            found = regression_errors(patches, target, self.cfg.folds, self.cfg.repeats, self.cfg.seed)
            spread = float(found.std(ddof=1))
            metrics |= {name: float(found.mean()), f"{name}_pm": spread}
            errors[name] = spread / len(found) ** 0.5
        return Outcome(metrics, errors, reasons=reasons)

    def _shares(self, values: np.ndarray) -> tuple[dict[str, float], dict[str, str]]:
        """Explained variance and energy in per cent; the reason, where all embeddings are the same."""
        if not values.any():
            names = [name for name in self.cfg.metrics if name.startswith(("ev", "energy"))]
            return {}, dict.fromkeys(names, "all position embeddings are equal: there is no variance to explain")
        squared, plain = (100 * (total / total[-1]) for total in (np.cumsum(values**2), np.cumsum(values)))
        kept = {dim: min(dim, len(values)) - 1 for dim in self.cfg.dims}
        variance = {f"ev{dim}": float(squared[last]) for dim, last in kept.items()}
        return variance | {f"energy_{dim}": float(plain[last]) for dim, last in kept.items()}, {}


def reason_without_table(subjects: Mapping[str, RunConfig]) -> str:
    """Why a model has no table of absolute positions."""
    for run in subjects.values():
        if run.model.table == "none":
            kinds = {"none": "no position embeddings", "relative": "relative positions"}
            kind = kinds.get(run.model.positions, "rotary positions")
            return f"{run.model.arch} has {kind} here; there is no table of absolute ones"
    return ""


def tables_of(encoder: Encoder) -> tuple[np.ndarray, np.ndarray, Grid]:
    """Embeddings of the prefix tokens (P, D), those of the patches (N, D), in float64, and the grid of the patches."""
    table, grid = position_table(encoder).detach().cpu().double().numpy(), position_grid(encoder)
    num_prefix = len(table) - grid.size  # of the prefix tokens, some have no position
    return table[:num_prefix], table[num_prefix:], grid


def singular_values(table: np.ndarray, centred: bool) -> np.ndarray:
    return np.linalg.svd(table - table.mean(axis=0) if centred else table, compute_uv=False)


def regression_errors(table: np.ndarray, target: np.ndarray, folds: int, repeats: int, seed: int) -> np.ndarray:
    """(repeats,): mean absolute error on held-out rows, the mean over folds, for each shuffle of the rows.

    With more dimensions than rows the fit is the interpolation of smallest norm.
    """
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import cross_val_score

    rng, found = np.random.default_rng(seed), []
    for _ in range(repeats):
        order = rng.permutation(len(table))
        scores = cross_val_score(
            LinearRegression(), table[order], target[order], cv=folds, scoring="neg_mean_absolute_error"
        )
        found.append(-scores.mean())
    return np.array(found)
