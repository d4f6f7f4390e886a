"""Where the heads of a ViT look, relative to the patch that asks (MP3 Figs 8 and 11), and how widely.

A map has a pixel for each offset between two patches, (2 rows - 1) x (2 cols - 1) of them: the mean attention from a
patch to the one at that offset, over validation images and over the patches that have one there. CLS neither asks nor
answers: what is left of each row is scaled to sum to 1. `entropy_layer_03` is the entropy of these rows in nats, the
mean over patches, heads and images. Layers are counted from 1, as in the paper.

Fig. 8 (`local_heads`) has few heads of each layer: those with the lowest entropy in one model, the MP3 model, and the
same heads of the models that were finetuned from it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.engine.run import RunConfig
from pipeline.evals.attention.attention import attention_of, entropies, look_at_attention, over_patches, reason_not_vit
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, refused_by, spread
from pipeline.evals.heat import bar_of_multiples, enlarged, limit_of, of_multiples, zoom_to
from pipeline.evals.pictures import labelled_grid
from pipeline.models.patches import Encoder, Grid, grid_of

SIDE = 112  # px of a map, or a little less
ChosenHeads = Mapping[int, list[int]]  # layer -> its heads, in the order in which they are drawn


@EVALS.register("attention_maps")
class AttentionMaps(Evaluation):
    class Config(EvalConfig):
        name: Literal["attention_maps"] = "attention_maps"
        layers: tuple[Annotated[int, Field(ge=1, le=99)], ...] = Field(tuple(range(1, 13)), min_length=1)
        """Blocks whose attention is measured, counted from 1."""
        limit: int | None = Field(None, ge=2, description="validation images, spread over the set; null: all")

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(entropy_of(layer) for layer in self.layers)

        files: ClassVar[tuple[str, ...]] = ("maps.png",)

    reason_against = refused_by(reason_not_vit)
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        return self._outcome(model, self._look(model))

    def _look(self, model: Subject) -> dict[int, "HeadSums"]:
        """What was seen of each layer."""
        encoder = model.method.encoder
        depth = len(encoder.blocks)
        layers = [layer for layer in self.cfg.layers if layer <= depth]
        if not layers:
            raise ConfigError(f"layers {list(self.cfg.layers)}: the model has {depth}; name one of them")
        seen = {layer: HeadSums(encoder, attention_of(encoder.blocks[layer - 1]).num_heads) for layer in layers}
        chosen = spread(model.run.data.num_val, self.cfg.limit)
        for batch in self.batches(model.run.data, indices=chosen):
            with self.precision():
                look_at_attention(encoder, batch.images, lambda block, found: _give(seen, block, found))
        return seen

    def _outcome(self, model: Subject, seen: "dict[int, HeadSums]", heads: "ChosenHeads | None" = None) -> Outcome:
        encoder = model.method.encoder
        depth = len(encoder.blocks)
        return Outcome(
            {entropy_of(layer): sums.entropy for layer, sums in seen.items()},
            {entropy_of(layer): sums.entropy_error for layer, sums in seen.items()},
            next(iter(seen.values())).count,
            reasons={
                entropy_of(layer): f"the model has {depth} layers" for layer in self.cfg.layers if layer not in seen
            },
            files={"maps.png": draw_maps(seen, heads, grid_of(encoder))},
        )


@EVALS.register("local_heads")
class LocalHeads(AttentionMaps):
    class Config(AttentionMaps.Config):
        name: Literal["local_heads"] = "local_heads"  # type: ignore[assignment]
        lowest_entropy: int = Field(5, ge=1, description="heads of each layer, those of lowest entropy in the chooser")

    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        model, chooser = subjects["model"].model, subjects["chooser"].model
        if reason := reason_not_vit(subjects):
            return reason
        sizes = [(run.arch, run.depth, run.num_heads) for run in (model, chooser)]
        return "" if sizes[0] == sizes[1] else f"{model.name} does not have the heads of {chooser.name}"

    def compute(self, model: Subject, chooser: Subject) -> Outcome:  # type: ignore[override]
        """Heads are those in which the chooser looks least widely; it may be the model itself."""
        seen = self._look(model)
        by = seen if chooser.run.name == model.run.name else self._look(chooser)
        heads = {layer: lowest(sums.entropies, self.cfg.lowest_entropy) for layer, sums in by.items()}
        return self._outcome(model, seen, heads)


class HeadSums:
    """Sums over images for the heads of one layer."""

    def __init__(self, encoder: Encoder, num_heads: int) -> None:
        self.encoder, self.num_heads = encoder, num_heads
        self.grid = grid_of(encoder)
        self.offsets = offsets_of(self.grid)
        self.totals = torch.zeros(num_heads, 2 * (self.grid.rows - 1) + 1, 2 * (self.grid.cols - 1) + 1).double()
        self.each: list[Tensor] = []  # (B, heads): entropy, the mean over the patches that ask

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.each)

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
        return (self.totals / (pairs * self.count)).numpy()

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


def draw_maps(seen: Mapping[int, HeadSums], chosen: ChosenHeads | None, grid: Grid) -> bytes:
    """A row for each layer, a column for each head, or for each of the chosen ones."""
    heads = chosen or {layer: [*range(len(sums.entropies))] for layer, sums in seen.items()}
    times = {layer: sums.maps[heads[layer]] * grid.size for layer, sums in seen.items()}
    limit = limit_of(np.concatenate([maps.flatten() for maps in times.values()]))
    zoom = zoom_to(SIDE, 2 * max(grid) - 1)
    rows, captions = [], []
    for layer, sums in seen.items():
        rows.append((f"layer {layer}", [_tile(each, limit, zoom) for each in times[layer]]))
        numbers = [f"head {head + 1}, " if chosen else "" for head in heads[layer]]
        entropy = [f"H {sums.entropies[head]:.2f}" for head in heads[layer]]
        captions.append([number + value for number, value in zip(numbers, entropy, strict=True)])
    columns = [f"{n}." if chosen else f"head {n}" for n in range(1, 1 + max(map(len, heads.values())))]
    text = (
        f"Mean attention to the patch at each offset, as a multiple of uniform attention (1/{grid.size}), log scale. "
        f"The framed pixel is the patch itself. H: entropy in nats (uniform: {math.log(grid.size):.2f})."
    )
    return labelled_grid(rows, columns, captions, lambda width: bar_of_multiples(limit, text, width))


def lowest(entropy: Sequence[float], count: int) -> list[int]:
    """So many heads, by rising entropy."""
    return sorted(range(len(entropy)), key=entropy.__getitem__)[:count]


def _tile(times: np.ndarray, limit: float, zoom: int) -> Tensor:
    """A map enlarged, with a thin frame around the pixel in the middle."""
    result = enlarged(of_multiples(times, limit), zoom)
    top, left = (result.shape[1] - zoom) // 2, (result.shape[2] - zoom) // 2
    middle = result[:, top : top + zoom, left : left + zoom]
    inner = middle[:, 1:-1, 1:-1].clone()
    middle[:] = 60
    middle[:, 1:-1, 1:-1] = inner
    return result
