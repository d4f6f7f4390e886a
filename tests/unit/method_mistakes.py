"""A small method without a mistake, and copies of it with one mistake each, beside what people read of it."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from tiny_vit import tiny_encoder
from torch import nn
from torch.nn import functional as F

from pipeline.method_checks.devices import check_devices
from pipeline.method_checks.exports import check_export, check_state
from pipeline.method_checks.gradients import check_gradients
from pipeline.method_checks.graphs import check_graph
from pipeline.method_checks.outputs import check_batch_sizes, check_inputs_kept, check_outputs, check_randomness
from pipeline.method_checks.training import check_bf16, check_overfits
from pipeline.methods.base import Method, MethodConfig, Output, accuracy

MISTAKES = {}  # a class -> the check that finds it, and what people read


class Mine(Method):
    """Without a mistake: cross-entropy on noisy images, with a scale that is learned."""

    class Config(MethodConfig):
        name: Literal["mine"] = "mine"
        strength: float = Field(0.1, ge=0, le=1)

    def __init__(self, cfg, encoder):
        super().__init__(cfg, encoder)
        self.scale = nn.Parameter(torch.ones(()))

    def draw(self, batch, progress):
        noise = torch.randn(batch.images.shape, generator=batch.generator)
        return {"noise": self.cfg.strength * noise.to(batch.images.device)}

    def loss(self, images, targets, draw):
        return Output(self.entropy(images + draw["noise"], targets), {})

    def entropy(self, images, targets):
        return F.cross_entropy(self.scale * self.predict(images).logits, targets)


def mistake(check, *texts):
    """Register a class with the texts that its sentence has."""

    def add(cls):
        MISTAKES[cls.__name__] = cls, check, texts
        return cls

    return add


@mistake(check_outputs, 'AttachedScalar.loss returned scalar "margin" that still requires grad;', "value.detach()")
class AttachedScalar(Mine):
    def loss(self, images, targets, draw):
        logits = self.predict(images + draw["noise"]).logits
        return Output(F.cross_entropy(self.scale * logits, targets), {"margin": logits.max()})


@mistake(
    check_outputs, 'FloatScalar.loss returned scalar "top1" that is a float, expected a tensor', "leave out the call"
)
class FloatScalar(Mine):
    def loss(self, images, targets, draw):
        prediction = self.predict(images)
        hits = accuracy(prediction, targets.argmax(dim=1))["top1"].values
        return Output(self.entropy(images, targets), {"top1": hits.mean().item()})


@mistake(check_outputs, "LossPerImage.loss returned a loss of shape (8,), expected one number", "`.mean()`")
class LossPerImage(Mine):
    def loss(self, images, targets, draw):
        return Output(F.cross_entropy(self.scale * self.predict(images).logits, targets, reduction="none"), {})


@mistake(check_outputs, "InfiniteLoss.loss returned a loss that is inf at progress 0.5, expected a finite", "log(0)")
class InfiniteLoss(Mine):
    def draw(self, batch, progress):
        return {**super().draw(batch, progress), "weight": torch.tensor(float(progress != 0.5)).log()}

    def loss(self, images, targets, draw):
        return Output(self.entropy(images, targets) - draw["weight"], {})


@mistake(check_outputs, "BareLoss.loss returned a Tensor, expected Output(loss, scalars)", "import it from")
class BareLoss(Mine):
    def loss(self, images, targets, draw):
        return self.entropy(images, targets)


@mistake(check_outputs, "DetachedLoss.loss returned a loss without a gradient", "detach()")
class DetachedLoss(Mine):
    def loss(self, images, targets, draw):
        return Output(self.entropy(images, targets).detach(), {})


@mistake(
    check_outputs, "RaisingLoss raised RuntimeError: The size of tensor a", "method_mistakes.py:", "`return Output"
)
class RaisingLoss(Mine):
    def loss(self, images, targets, draw):
        return Output(self.entropy(images + draw["noise"][:, :, :5], targets), {})


@mistake(check_gradients, "UnusedParameter.loss left forgotten.weight, forgotten.bias without a gradient", "DDP waits")
class UnusedParameter(Mine):
    def __init__(self, cfg, encoder):
        super().__init__(cfg, encoder)
        self.forgotten = nn.Linear(2, 2)


@mistake(check_gradients, "ZeroGradient.loss gave scale a gradient of 0 in 32 draws", "set its requires_grad to False")
class ZeroGradient(Mine):
    def entropy(self, images, targets):
        return F.cross_entropy(self.predict(images).logits, targets) + 0 * self.scale


@mistake(check_gradients, "SquareRootAtZero.loss gave scale a gradient that is not finite", "look for a root")
class SquareRootAtZero(Mine):
    def entropy(self, images, targets):
        return super().entropy(images, targets) + (self.scale - self.scale).sqrt()


@mistake(
    check_randomness,
    "RandomLoss.loss used torch's global generator; it must be a function",
    "draw what is random in `draw`",
)
class RandomLoss(Mine):
    def loss(self, images, targets, draw):
        return Output(self.entropy(images + 0.1 * torch.randn_like(images), targets), {})


@mistake(
    check_randomness,
    "GlobalDraw.draw used torch's global generator; it must be the batch's own",
    "generator=batch.generator",
)
class GlobalDraw(Mine):
    def draw(self, batch, progress):
        return {"noise": torch.randn_like(batch.images)}


@mistake(check_randomness, "NumpyDraw.draw used numpy's or Python's global generator", "generator=batch.generator")
class NumpyDraw(Mine):
    def draw(self, batch, progress):
        return {"noise": torch.full_like(batch.images, float(np.random.rand()))}


@mistake(check_randomness, "CountingDraw.draw gave another noise for the same seed", "batch.generator alone")
class CountingDraw(Mine):
    calls = 0

    def draw(self, batch, progress):
        self.calls += 1
        return {"noise": torch.full_like(batch.images, self.calls)}


@mistake(check_inputs_kept, "InPlaceLoss.loss changed inputs in place", "`x = x + y` instead of `x += y`")
class InPlaceLoss(Mine):
    def loss(self, images, targets, draw):
        images += draw["noise"]
        return Output(self.entropy(images, targets), {})


@mistake(check_inputs_kept, 'InPlaceDraw.loss changed draw["noise"] in place', "`x.add(y)` instead of `x.add_(y)`")
class InPlaceDraw(Mine):
    def loss(self, images, targets, draw):
        return Output(self.entropy(images + draw["noise"].clamp_(0), targets), {})


@mistake(check_batch_sizes, "FixedBatch raised RuntimeError", "with 3 samples", "take it from the batch, len(images)")
class FixedBatch(Mine):
    def loss(self, images, targets, draw):
        each = F.cross_entropy(self.scale * self.predict(images).logits, targets, reduction="none")
        return Output((each * torch.ones(8)).mean(), {})


@mistake(check_batch_sizes, "SummedLoss.loss grows with the batch", "with 4 samples", "take the mean, not the sum")
class SummedLoss(Mine):
    def loss(self, images, targets, draw):
        return Output(F.cross_entropy(self.scale * self.predict(images).logits, targets, reduction="sum"), {})


@mistake(check_devices, "CpuLoss.loss computes with a tensor on the CPU", "method_mistakes.py:", "device=images.device")
class CpuLoss(Mine):
    def loss(self, images, targets, draw):
        weights = torch.ones(10)
        return Output(self.entropy(images, targets * weights), {})


@mistake(check_devices, "CpuConstant.loss computes with a tensor on the CPU", "self.register_buffer")
class CpuConstant(Mine):
    def __init__(self, cfg, encoder):
        super().__init__(cfg, encoder)
        self.weights = torch.ones(10)

    def loss(self, images, targets, draw):
        return Output(self.entropy(images, targets * self.weights), {})


@mistake(check_devices, 'CpuDraw.draw returned "noise" on the cpu', "end with .to(batch.images.device)")
class CpuDraw(Mine):
    def draw(self, batch, progress):
        return {"noise": torch.randn(batch.images.shape, generator=batch.generator)}


@mistake(check_state, "StateOutside.loss is", "after loading a checkpoint", "self.register_buffer")
class StateOutside(Mine):
    def __init__(self, cfg, encoder):
        super().__init__(cfg, encoder)
        self.heads = [nn.Linear(10, 10)]  # in no ModuleList, so that nobody saves it

    def entropy(self, images, targets):
        return F.cross_entropy(self.heads[0](self.scale * self.predict(images).logits), targets)


@mistake(
    check_export(lambda: tiny_encoder(depth=1)),
    "WrappedExport.export() lacks cls_token, pos_embed,",
    "and has, beyond timm's model, encoder.cls_token",
    "heads stay",
)
class WrappedExport(Mine):
    def export(self):
        return nn.ModuleDict({"encoder": self.encoder})


@mistake(
    check_bf16, "HalfLoss.loss returned torch.bfloat16 under bf16 autocast, expected torch.float32", "`logits.float()`"
)
class HalfLoss(Mine):
    def entropy(self, images, targets):
        logits = self.scale * self.predict(images).logits
        return super().entropy(images, targets).to(logits.dtype)


@mistake(check_overfits, "WrongTargets does not overfit one batch: the loss went from", "its own target")
class WrongTargets(Mine):
    def draw(self, batch, progress):
        return {**super().draw(batch, progress), "targets": torch.full_like(batch.targets, 0.1)}

    def loss(self, images, targets, draw):
        return Output(self.entropy(images, draw["targets"]), {})


@mistake(check_graph, "BranchingLoss.loss does not compile into one graph", "method_mistakes.py:", "torch.where")
class BranchingLoss(Mine):
    def loss(self, images, targets, draw):
        if draw["noise"].mean() > 0:
            images = images + draw["noise"]
        return Output(self.entropy(images, targets), {})


@mistake(check_graph, "ChangingShape.loss was compiled a second time", "the same keys, shapes and dtypes in every step")
class ChangingShape(Mine):
    def draw(self, batch, progress):
        return {"noise": super().draw(batch, progress)["noise"][:, :, : 28 if progress < 0.9 else 1]}
