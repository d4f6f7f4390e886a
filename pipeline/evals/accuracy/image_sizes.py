"""Accuracy on images of other sizes than those of training: how far a kind of positions carries.

The images are resized, patches stay as large as they are, so there are more or fewer of them. `top1_at_150` is the
accuracy at 150 per cent of the side, `top1_other` the mean over the sizes that are not that of training. A side is
rounded to a whole number of patches. Positions come to the new grid as in finetuning (`model.pos_resampling`): a
learned table and relative biases are resampled, and sin-cos positions computed. Rows and columns of rotations are
extended (`rope`, `rope_mixed`: patch i is at i, as in RoPE-ViT) or stretched over the image (`rope_dinov3`). With
`rotations: rescaled`, those of `rope` and `rope_mixed` are stretched, too, to as many rows and columns as in training
(as in EVA-02; timm's `ref_feat_shape`). Nothing is trained.
"""

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from safetensors.torch import save_file

from pipeline.core.config import added
from pipeline.core.sizes import pair
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.finite import finite_outputs
from pipeline.methods.base import Batch, Measured, Method, accuracy
from pipeline.methods.supervised import Supervised
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.patches import Encoder, Grid, grid_of
from pipeline.models.places import rotary_of
from pipeline.models.position import refuse_other_than_plain
from pipeline.models.weights import grid_record, load_encoder
from pipeline.tasks.metrics import standard_error

Percent = Annotated[int, Field(ge=25, le=400)]
OWN = 100


@EVALS.register("image_sizes")
class ImageSizes(Evaluation):
    class Config(EvalConfig):
        name: Literal["image_sizes"] = "image_sizes"
        sizes: tuple[Percent, ...] = Field(
            (75, 100, 125, 150, 200), description="of the side in training, in per cent; at least one is not 100"
        )
        rotations: Literal["extended", "rescaled"] = added(
            "extended", before="extended", description="rows and columns of rope and rope_mixed at other sizes"
        )
        """Rows and columns of `rope` and `rope_mixed` at other sizes: extended beyond those of training, or rescaled to
        them.
        """

        @field_validator("sizes")
        @classmethod
        def _has_another(cls, sizes: tuple[Percent, ...]) -> tuple[Percent, ...]:
            if set(sizes) <= {OWN} or len(set(sizes)) < len(sizes):
                raise ValueError(f"found {list(sizes)}, expected different sizes, and one that is not 100")
            return sizes

        @property
        def metrics(self) -> tuple[str, ...]:
            return ("top1_other", *(f"top1_at_{size:03d}" for size in self.sizes))

    needs_pixels = True
    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run = subjects["model"]
        if run.model.family != "vit" or run.model.is_windowed:
            return f"{run.model.arch} is not a plain ViT, whose number of patches is free"
        if cfg.rotations == "rescaled" and run.model.positions not in ("rope", "rope_mixed"):  # type: ignore[attr-defined]
            return f"rotations: rescaled is for rope and rope_mixed, and {run.model.name} has {run.model.positions}"
        permutation = getattr(run.method, "permutation", None)
        if permutation is not None and permutation.key != "none":
            return "the model is locked, and its key is for the model as it was trained"
        return super().reason_against(cfg, subjects)

    def compute(self, model: Subject) -> Outcome:
        refuse_other_than_plain(model.method.encoder, "another size of images")
        found = {size: self._at(model, size) for size in self.cfg.sizes}
        values = {f"top1_at_{size:03d}": each.per_image["top1"].astype(np.float64) for size, each in found.items()}
        values["top1_other"] = np.mean([values[f"top1_at_{size:03d}"] for size in found if size != OWN], axis=0)
        first = next(iter(found.values()))
        return Outcome(
            metrics={name: float(value.mean()) for name, value in values.items()},
            errors={name: standard_error(value) for name, value in values.items()},
            count=first.count,
            per_image={name: value.astype(np.float32) for name, value in values.items()},
            images=first.images,
        )

    def _at(self, model: Subject, size: int) -> Outcome:
        data: Any = model.run.data
        if size == OWN:
            return self.over_images(model.method, data, right)
        side = scaled_size(model.method.encoder, size / 100)
        own = copy.deepcopy(model.method).export()
        encoder = at_size(own, model.run.model, side, data.channels, data.num_classes)
        if self.cfg.rotations == "rescaled":
            rotary_of(encoder).rescale(grid_of(own))
        method = Supervised(Supervised.Config(), encoder).to(self.world.device).eval()
        with finite_outputs([method]) as watch:
            found = self.over_images(method, data.model_copy(update={"image_size": side}), right)
            watch.refuse()
        return found


def right(method: Method, batch: Batch) -> dict[str, Measured]:
    """Whether each image is."""
    return {"top1": accuracy(method.predict(batch.images), batch.targets)["top1"]}


def scaled_size(encoder: Encoder, factor: float) -> tuple[int, int]:
    """Height and width in pixels, in whole patches, at least one."""
    (rows, cols), (height, width) = grid_of(encoder), pair(encoder.patch_embed.patch_size)
    grid = Grid(max(1, round(rows * factor)), max(1, round(cols * factor)))
    return grid.rows * height, grid.cols * width


def at_size(encoder: Encoder, cfg: ModelConfig, size: tuple[int, int], channels: int, num_classes: int) -> Encoder:
    """The same model for images of another size, with positions brought there as in finetuning."""
    weights = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        path = Path(folder, "encoder.safetensors")
        save_file(weights, path, grid_record(encoder))
        other = build_encoder(cfg, size, channels, num_classes)
        load_encoder(other, path, cfg.pos_resampling)
    return other
