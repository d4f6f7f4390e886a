"""Images recovered from the gradients of three models side by side: as they are, and shuffled (MJP Fig. 5, 9 and 10).

The paper's third model is a ViT-S of other weights. It may be given as the plain model, and is then called by its file;
the model without position embeddings, which Table 5 has, too, is always there. A model whose gradients do not let the
attack begin has no column.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from pipeline.core.config import FILE as FILE_INIT
from pipeline.engine.run import RunConfig
from pipeline.evals.attention.attention import reason_not_vit
from pipeline.evals.base import EVALS, EvalConfig, Outcome, Subject
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.evals.privacy.leakage import LeakageEvaluation, PictureColumn, draw_columns
from pipeline.methods.base import Batch
from pipeline.privacy.april import Assumptions, Embedding, attack, ceiling, reason_against

FILE = "recovered.png"


@EVALS.register("april_pictures")
class AprilPictures(LeakageEvaluation):
    class Config(EvalConfig):
        name: Literal["april_pictures"] = "april_pictures"
        shuffle_ratio: float = Field(0.27, ge=0, le=1)
        """Share of the patches that are shuffled."""
        images: int = Field(5, ge=1)
        """Images that are shown, each of another class while there are classes."""
        skip: int = Field(0, ge=0, description="images that another picture shows")
        assumptions: Assumptions = Assumptions()
        """What the attacker is given."""

        files: ClassVar[tuple[str, ...]] = (FILE,)

    needs_pixels = True
    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        return super().reason_against(cfg, subjects) or reason_not_vit(subjects)

    def compute(self, plain: Subject, without: Subject, mjp: Subject) -> Outcome:
        name = "DeiT" if plain.run.train else Path((plain.run.init or "").removeprefix(FILE_INIT)).stem
        models = {name: plain, "without PEs": without, "MJP": mjp}
        count = self.cfg.images + self.cfg.skip
        (batch,) = self.client_batches(plain.run.data, count, count)
        moved, shuffled = Shuffler(plain.method, self.cfg.shuffle_ratio, self.cfg.seed)(batch.images)
        best = ceiling(plain.method, Embedding.of(plain.method), batch.images, batch.targets)
        columns = [PictureColumn("original", batch.images), PictureColumn(f"ceiling, {name}", best, batch.images)]
        columns += self._recovered(models, batch, batch.images, None)
        columns.append(PictureColumn("shuffled", moved))
        columns += self._recovered(models, batch, moved, shuffled)
        text = f"The attacker has {self.cfg.assumptions.words()}."
        return Outcome(files={FILE: draw_columns(columns, plain.run.data, slice(self.cfg.skip, count), text)})

    def _recovered(
        self, models: Mapping[str, Subject], batch: Batch, inputs: Tensor, shuffled: Tensor | None
    ) -> list[PictureColumn]:
        """A column for each model that can be attacked."""
        columns = []
        for name, model in models.items():
            if not reason_against(model.run.model, self.cfg.assumptions):
                found = attack(model.method, inputs, batch.targets, shuffled, self.cfg.assumptions)
                columns.append(PictureColumn(name, found.images, inputs))
        return columns
