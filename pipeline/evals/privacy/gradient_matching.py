"""What attacks by gradient matching recover: images are optimised until their gradients are those that a client sent.

The attacks are in pipeline/privacy/matching.py; settings and metrics of similarity as for APRIL (leakage.py). Where a
gradient is of several images, nobody can tell which of the recovered ones is which: they are paired with the client's
so that the squared error is smallest. A model that hardly looks at positions lets an attack find the patches, and not
where they belong: `patch_psnr` is the PSNR after each recovered patch was put where it fits best. `blank_psnr` is that
of an image of the mean colour, which knows nothing; `label_accuracy` is the share of labels (%) that the attacker has
right, `gradient_distance` the distance that is left at the end. A run whose recipe protects its gradients
(`optim.protection`) is attacked through that protection.
"""

import io
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.attention.attention import reason_not_vit
from pipeline.evals.base import EVALS, EvalConfig, Outcome, Subject
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.evals.privacy.leakage import (
    COMPARED,
    LeakageEvaluation,
    PictureColumn,
    SettingName,
    compared,
    draw_columns,
    setting_of,
)
from pipeline.models.jigsaw import shuffle_patches
from pipeline.models.patches import Grid, grid_of, to_patches
from pipeline.privacy.matching import Matching, Recovery, attack

OF_THE_ATTACK = ("patch_psnr", "blank_psnr", "label_accuracy", "gradient_distance")
PROGRESS, LOSS = "progress.png", "loss.png"
INK, MUTED, LINE = "#1a1d21", "#596069", "#c3c9d0"


@EVALS.register("gradient_matching")
class GradientMatching(LeakageEvaluation):
    class Config(EvalConfig, Matching):
        name: Literal["gradient_matching"] = "gradient_matching"
        setting: SettingName = "a"
        """The setting that is attacked: a, b or c of MJP Table 5, kept, hidden, or own, that of the run's method."""
        shuffle_ratio: float = Field(0.27, ge=0, le=1)
        """Share of the patches that are shuffled, in settings other than a."""
        images: int = Field(8, ge=1, description="attacked, one of each class while there are classes")
        at_once: int = Field(8, ge=1, description="gradients that are attacked side by side")
        pictures: int = Field(5, ge=1, description="taken on the way; where each is taken, a killed attack continues")
        shown: int = Field(5, ge=1, description="rows of the picture")

        @model_validator(mode="after")
        def _has_whole_groups(self) -> "GradientMatching.Config":
            if self.images % self.batch:
                raise ValueError(f"images {self.images} must be a multiple of batch {self.batch}")
            return self

        metrics: ClassVar[tuple[str, ...]] = (*COMPARED, *OF_THE_ATTACK)

        files: ClassVar[tuple[str, ...]] = (PROGRESS, LOSS)

    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        return super().reason_against(cfg, subjects) or reason_not_vit(subjects)

    def compute(self, model: Subject) -> Outcome:
        cfg, data = self.cfg, model.run.data
        setting = setting_of(cfg.setting, model.run)
        (batch,) = self.client_batches(data, cfg.images, cfg.images)
        moved, shuffled = Shuffler(model.method, cfg.shuffle_ratio, cfg.seed)(batch.images)
        inputs, hidden = setting.inputs(batch.images, moved, shuffled)
        given = cfg, bounds_of(data), model.run.optim.protection, cfg.seed, cfg.pictures, cfg.at_once, self.parts.once
        found = attack(model.method, inputs, batch.targets, hidden, *given)
        order = paired(found.images, inputs, cfg.batch)
        wanted = batch.images if setting.original else inputs
        recovered = found.images[order]
        rearranged = patches_where_they_fit(recovered, wanted, grid_of(model.method.encoder))
        values = {
            **self.compared(recovered, wanted, data),
            "patch_psnr": compared(rearranged, wanted, data)["psnr"],
            "blank_psnr": compared(torch.zeros_like(wanted), wanted, data)["psnr"],
            "label_accuracy": 100.0 * known_labels(found.labels, batch.targets, cfg.batch),
            "gradient_distance": found.distance.repeat_interleave(cfg.batch),
        }
        has_hidden = hidden is not None and hasattr(model.method, "unknown")
        text = f"The attacker has {cfg.words(has_hidden)}."
        columns = _columns(found, order, batch.images, inputs, wanted)
        files = {
            PROGRESS: draw_columns(columns, data, slice(cfg.shown), text),
            LOSS: draw_curves(found.curve, cfg.distance),
        }
        return self.outcome({name: [value] for name, value in values.items()}, data, files)


def bounds_of(data: Any) -> tuple[Tensor, Tensor]:
    """Black and white (C, 1, 1) as a model sees them."""
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (data.mean, data.std))
    return (0 - mean) / std, (1 - mean) / std


def paired(recovered: Tensor, wanted: Tensor, k: int) -> Tensor:
    """(B,): for each wanted image the recovered one of its group of k, so that the squared error is smallest."""
    order = []
    for first in range(0, len(wanted), k):
        group = slice(first, first + k)
        errors = (wanted[group, None].double() - recovered[None, group].double()).square().flatten(2).mean(dim=2)
        order += [first + int(each) for each in linear_sum_assignment(errors.cpu().numpy())[1]]
    return torch.tensor(order, device=recovered.device)


def patches_where_they_fit(recovered: Tensor, wanted: Tensor, grid: Grid) -> Tensor:
    """Each recovered image with its patches in that order in which its squared error is smallest."""
    ours, theirs = (to_patches(images.double(), grid).flatten(2) for images in (recovered, wanted))
    errors = torch.cdist(theirs, ours).square().cpu().numpy()  # (B, N, N)
    order = torch.stack([torch.from_numpy(linear_sum_assignment(each)[1]) for each in errors])
    return shuffle_patches(recovered, order.to(recovered.device), grid)


def known_labels(found: Tensor, wanted: Tensor, k: int) -> Tensor:
    """(B,) 0 or 1: whether the label of each image is among those found for its group of k."""
    groups = found.view(-1, 1, k), wanted.view(-1, k, 1)
    return (groups[0] == groups[1]).any(dim=2).flatten().double()


def _columns(found: Recovery, order: Tensor, images: Tensor, inputs: Tensor, wanted: Tensor) -> list[PictureColumn]:
    """What the client has, what it trains on if that is another image, then the attack on its way."""
    own = [PictureColumn("original", images)] + ([] if inputs is images else [PictureColumn("shuffled", inputs)])
    steps = [f"iteration {step:,}" for step in found.steps[:-1]]
    return own + [
        PictureColumn(heading, picture[order], wanted)
        for heading, picture in zip([*steps, "recovered"], found.progress, strict=True)
    ]


def draw_curves(curves: Tensor, distance: str) -> bytes:
    """The distance of the gradients (G, iterations) on its way down: each group, and the mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0.11, 0.14, 0.86, 0.76))
    values = curves.double().clamp(min=1e-12).cpu().numpy()
    for curve in values:
        axes.plot(curve, color=LINE, linewidth=1.0)
    axes.plot(values.mean(axis=0), color=INK, linewidth=1.8)
    axes.set(yscale="log", xlabel="iteration", ylabel=f"{'L2' if distance == 'l2' else distance} distance of gradients")
    axes.set_title("Gradient matching: each gradient (grey) and their mean (black)", fontsize=10, color=INK, loc="left")
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=MUTED, fontsize=9)
        axis.set_tick_params(which="both", colors=MUTED, labelsize=8)
    for name, spine in axes.spines.items():
        spine.set_color(LINE)
        spine.set_visible(name in ("left", "bottom"))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
