"""Patches of two images, mixed and put together by MP3 (MP3 Figs 14 and 15).

The patches of both are pooled, shuffled and divided into two sets of N. Each set is ordered by the positions that MP3
names, the mean where several patches meet, pale blue where none is. One row for each evaluation eta; the context is
outlined in green in the input.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, only_for
from pipeline.evals.pictures import labelled_grid, note, outlined, place_patches
from pipeline.evals.positions.mp3_positions import named_positions, num_context
from pipeline.methods.mp3 import MP3
from pipeline.models.patches import Grid, to_images, to_patches

COLUMNS = ["original 1", "original 2", "input 1", "rebuilt 1", "input 2", "rebuilt 2"]
NOTE = (
    "The patches of both originals are mixed and divided into two inputs. Outlined in green: the context, which alone "
    "gives keys. Rebuilt: each patch at the position that is named for it, the mean where several meet, pale blue "
    "where none is."
)


@EVALS.register("mixed_pictures")
class MixedPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["mixed_pictures"] = "mixed_pictures"
        etas: tuple[Percent, ...] = Field((0, 25, 50, 75), min_length=1)
        """Mask ratios (eta), one column each, in per cent."""
        pairs: int = Field(2, ge=1, description="pairs of images of different classes")

        files: ClassVar[tuple[str, ...]] = ("mixed.png",)

    reason_against = only_for("mp3")
    needs_pixels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        pictures, inputs = self.pictures_and_inputs(model.run.data, 2 * self.cfg.pairs)
        generator = torch.Generator().manual_seed(self.cfg.seed)
        rows: list[tuple[str, list[Tensor | None]]] = []
        for number in range(self.cfg.pairs):
            originals = pictures[2 * number : 2 * number + 2]
            for place, (eta, shown) in enumerate(
                self._rows(model.method, originals, inputs[2 * number : 2 * number + 2], generator)
            ):
                first: list[Tensor | None] = [None, None] if place else [*originals]
                rows.append((f"{number + 1}: eta {eta / 100:g}", [*first, *shown]))
        return Outcome(files={"mixed.png": labelled_grid(rows, COLUMNS, foot=lambda width: note(NOTE, width))})

    @torch.no_grad()
    def _rows(
        self, method: MP3, pictures: Tensor, inputs: Tensor, generator: torch.Generator
    ) -> list[tuple[int, list[Tensor]]]:
        """For each eta, input and rebuilt image of both sets."""
        grid = method.grid
        pool = torch.rand(2 * grid.size, generator=generator).argsort()
        order = torch.rand(2, grid.size, generator=generator).argsort(dim=1)
        shown, seen = mixed(pictures, pool, grid), mixed(inputs, pool.to(inputs.device), grid)
        rows = []
        for eta in self.cfg.etas:
            with self.precision():
                named = named_positions(method, seen, order, eta)
            sets = zip(shown, order, named, strict=True)
            count = num_context(method, eta)
            rows.append((eta, [image for each in sets for image in _input_and_rebuilt(*each, grid, count)]))
        return rows


def mixed(images: Tensor, pool: Tensor, grid: Grid) -> Tensor:
    """(2, C, H, W) -> (2, C, H, W): slot s of both, counted through, shows patch pool[s] of both, counted through."""
    patches = to_patches(images, grid)
    return to_images(patches.flatten(0, 1)[pool].view_as(patches), images.shape[2:], grid)


def _input_and_rebuilt(image: Tensor, order: Tensor, named: Tensor, grid: Grid, count: int) -> tuple[Tensor, Tensor]:
    return outlined(image, grid, order[:count]), place_patches(image, grid, order, named)
