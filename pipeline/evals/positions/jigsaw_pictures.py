"""What MJP's block-wise shuffle does to images, at several ratios (MJP Fig. 2). It needs data, and no run.

At ratio 1 every patch is moved; the released generator cannot do that, so the pictures top its blocks up (`exact`).
"""

import random
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from pipeline.core.errors import ConfigError
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome
from pipeline.evals.pictures import labelled_grid, outlined
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.models.patches import Grid

Ratio = Annotated[float, Field(ge=0, le=1)]


@EVALS.register("jigsaw_pictures")
class JigsawPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["jigsaw_pictures"] = "jigsaw_pictures"
        ratios: tuple[Ratio, ...] = Field((0.03, 0.15, 0.27, 1.0), min_length=1)
        """Shares of the patches that are shuffled, one column each."""
        patches: int = Field(14, ge=2, description="patches along a side of the image")
        images: int = Field(4, ge=1)
        """Rows of the picture."""

        files: ClassVar[tuple[str, ...]] = ("shuffled.png",)

    data_roles = ("images",)
    cfg: Config

    def compute(self) -> Outcome:
        data, grid = self.data["images"], Grid(self.cfg.patches, self.cfg.patches)
        pictures, _ = self.pictures_and_inputs(data, self.cfg.images)
        height, width = pictures.shape[2:]
        if height % grid.rows or width % grid.cols:
            raise ConfigError(
                f"patches {self.cfg.patches} do not divide the {height} x {width} pixels at which images of "
                f"{data.name} are shown; choose a divisor in configs/eval or in `eval` of the scale"
            )
        rng, rows = random.Random(self.cfg.seed), []
        for number, picture in enumerate(pictures):
            shown = [picture]
            for ratio in self.cfg.ratios:
                chosen = block_mask(grid, ratio, rng, exact=True)
                moved = shuffle_patches(picture[None], jigsaw_order(chosen, rng)[None], grid)[0]
                shown.append(outlined(moved, grid, torch.nonzero(chosen).flatten()))
            rows.append((f"image {number + 1}", shown))
        columns = ["original", *(f"ratio {ratio:g}" for ratio in self.cfg.ratios)]
        return Outcome(files={"shuffled.png": labelled_grid(rows, columns)})
