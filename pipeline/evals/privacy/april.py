"""What APRIL recovers from the gradients of single images (MJP Sec. 5.4, Table 5).

Metrics end in the name of a setting of `leakage.py`: `psnr_b` is that of setting (b). `acc_b` is the accuracy on the
whole validation set of the model as it was trained, seen as in that setting; `ceiling_psnr_b` is what the same number
of equations would give without any error; `condition_b` is the mean log10 of their condition number. A run whose recipe
protects its gradients (`optim.protection`) is attacked through that protection.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Outcome, Subject
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.evals.privacy.leakage import (
    COMPARED,
    LeakageEvaluation,
    PictureColumn,
    SettingName,
    compared,
    draw_columns,
    pixels_of,
    setting_of,
)
from pipeline.methods.base import Batch, Measured, Method, accuracy
from pipeline.privacy.april import Assumptions, Recovery, attack, reason_against

log = logging.getLogger(__name__)
OF_THE_ATTACK = ("ceiling_psnr", "ceiling_ssim", "condition", "rank")
FILE = "april.png"
Cutoff = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class AttackedImages:
    """What a client saw of some images, (B, C, H, W) as its model sees them, and what the attack found of it."""

    setting: str
    is_moved: bool
    inputs: Tensor
    found: Recovery

    @property
    def recovered(self) -> PictureColumn:
        return PictureColumn(f"recovered ({self.setting})", self.found.images, self.inputs)


@EVALS.register("april")
class April(LeakageEvaluation):
    class Config(EvalConfig):
        name: Literal["april"] = "april"
        settings: tuple[SettingName, ...] = Field(("a", "b", "c"), min_length=1)
        """Settings that are attacked: a, b and c of MJP Table 5, kept, hidden, or own, that of the run's method."""
        shuffle_ratio: float = Field(0.27, ge=0, le=1)
        """Share of the patches that are shuffled, in settings other than a."""
        images: int = Field(1000, ge=1, description="attacked, one of each class while there are classes")
        batch: int = Field(32, ge=1, description="images attacked at once")
        pictures: int = Field(5, ge=1, description="rows of the picture, at most those of a batch")
        assumptions: Assumptions = Assumptions()
        """What the attacker is given."""
        cutoffs: tuple[Cutoff, ...] = Field(())
        """Cutoffs that are tried instead of the one in `assumptions`. For each image the closest recovery counts, which
        no attacker can choose: a bound for attacks on protected gradients.
        """

        @property
        def metrics(self) -> tuple[str, ...]:
            names = ("acc", *COMPARED, *OF_THE_ATTACK)
            return tuple(f"{name}_{setting}" for setting in self.settings for name in names)

        files: ClassVar[tuple[str, ...]] = (FILE,)

        @property
        def each_cutoff(self) -> list[Assumptions]:
            cutoffs = self.cutoffs or (self.assumptions.cutoff,)
            return [self.assumptions.model_copy(update={"cutoff": cutoff}) for cutoff in cutoffs]

    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        assert isinstance(cfg, cls.Config)
        return super().reason_against(cfg, subjects) or reason_against(subjects["model"].model, cfg.assumptions)

    def compute(self, model: Subject) -> Outcome:
        log.info("the attacker is given %s", self.cfg.assumptions.words())
        self.settings = {name: setting_of(name, model.run) for name in self.cfg.settings}
        shuffler = Shuffler(model.method, self.cfg.shuffle_ratio, self.cfg.seed)
        values: dict[str, list[Tensor]] = defaultdict(list)
        picture = b""
        for batch in self.client_batches(model.run.data, self.cfg.images, self.cfg.batch):
            attacked = self._attack(model, batch, *shuffler(batch.images))
            for name, setting in self.settings.items():
                each = attacked[setting.seen]
                wanted = batch.images if setting.original else each.inputs
                for metric, value in self._measure(each.found, wanted, model.run).items():
                    values[f"{metric}_{name}"].append(value)
            picture = picture or self._draw(batch.images, [*attacked.values()], model.run)
        return self.outcome(values, model.run.data, {FILE: picture}, self._accuracies(model))

    def _attack(
        self, model: Subject, batch: Batch, moved: Tensor, shuffled: Tensor
    ) -> dict[tuple[bool, bool], AttackedImages]:
        """Settings that differ in the comparison alone share an attack."""
        attacked: dict[tuple[bool, bool], AttackedImages] = {}
        for name, setting in self.settings.items():
            if setting.seen not in attacked:
                inputs, hidden = setting.inputs(batch.images, moved, shuffled)
                attacked[setting.seen] = AttackedImages(
                    name, setting.moved, inputs, self._recover(model, batch, inputs, hidden)
                )
        return attacked

    def _recover(self, model: Subject, batch: Batch, inputs: Tensor, hidden: Tensor | None) -> Recovery:
        """The attack with each cut-off; of each image the recovery that is closest to what the client saw."""
        seed = int(torch.randint(2**62, (), generator=batch.generator))
        tries = [
            attack(model.method, inputs, batch.targets, hidden, assumptions, model.run.optim.protection, seed)
            for assumptions in self.cfg.each_cutoff
        ]
        images, wanted = torch.stack([each.images for each in tries]), pixels_of(inputs, model.run.data)
        errors = [(pixels_of(each, model.run.data) - wanted).square().mean(dim=(1, 2, 3)) for each in images]
        best = torch.stack(errors).argmin(dim=0)
        return replace(tries[0], images=images[best, torch.arange(len(best), device=best.device)])

    def _measure(self, found: Recovery, wanted: Tensor, run: RunConfig) -> dict[str, Tensor]:
        """For each image (B,), the metrics without the accuracy."""
        ceiling = compared(found.ceiling, wanted, run.data)
        return {
            **self.compared(found.images, wanted, run.data),
            "ceiling_psnr": ceiling["psnr"],
            "ceiling_ssim": ceiling["ssim"],
            "condition": found.condition.log10(),
            "rank": found.rank.double(),
        }

    def _accuracies(self, model: Subject) -> Outcome:
        shuffler = Shuffler(model.method, self.cfg.shuffle_ratio, self.cfg.seed)

        def measure(method: Method, batch: Batch) -> dict[str, Measured]:
            moved, shuffled = shuffler(batch.images)
            right: dict[tuple[bool, bool], Measured] = {}
            for setting in self.settings.values():
                if setting.seen not in right:
                    prediction = method.predict(*setting.inputs(batch.images, moved, shuffled))
                    right[setting.seen] = accuracy(prediction, batch.targets)["top1"]
            return {f"acc_{name}": right[setting.seen] for name, setting in self.settings.items()}

        return self.over_images(model.method, model.run.data, measure)

    def _draw(self, images: Tensor, attacked: list[AttackedImages], run: RunConfig) -> bytes:
        columns = [
            PictureColumn("original", images),
            PictureColumn("ceiling", attacked[0].found.ceiling, attacked[0].inputs),
        ]
        still, moved = ([each for each in attacked if each.is_moved == kind] for kind in (False, True))
        columns += [each.recovered for each in still]
        columns += [PictureColumn("shuffled", each.inputs) for each in moved[:1]]
        columns += [each.recovered for each in moved]
        text = f"The attacker has {self.cfg.assumptions.words()}."
        return draw_columns(columns, run.data, slice(self.cfg.pictures), text)
