"""A table of position embeddings in three dimensions by PCA and in two by UMAP (MJP Figs 1 and 7).

Each point is the embedding of a patch, in the colour of its place on the grid, joined to its neighbours in its row and
column. The axes of the PCA are those of the centred patches; CLS is projected onto them. UMAP sees the patches alone.
The paper gives none of its settings: these are the defaults of umap-learn, with fewer neighbours where there are few
patches.
"""

import functools
import io
import warnings
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, refused_by
from pipeline.evals.positions.position_embeddings import reason_without_table, tables_of
from pipeline.models.patches import Grid

# Top left, top right, bottom left, bottom right; every other place has a mixture.
CORNERS = np.array([(10, 92, 200), (196, 30, 122), (16, 148, 84), (240, 140, 10)]) / 255
INK, MUTED, LINE = "#1a1d21", "#596069", "#c3c9d0"
MAX_LABELLED = 100  # patches; the numbers of more would cover each other
DPI = 110


@EVALS.register("embedding_pictures")
class EmbeddingPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["embedding_pictures"] = "embedding_pictures"
        neighbours: int = Field(15, ge=2, description="n_neighbors of UMAP; at most one less than there are patches")
        min_dist: float = Field(0.1, ge=0, le=1, description="min_dist of UMAP")

        files: ClassVar[tuple[str, ...]] = ("pca.png", "umap.png")

    reason_against = refused_by(reason_without_table)
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        prefix, patches, grid = tables_of(model.method.encoder)
        points = projected(patches, self.cfg.neighbours, self.cfg.min_dist, self.cfg.seed)
        return Outcome(files={"pca.png": draw_pca(prefix[:1], patches, grid), "umap.png": draw_umap(points, grid)})


def principal(table: np.ndarray, others: np.ndarray, count: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N, count) and (n, count): both on the main directions of the first; and each direction's share of variance."""
    mean = table.mean(axis=0)
    _, values, directions = np.linalg.svd(table - mean, full_matrices=False)
    missing = count - len(values)
    axes, values = np.pad(directions, ((0, max(0, missing)), (0, 0)))[:count], np.pad(values, (0, max(0, missing)))
    # A direction has no sign of its own; one is chosen so that pictures of equal tables are equal.
    axes = axes * np.where(axes.sum(axis=1, keepdims=True) < 0, -1, 1)
    shares = values[:count] ** 2 / max((values**2).sum(), np.finfo(float).tiny)
    return (table - mean) @ axes.T, (others - mean) @ axes.T, shares


