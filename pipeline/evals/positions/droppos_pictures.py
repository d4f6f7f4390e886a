"""Which dropped positions DropPos names right, as pictures (DropPos Fig. 3).

A patch whose position was named right shows its content, a wrong one is white, a masked patch is black. Anchors, whose
positions are given, show their content too. One column for each gamma, at one gamma_pos.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.engine.validate import evaluating
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, only_for
from pipeline.evals.pictures import BLACK, WHITE, labelled_grid
from pipeline.evals.positions.droppos_positions import num_visible_anchors
from pipeline.methods.droppos import DropPos
from pipeline.models.patches import to_images, to_patches


@EVALS.register("droppos_pictures")
class DropPosPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["droppos_pictures"] = "droppos_pictures"
        gammas: tuple[Percent, ...] = Field((0, 25, 50, 75), min_length=1)
        """Mask ratios (gamma), one column each, in per cent."""
        position_gamma: int = Field(95, ge=1, le=100)
        """Share of visible patches whose positions are dropped (gamma_pos), in per cent."""
        images: int = Field(4, ge=1)
        """Rows of the picture."""

        files: ClassVar[tuple[str, ...]] = ("rebuilt.png",)

    reason_against = only_for("droppos")
    needs_pixels = True
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        pictures, inputs = self.pictures_and_inputs(model.run.data, self.cfg.images)
        generator = torch.Generator().manual_seed(self.cfg.seed)
        order = torch.rand(len(inputs), model.method.grid.size, generator=generator).argsort(dim=1)
        columns = [self._column(model.method, pictures, inputs, order, gamma) for gamma in self.cfg.gammas]
        rows = [
            (f"image {number + 1}", [*(column[number] for column in columns), picture])
            for number, picture in enumerate(pictures)
        ]
        headings = [*(f"gamma {gamma / 100:g}" for gamma in self.cfg.gammas), "original"]
        return Outcome(files={"rebuilt.png": labelled_grid(rows, headings)})

    @torch.no_grad()
    def _column(self, method: DropPos, pictures: Tensor, inputs: Tensor, order: Tensor, gamma: int) -> Tensor:
        """pictures (B, 3, H, W) with wrong patches white and masked ones black."""
        visible, anchors = num_visible_anchors(method, gamma, self.cfg.position_gamma)
        with evaluating(method), self.precision():
            logits = method.position_logits(inputs, order.to(inputs.device), visible, anchors)
        dropped = order[:, anchors:visible]
        wrong = logits.float().argmax(dim=-1).cpu() != dropped
        patches = to_patches(pictures, method.grid).clone()
        for number in range(len(pictures)):
            patches[number, dropped[number][wrong[number]]] = WHITE
            patches[number, order[number, visible:]] = BLACK
        return to_images(patches, pictures.shape[2:], method.grid)
