"""A training step in two parts that never ask the host: forward and backward of a micro-batch, and the update.

What a part finds is added to tensors that stay where they are (gradients, sums, meters, weights), and each part is a
function of trees of tensors. So the same code runs as it is, on any device, or is recorded once as a CUDA graph and
replayed (`graphs.py`). What needs the host comes in between: draws, talk with other processes, protection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipeline.core.trees import Tree
from pipeline.engine.compute.precision import Precision, in_precision
from pipeline.engine.meters import Meters
from pipeline.engine.optim import OptimConfig, clip_gradients, step_if_finite
from pipeline.methods.base import Method, Output


class MicroStep:
    """Forward and backward of one of the `count` micro-batches that this process has of a global batch."""

    def __init__(
        self, method: Method, model: Any, precision: Precision, device: torch.device, meters: Meters, count: int
    ) -> None:
        self.method, self.model, self.precision, self.device = method, model, precision, device
        self.meters, self.count = meters, count
        self.parameters = list(method.parameters())  # to walk through all modules takes a millisecond
        # Of the micro-batches so far: the loss, and the targets of a method that counts them.
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)
        # What the last forward pass told the host; the same in every step.
        self.names: tuple[str, ...] = ()
        self.is_weighted = False

    def first(self, inputs: Tree, targets: Tree, draw: Tree) -> None:
        """Process the first micro-batch of a step: gradients and sums start from zero."""
        for parameter in self.parameters:
            parameter.grad = None
        self.sums.zero_()
        self.next(inputs, targets, draw)

    def next(self, inputs: Tree, targets: Tree, draw: Tree) -> None:
        """Process each further micro-batch: gradients and sums accumulate."""
        out = self.forward(inputs, targets, draw)
        loss = out.loss / self.count if out.weight is None else out.loss * out.weight
        loss.backward()
        weight = torch.zeros_like(loss) if out.weight is None else out.weight
        self.sums += torch.stack([loss.detach().double(), weight.detach().double()])
        scalars = {"loss": out.loss, **out.scalars}
        self.meters.accumulate(1 / self.count, scalars)
        self.names, self.is_weighted = tuple(scalars), out.weight is not None

    def forward(self, inputs: Tree, targets: Tree, draw: Tree) -> Output:
        with in_precision(self.precision, self.device):
            return self.model(inputs, targets, draw)

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class Update:
    """What follows when the gradient of the global batch is there: norm, clipping, finite check, AdamW, average."""

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer, cfg: OptimConfig, ema: Any, meters: Meters):
        self.method, self.optimizer, self.cfg, self.ema, self.meters = method, optimizer, cfg, ema, meters
        self.num_skips = torch.zeros((), device=next(method.parameters()).device)

    def __call__(self, loss: Tensor, rates: Tensor | None = None) -> None:
        """`rates`: of each group of parameters, where the optimiser must read them from the device."""
        norm = clip_gradients(self.method, self.cfg)
        with self._rates_from(rates):
            self.num_skips += step_if_finite(self.optimizer, loss, norm)
        if self.ema:
            self.ema.update(self.method)
        self.meters.accumulate(1.0, {"grad_norm": norm})

    @contextmanager
    def _rates_from(self, rates: Tensor | None) -> Iterator[None]:
        groups = self.optimizer.param_groups
        scheduled = [group["lr"] for group in groups]
        for group, rate in zip(groups, scheduled if rates is None else rates.unbind(), strict=True):
            group["lr"] = rate
        try:
            yield
        finally:  # a recording may fail; the schedule's rates are what is logged and saved
            for group, rate in zip(groups, scheduled, strict=True):
                group["lr"] = rate
