"""A sheet of the 15 corruptions at 5 severities (as in Hendrycks and Dietterich 2019, Fig. 1). No run is needed.

Small images are enlarged pixel by pixel, large ones reduced, so that 15 of them fit on a screen.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from pipeline.data.derived.corruptions import corrupt_picture, seed_of
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES, Table
from pipeline.data.images.transforms import eval_view
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome
from pipeline.evals.pictures import as_shown, labelled_grid, one_per_class

FILE = "corruptions.png"
SIDE = 72  # px of an image on the sheet, at least


@EVALS.register("corruption_pictures")
class CorruptionPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["corruption_pictures"] = "corruption_pictures"
        table: Table = Field("imagenet", description="parameters for images of 224 (imagenet), 64 or 32 px")
        images: int = Field(1, ge=1, le=5, description="side by side, of several classes")

        files: ClassVar[tuple[str, ...]] = (FILE,)

    data_roles = ("images",)
    cfg: Config

    def compute(self) -> Outcome:
        data = self.data["images"]
        clean = one_per_class(self.open(data), eval_view(data, data.eval_crop), self.cfg.images)
        pictures = [Image.fromarray(pixels.permute(1, 2, 0).numpy().squeeze()) for pixels in clean]
        rows = [(corruption.replace("_", " "), self._row(pictures, corruption)) for corruption in CORRUPTIONS]
        headings = ["original", *(f"severity {severity}" for severity in SEVERITIES)] * len(pictures)
        return Outcome(files={FILE: labelled_grid(rows, headings)})

    def _row(self, pictures: list[Image.Image], corruption: str) -> list[Tensor]:
        """Every picture, and its five corrupted versions after it."""
        row = []
        for number, picture in enumerate(pictures):
            row.append(_shown(picture))
            for severity in SEVERITIES:
                seed = seed_of(f"{self.cfg.seed} {number}", corruption, severity)
                row.append(_shown(corrupt_picture(picture, corruption, severity, self.cfg.table, seed)))
        return row


def _shown(picture: Image.Image) -> Tensor:
    """uint8 (3, H, W)"""
    small = picture.convert("RGB").reduce(max(1, min(picture.size) // SIDE))
    return as_shown(torch.from_numpy(np.array(small)).permute(2, 0, 1)[None], SIDE)[0]