def projected(table: np.ndarray, neighbours: int, min_dist: float, seed: int) -> np.ndarray:
    """(N, 2) by UMAP, the same for the same seed."""
    umap = _umap()
    if len(table) < 3:
        return np.pad(table[:, :1], ((0, 0), (0, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one seed means one thread, which is what is wanted
        reducer = umap.UMAP(
            n_neighbors=min(neighbours, len(table) - 1),
            min_dist=min_dist,
            init="spectral" if len(table) > 8 else "random",  # too few for eigenvectors
            random_state=seed,
            n_jobs=1,
        )
        threads = torch.get_num_threads()
        try:
            return reducer.fit_transform(table.astype(np.float32))
        finally:
            torch.set_num_threads(threads)  # umap leaves all cores to OpenMP: sums of torch would end in other digits


@functools.cache
def _umap() -> Any:
    """umap-learn, told to keep its compiled code: each process would compile for 14 s what it then runs in 0.1 s."""
    import umap
    import umap.layouts
    import umap.umap_
    import umap.utils

    for module in (umap.umap_, umap.layouts, umap.utils):
        for function in vars(module).values():
            if hasattr(function, "enable_caching"):
                try:
                    function.enable_caching()
                except RuntimeError:  # nowhere to write: it is compiled again
                    return umap
    return umap


# Drawing


def draw_pca(cls: np.ndarray, patches: np.ndarray, grid: Grid) -> bytes:
    """In three dimensions, and the first two of them flat."""
    points, cls_at, shares = principal(patches, cls)
    figure = _figure(10.4, 4.7)
    names = [f"component {n} ({100 * share:.0f} %)" for n, share in enumerate(shares, start=1)]
    solid = figure.add_axes((0.0, 0.02, 0.47, 0.88), projection="3d")
    solid.view_init(elev=22, azim=-58)
    flat = figure.add_axes((0.54, 0.13, 0.32, 0.74))
    for axes, dims in ((solid, 3), (flat, 2)):
        _draw_mesh(axes, points[:, :dims], grid)
        axes.scatter(*points[:, :dims].T, c=place_colours(grid), s=26, edgecolors="white", linewidths=0.4, zorder=3)
        for place in cls_at[:, :dims]:
            axes.scatter(*place[:, None], c=INK, marker="*", s=120, zorder=4)
            axes.text(*place, "  CLS", color=INK, fontsize=9, zorder=4)
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
    solid.set_zlabel(names[2])
    for axis in (solid.xaxis, solid.yaxis, solid.zaxis):
        axis.set_pane_color((0.97, 0.973, 0.98, 1.0))
        axis.line.set_color(LINE)
        axis._axinfo["grid"].update(color="#e3e6ea", linewidth=0.6)
    solid.set_box_aspect(None, zoom=0.9)
    figure.text(
        0.02,
        0.94,
        f"PCA of {grid.size} position embeddings: {100 * shares.sum():.0f} % of their variance in 3 dimensions",
    )
    _draw_key(figure, (0.905, 0.6, 0.085, 0.2), grid)
    return _png(figure)


def draw_umap(points: np.ndarray, grid: Grid) -> bytes:
    figure = _figure(7.2, 5.6)
    axes = figure.add_axes((0.03, 0.04, 0.78, 0.87))
    _draw_mesh(axes, points, grid)
    labelled = grid.size <= MAX_LABELLED
    colours = place_colours(grid)
    axes.scatter(*points.T, c=colours, s=210 if labelled else 46, edgecolors="white", linewidths=0.6, zorder=3)
    if labelled:
        for number, (x, y) in enumerate(points):
            axes.text(x, y, str(number), color="white", fontsize=7, ha="center", va="center_baseline", zorder=4)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    figure.text(0.03, 0.945, f"UMAP of {grid.size} position embeddings; lines join neighbours on the grid")
    _draw_key(figure, (0.835, 0.66, 0.14, 0.2), grid)
    return _png(figure)


def place_colours(grid: Grid) -> np.ndarray:
    """(N, 3): a mixture of the corners' colours, by how near each patch is to them."""
    rows, cols = np.linspace(0, 1, grid.rows), np.linspace(0, 1, grid.cols)
    down, right = (part.reshape(-1, 1) for part in np.meshgrid(rows, cols, indexing="ij"))
    weights = np.hstack([(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right])
    return weights @ CORNERS


def _draw_mesh(axes: Any, points: np.ndarray, grid: Grid) -> None:
    """Lines along the rows and the columns of the grid."""
    cells = points.reshape(grid.rows, grid.cols, -1)
    for line in [*cells, *cells.swapaxes(0, 1)]:
        axes.plot(*line.T, color=LINE, linewidth=0.8, alpha=0.75, zorder=1)


def _draw_key(figure: Any, where: tuple[float, float, float, float], grid: Grid) -> None:
    """The grid of patches in its colours."""
    key = figure.add_axes(where)
    key.imshow(place_colours(grid).reshape(grid.rows, grid.cols, 3), interpolation="nearest")
    key.set(xticks=[0, grid.cols - 1], yticks=[0, grid.rows - 1], xlabel="column", ylabel="row")
    key.set_title("patch", fontsize=9, color=MUTED)
    key.tick_params(labelsize=7, length=2)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Any) -> bytes:
    for axes in figure.axes:
        _quieten(axes)
    for text in figure.texts:
        text.set(color=INK, fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _quieten(axes: Any) -> None:
    """Muted axes, so that the points are what is seen."""
    for axis in (axes.xaxis, axes.yaxis, *([axes.zaxis] if hasattr(axes, "zaxis") else [])):
        axis.label.set(color=MUTED, fontsize=9)
        axis.set_tick_params(colors=MUTED, labelsize=7)
    for spine in axes.spines.values():
        spine.set_color(LINE)
