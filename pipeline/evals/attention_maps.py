"""Where the heads of a ViT look, relative to the patch that asks (MP3 Figs 8 and 11), and how widely.

A map has a pixel for each offset between two patches, (2 rows - 1) x (2 cols - 1) of them: the mean attention from a
patch to the one at that offset, over validation images and over the patches that have one there. CLS neither asks nor
answers: what is left of each row is scaled to sum to 1. `entropy_layer_03` is the entropy of these rows in nats, the
mean over patches, heads and images. Layers are counted from 1, as in the paper.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.evals.attention import attention_of, entropies, look_at_attention, over_patches, reason_not_vit
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, refused_by, spread
from pipeline.evals.heat import bar_of_multiples, enlarged, limit_of, of_multiples, zoom_to
from pipeline.evals.pictures import labelled_grid
from pipeline.models.patches import Encoder, Grid, grid_of

SIDE = 112  # px of a map, or a little less


@EVALS.register("attention_maps")
class AttentionMaps(Evaluation):
    class Config(EvalConfig):
        name: Literal["attention_maps"] = "attention_maps"
        layers: tuple[Annotated[int, Field(ge=1, le=99)], ...] = Field(tuple(range(1, 13)), min_length=1)
        lowest_entropy: int | None = Field(
            None, ge=1, description="draw only so many heads of each layer, those of lowest entropy; null: all"
        )
        limit: int | None = Field(None, ge=2, description="validation images, spread over the set; null: all")

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(entropy_of(layer) for layer in self.layers)

        @property
        def files(self) -> tuple[str, ...]:
            return ("maps.png",)

    reason_against = refused_by(reason_not_vit)
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        encoder = model.method.encoder
        depth = len(encoder.blocks)
        layers = [layer for layer in self.cfg.layers if layer <= depth]
        if not layers:
            raise ConfigError(f"layers {list(self.cfg.layers)}: the model has {depth}; name one that it has")
        seen = {layer: HeadSums(encoder, attention_of(encoder.blocks[layer - 1]).num_heads) for layer in layers}
        count = 0
        chosen = spread(model.run.data.num_val, self.cfg.limit)
        for batch in self.batches(model.run.data, indices=chosen):
            count += len(batch.images)
            with self.precision():
                look_at_attention(encoder, batch.images, lambda block, found: _give(seen, block, found))
        return Outcome(
            {entropy_of(layer): sums.entropy for layer, sums in seen.items()},
            {entropy_of(layer): sums.entropy_error for layer, sums in seen.items()},
            count,
            reasons={
                entropy_of(layer): f"the model has {depth} layers" for layer in self.cfg.layers if layer not in seen
            },
            files={"maps.png": draw_maps(seen, self.cfg.lowest_entropy, grid_of(encoder))},
        )


class HeadSums:
    """Sums over images for the heads of one layer."""

    def __init__(self, encoder: Encoder, num_heads: int) -> None:
        self.encoder, self.num_heads = encoder, num_heads
        self.grid = grid_of(encoder)
        self.offsets = offsets_of(self.grid)
        self.totals = torch.zeros(num_heads, 2 * (self.grid.rows - 1) + 1, 2 * (self.grid.cols - 1) + 1).double()
        self.each: list[Tensor] = []  # (B, heads): entropy, the mean over the patches that ask

    def add(self, attention: Tensor) -> None:
        """(B, heads, P+N, P+N)."""
        between = over_patches(attention, self.encoder)
        self.each.append(entropies(between).mean(dim=2).double().cpu())
        total = between.sum(dim=0, dtype=torch.float64).flatten(1).cpu()  # (heads, N * N)
        self.totals.view(self.num_heads, -1).index_add_(1, self.offsets.flatten(), total)

    @property
    def maps(self) -> np.ndarray:
        """(heads, 2 rows - 1, 2 cols - 1): mean attention at each offset."""
        pairs = torch.bincount(self.offsets.flatten(), minlength=self.totals[0].numel()).view_as(self.totals[0])
        return (self.totals / (pairs * sum(len(part) for part in self.each))).numpy()

    @property
    def entropies(self) -> list[float]:
        """Of each head."""
        return torch.cat(self.each).mean(dim=0).tolist()

    @property
    def entropy(self) -> float:
        return float(torch.cat(self.each).mean())

    @property
    def entropy_error(self) -> float:
        per_image = torch.cat(self.each).mean(dim=1)
        return float(per_image.std() / len(per_image) ** 0.5)


def _give(seen: Mapping[int, HeadSums], block: int, attention: Tensor) -> None:
    if block + 1 in seen:
        seen[block + 1].add(attention)


def entropy_of(layer: int) -> str:
    """The name of a metric."""
    return f"entropy_layer_{layer:02d}"


def offsets_of(grid: Grid) -> Tensor:
    """(N, N): for a patch that asks and one that answers, the pixel of the map; the middle one is the patch itself."""
    place = grid.coordinates()
    rows, cols = (place[None] - place[:, None] + torch.tensor(grid) - 1).unbind(dim=2)
    return rows * (2 * grid.cols - 1) + cols


def draw_maps(seen: Mapping[int, HeadSums], lowest_entropy: int | None, grid: Grid) -> bytes:
    """A row for each layer, a column for each head, or for each of those with the lowest entropy."""
    heads = {layer: chosen_heads(sums.entropies, lowest_entropy) for layer, sums in seen.items()}
    times = {layer: sums.maps[heads[layer]] * grid.size for layer, sums in seen.items()}
    limit = limit_of(np.concatenate([maps.flatten() for maps in times.values()]))
    zoom = zoom_to(SIDE, 2 * max(grid) - 1)
    rows, captions = [], []
    for layer, sums in seen.items():
        rows.append((f"layer {layer}", [_tile(each, limit, zoom) for each in times[layer]]))
        numbers = [f"head {head + 1}, " if lowest_entropy else "" for head in heads[layer]]
        entropy = [f"H {sums.entropies[head]:.2f}" for head in heads[layer]]
        captions.append([number + value for number, value in zip(numbers, entropy, strict=True)])
    columns = [f"{n}." if lowest_entropy else f"head {n}" for n in range(1, 1 + max(map(len, heads.values())))]
    text = (
        f"Mean attention to the patch at each offset, as a multiple of uniform attention (1/{grid.size}), log scale. "
        f"The framed pixel is the patch itself. H: entropy in nats (uniform: {math.log(grid.size):.2f})."
    )
    return labelled_grid(rows, columns, captions, lambda width: bar_of_multiples(limit, text, width))


def chosen_heads(entropy: Sequence[float], lowest: int | None) -> list[int]:
    """All heads in order, or so many by rising entropy."""
    return sorted(range(len(entropy)), key=entropy.__getitem__)[:lowest] if lowest else list(range(len(entropy)))


def _tile(times: np.ndarray, limit: float, zoom: int) -> Tensor:
    """A map enlarged, with a thin frame around the pixel in the middle."""
    result = enlarged(of_multiples(times, limit), zoom)
    top, left = (result.shape[1] - zoom) // 2, (result.shape[2] - zoom) // 2
    middle = result[:, top : top + zoom, left : left + zoom]
    inner = middle[:, 1:-1, 1:-1].clone()
    middle[:] = 60
    middle[:, 1:-1, 1:-1] = inner
    return result
