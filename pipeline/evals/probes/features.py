"""Frozen encoders of any method, and their features: pooled patches of every layer, and what the model pools itself.

Layer 0 is what enters the first block: embedded patches with their positions; layer i is the output of block i, before
the last norm. Of a Swin and of a CNN a layer is a stage, and layer 0 the embedded patches or the stem. They are
recorded inside the encoder's own forward pass, so with the positions with which its method trained it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.engine.loop import build_method
from pipeline.engine.run import RunConfig
from pipeline.engine.validate import evaluating
from pipeline.evals.base import EvalConfig, Evaluation, Subject, spread
from pipeline.evals.parts import Arrays
from pipeline.methods.base import Batch, Method
from pipeline.methods.droppos_swin import DropPosSwin
from pipeline.models.patches import Encoder, to_images
from pipeline.models.position import encode, num_prefix_tokens, refuse_without_cls

Pool = Literal["run", "cls", "avg"]
NUM_PARTS = 8  # the train split is worked off in so many parts; a killed evaluation repeats one of them at most


class ProbeConfig(EvalConfig):
    """Fields of every evaluation of a frozen encoder."""

    untrained: bool = Field(
        False, description="instead of the trained encoder, one with the random weights from which a run starts"
    )


class Probe(Evaluation):
    """An evaluation of the features of any encoder of classified images, whatever trained it."""

    needs_train = True
    cfg: ProbeConfig

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        for run in subjects.values():
            if run.task not in ("classify", "pretrain"):
                return f"method {run.method.name} does not see classified images"
        return ""

    def over_train(
        self, run: RunConfig, name: str, limit: int | None, compute: Callable[[Iterator[Batch]], Arrays]
    ) -> Iterator[Arrays]:
        """What `compute` finds in each part of the train split, or of `limit` images spread over it."""
        chosen = spread(run.data.num_train, limit)
        indices = np.array_split(chosen, min(NUM_PARTS, len(chosen)))
        parts = {f"{name}_{number}": each for number, each in enumerate(indices)}
        left = [parts[part] for part in self.parts.left(parts)]
        batches = self.batches_of_parts(run.data, "train", left, self.full_batch(run.data))
        for part in parts:
            yield self.parts.once(part, lambda: compute(next(batches)))

    @contextmanager
    def frozen(self, model: Subject) -> Iterator[Method]:
        """The subject's method, or a new one, in evaluation mode and without gradients; left as it was."""
        method = build_method(model.run).to(self.world.device) if self.cfg.untrained else model.method
        trained = [value for value in method.parameters() if value.requires_grad]
        with evaluating(method):
            try:
                yield method.requires_grad_(False)
            finally:
                for parameter in trained:
                    parameter.requires_grad_(True)


def pooled_layers(method: Method, images: Tensor) -> list[Tensor]:
    """Return the mean over the patches of each layer, (B, D) in float32; stages differ in D."""
    encoder = method.encoder
    stages = _stages(encoder)
    if stages is None:
        return [pooled_patches(encoder, stage) for stage in _feature_maps(encoder, images)]
    found: list[Tensor] = []
    hooks = [stages[0].register_forward_pre_hook(lambda stage, given: found.append(pooled_patches(encoder, given[0])))]
    hooks += [
        stage.register_forward_hook(lambda stage, given, made: found.append(pooled_patches(encoder, made)))
        for stage in stages
    ]
    try:
        encode(encoder, images, own_positions(method))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def pooled_features(method: Method, images: Tensor, pool: Pool) -> Tensor:
    """(B, D) in float32, after the last norm: `run` as the model pools where it classifies, else CLS or the patches."""
    encoder = method.encoder
    if pool == "cls":
        refuse_without_cls(encoder)
    tokens = encode(encoder, images, own_positions(method))
    if pool == "run":
        return encoder.forward_head(tokens, pre_logits=True).float()
    return tokens[:, 0].float() if pool == "cls" else pooled_patches(encoder, tokens)


def pooled_patches(encoder: Encoder, layer: Tensor) -> Tensor:
    """(B, D): the mean over the patches of a layer: tokens (B, P+N, D), or a map with channels last, as in a Swin."""
    if layer.ndim == 3:
        return layer[:, num_prefix_tokens(encoder) :].float().mean(dim=1)
    is_last = getattr(encoder, "output_fmt", "NCHW") == "NHWC" and _stages(encoder) is not None
    return layer.float().mean(dim=(1, 2) if is_last else (2, 3))


def own_positions(method: Method) -> Tensor | None:
    """(1, N, D): positions that a method adds to those of its encoder, which DropPos on a Swin does; else None."""
    if not isinstance(method, DropPosSwin):
        return None
    side = method.cfg.cells * method.cell_patches
    table = to_images(method.positions.transpose(1, 2)[None], (side, side), method.grid)  # (1, D, side, side)
    return table.flatten(2).transpose(1, 2)


def _stages(encoder: Encoder) -> Sequence[Any] | None:
    """The blocks of a ViT, whose layers are tokens, or the stages of a Swin; None for any other model."""
    if hasattr(encoder, "blocks") and hasattr(encoder, "num_prefix_tokens"):
        return encoder.blocks
    return encoder.layers if hasattr(encoder, "layers") and getattr(encoder, "output_fmt", "") == "NHWC" else None


def _feature_maps(encoder: Encoder, images: Tensor) -> list[Tensor]:
    """(B, D, H, W) of each stage, as timm lists them."""
    try:
        return encoder.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
    except AttributeError:
        raise ConfigError(
            f"timm lists no intermediate layers of {type(encoder).__name__}; expected a model with "
            "`forward_intermediates`: skip this evaluation for this model"
        ) from None
