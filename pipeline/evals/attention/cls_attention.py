"""What CLS looks at in the last block, head by head (MJP Fig. 8), and how different its heads are.

The attention from CLS to the patches, scaled to sum to 1, one pixel for each patch, enlarged without smoothing. The
paper says that MJP's heads are more diverse, without a number. `head_diversity` is one: the mean over images and pairs
of heads of the total variation distance between their maps, half the sum of absolute differences; 0 for equal maps, 1
for maps that do not meet. `cls_entropy` is the entropy of the maps in nats, the mean over heads and images.
"""

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from pipeline.evals.attention.attention import entropies, look_at_attention, normalised, reason_not_vit
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, refused_by, spread
from pipeline.evals.heat import bar_of_multiples, limit_of, of_multiples
from pipeline.evals.pictures import MIN_SIDE, labelled_grid
from pipeline.models.patches import Encoder, grid_of
from pipeline.models.position import num_prefix_tokens, refuse_without_cls

METRICS = ("head_diversity", "cls_entropy")


@EVALS.register("cls_attention")
class CLSAttention(Evaluation):
    class Config(EvalConfig):
        name: Literal["cls_attention"] = "cls_attention"
        images: int = Field(4, ge=1, description="rows of the picture, each of another class while there are classes")
        limit: int | None = Field(
            None, ge=2, description="validation images of the metrics, spread over the set; null: all"
        )

        metrics: ClassVar[tuple[str, ...]] = METRICS

        files: ClassVar[tuple[str, ...]] = ("attention.png",)

    reason_against = refused_by(reason_not_vit)
    needs_pixels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        encoder = model.method.encoder
        chosen = spread(model.run.data.num_val, self.cfg.limit)
        batches = self.batches(model.run.data, indices=chosen)
        parts = [self._measure(encoder, batch.images) for batch in batches]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        count = len(next(iter(values.values())))
        return Outcome(
            {name: float(each.mean()) for name, each in values.items()},
            {name: float(each.std() / count**0.5) for name, each in values.items()},
            count,
            reasons={name: "the model has one head, and no pairs of them" for name in METRICS if name not in values},
            files={"attention.png": self._draw(model)},
        )

    def _measure(self, encoder: Encoder, images: Tensor) -> dict[str, Tensor]:
        """For each image (B,), the metrics."""
        with self.precision():
            maps = cls_maps(encoder, images)
        found = {"cls_entropy": entropies(maps).mean(dim=1).double().cpu()}
        if maps.shape[1] > 1:
            found["head_diversity"] = head_diversity(maps).double().cpu()
        return found

    def _draw(self, model: Subject) -> bytes:
        grid = grid_of(model.method.encoder)
        pictures, inputs = self.pictures_and_inputs(model.run.data, self.cfg.images)
        with self.precision():
            maps = cls_maps(model.method.encoder, inputs).cpu()
        small, times = shrunk(pictures), (maps * grid.size).numpy()
        limit = limit_of(times)
        rows = [
            (f"image {number + 1}", [picture, *(_tile(head.reshape(grid), limit, small) for head in heads)])
            for number, (picture, heads) in enumerate(zip(small, times, strict=True))
        ]
        text = (
            "Attention from CLS to each patch in the last layer, as a multiple of uniform attention "
            f"(1/{grid.size}), log scale."
        )
        headings = ["original", *(f"head {head + 1}" for head in range(maps.shape[1]))]
        return labelled_grid(rows, headings, foot=lambda width: bar_of_multiples(limit, text, width))


def cls_maps(encoder: Encoder, images: Tensor) -> Tensor:
    """(B, heads, N): attention from CLS to the patches in the last block, scaled to sum to 1."""
    refuse_without_cls(encoder)
    last, kept = len(encoder.blocks) - 1, []

    def see(block: int, attention: Tensor) -> None:
        if block == last:
            kept.append(attention[:, :, 0, num_prefix_tokens(encoder) :].float())

    look_at_attention(encoder, images, see)
    return normalised(kept[0])


def head_diversity(maps: Tensor) -> Tensor:
    """(B, heads, N) -> (B,): mean over pairs of heads of half the sum of absolute differences."""
    one, other = torch.triu_indices(maps.shape[1], maps.shape[1], offset=1)
    return (maps[:, one] - maps[:, other]).abs().sum(dim=2).mean(dim=1) / 2


def shrunk(pictures: Tensor) -> Tensor:
    """Large pictures at a whole fraction of their size, so that a row of heads fits a page."""
    factor = max(1, math.floor(min(pictures.shape[2:]) / MIN_SIDE))
    return F.avg_pool2d(pictures.float(), factor).round().to(torch.uint8)


def _tile(times: np.ndarray, limit: float, pictures: Tensor) -> Tensor:
    """A map, each pixel as large as its patch is in the pictures."""
    return F.interpolate(of_multiples(times, limit)[None], size=pictures.shape[2:])[0]
