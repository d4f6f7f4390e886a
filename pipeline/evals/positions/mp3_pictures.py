"""Images put together again from the positions that MP3 predicts (MP3 Figs 2, 12, 13).

For each image three rows: the context patches in place; the input without order, with the context outlined; every patch
at its predicted position, the mean where several meet. One column for each evaluation eta.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, only_for
from pipeline.evals.pictures import labelled_grid, outlined, place_patches
from pipeline.evals.positions.mp3_positions import named_positions, num_context
from pipeline.methods.mp3 import MP3


@EVALS.register("mp3_pictures")
class MP3Pictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["mp3_pictures"] = "mp3_pictures"
        etas: tuple[Percent, ...] = Field((0, 25, 50, 75), min_length=1)
        """Mask ratios (eta), one column each, in per cent."""
        images: int = Field(3, ge=1)
        """Rows of the picture."""

        files: ClassVar[tuple[str, ...]] = ("rebuilt.png",)

    reason_against = only_for("mp3")
    needs_pixels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        pictures, inputs = self.pictures_and_inputs(model.run.data, self.cfg.images)
        generator = torch.Generator().manual_seed(self.cfg.seed)
        order = torch.rand(len(inputs), model.method.grid.size, generator=generator).argsort(dim=1)
        shown_at = torch.rand(model.method.grid.size, generator=generator).argsort()
        known = model.method.draw_known(len(inputs), generator, order.device)
        with self.precision():
            predicted = {eta: named_positions(model.method, inputs, order, eta, known) for eta in self.cfg.etas}
        rows: list[tuple[str, list[Tensor | None]]] = []
        for number, picture in enumerate(pictures):
            about = picture, order[number], shown_at
            columns = [self._column(model.method, *about, predicted[eta][number], eta) for eta in self.cfg.etas]
            for place, label in enumerate(("context", "input, unordered", "rebuilt")):
                original = None if place else picture
                rows.append((f"{number + 1}: {label}", [original, *(column[place] for column in columns)]))
        headings = ["original", *(f"eta {eta / 100:g}" for eta in self.cfg.etas)]
        return Outcome(files={"rebuilt.png": labelled_grid(rows, headings)})

    def _column(
        self, method: MP3, picture: Tensor, order: Tensor, shown_at: Tensor, predicted: Tensor, eta: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What one image looks like at one eta: context, input, rebuilt."""
        count = num_context(method, eta)
        context = place_patches(picture, method.grid, order[:count], order[:count])
        unordered = place_patches(picture, method.grid, order, shown_at)
        rebuilt = place_patches(picture, method.grid, order, predicted)
        return context, outlined(unordered, method.grid, shown_at[:count]), rebuilt
