"""Training a linear head on features of a frozen encoder, so that a killed training continues to the same bits.

The head is BatchNorm without weights of its own and a linear layer, as in MAE's linear probing: together they are one
linear map, and the learning rate does not depend on the scale of an encoder's features.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.evals.parts import Arrays, Parts

START_STD, NORM_EPS = 0.01, 1e-6  # MAE's


class LinearHead(nn.Module):
    """Features (..., D) -> logits (..., outputs)."""

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=NORM_EPS, affine=False)
        self.linear = nn.Linear(width, num_outputs)
        nn.init.trunc_normal_(self.linear.weight, std=START_STD)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(self.norm(features.flatten(0, -2))).unflatten(0, features.shape[:-1])


@dataclass
class Fitting:
    """A head and its optimiser: a linear warm-up, then half a cosine to 0, moved every step."""

    head: nn.Module
    optimizer: torch.optim.Optimizer
    peak: float
    num_steps: int
    num_warmup: int = 0
    step: int = 0

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        if self.step < self.num_warmup:
            return self.peak * self.step / self.num_warmup
        done = (self.step - self.num_warmup) / max(1, self.num_steps - self.num_warmup)
        return self.peak * (1 + math.cos(math.pi * done)) / 2

    def descend(self) -> None:
        """One step along the gradients that the head's parameters have."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1

    def state(self) -> Arrays:
        """Everything that training changes."""
        arrays = {f"head/{name}": value for name, value in self.head.state_dict().items()}
        for number, parameter in enumerate(self.head.parameters()):
            found = self.optimizer.state[parameter]
            arrays |= {f"optimizer/{number}/{name}": value for name, value in found.items()}
        return {"step": np.asarray(self.step)} | {name: value.cpu().numpy() for name, value in arrays.items()}

    def restore(self, arrays: Arrays) -> None:
        """Continue from a state."""
        tensors = {name: torch.tensor(value) for name, value in arrays.items()}
        self.step = int(tensors.pop("step"))
        self.head.load_state_dict({name[5:]: value for name, value in tensors.items() if name.startswith("head/")})
        for number, parameter in enumerate(self.head.parameters()):
            start = f"optimizer/{number}/"
            # AdamW counts its steps on the CPU.
            self.optimizer.state[parameter] = {
                name.removeprefix(start): value.to(parameter.device) if value.ndim else value
                for name, value in tensors.items()
                if name.startswith(start)
            }


def fit(
    fitting: Fitting, num_epochs: int, train: Callable[[int], None], parts: Parts, epochs_per_part: int = 1
) -> None:
    """Train every epoch once: what was finished before a kill is read, and training goes on from there."""
    for first in range(0, num_epochs, epochs_per_part):
        epochs = range(first, min(first + epochs_per_part, num_epochs))

        def compute(epochs: range = epochs) -> Arrays:
            for epoch in epochs:
                train(epoch)
            return fitting.state()

        fitting.restore(parts.once(f"epochs_{epochs[0]:03d}_to_{epochs[-1]:03d}", compute))
