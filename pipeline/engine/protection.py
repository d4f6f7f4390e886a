"""Two standard defences against attacks that recover images from gradients: pruning and noise.

Both are in Deep Leakage from Gradients (Zhu et al. 2019, Sec. 5), where the noise has an absolute scale. Here it is
relative to the root mean square of each tensor, so that one value means the same at every size of model and batch.
A training protects the gradient of the global batch, once for each update, before it is clipped.
"""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.core.config import Strict
from pipeline.core.seeds import generator_for
from pipeline.models.patches import send


class Protection(Strict):
    """What is done to each tensor of a gradient before anybody sees it: it is pruned, then noise is added."""

    noise: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise, over the root mean square of the tensor"
    )
    pruning: float = Field(
        0.0, ge=0, lt=1, description="share of the entries, the smallest in magnitude, that are set to zero"
    )

    @property
    def is_on(self) -> bool:
        return self.noise > 0 or self.pruning > 0


def protect_gradients(method: nn.Module, cfg: Protection, *key: str | int) -> None:
    """Replace the gradients of all parameters by protected ones; `key` seeds the noise."""
    if not cfg.is_on:
        return
    generator = generator_for(*key)
    for parameter in method.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(protected(parameter.grad, cfg, generator))


def protected(gradient: Tensor, cfg: Protection, generator: torch.Generator) -> Tensor:
    """One tensor, pruned, with noise at all of its entries; a gradient of zeros stays one.

    The generator is on the CPU and draws in float32, so that the noise is the same on every device and in every
    precision. Its scale is that of the tensor before it is pruned: the two fields do not depend on each other.
    """
    found = _pruned(gradient, cfg.pruning)
    if cfg.noise == 0:
        return found
    drawn = torch.randn(gradient.shape, generator=generator, dtype=torch.float32)
    size = torch.linalg.vector_norm(gradient) / math.sqrt(max(1, gradient.numel()))
    return found + cfg.noise * size * send(drawn, gradient.device).to(gradient.dtype)


def _pruned(gradient: Tensor, share: float) -> Tensor:
    """Without the smallest entries: exactly so many, rounded down, and of equal ones those that come first."""
    count = math.floor(share * gradient.numel() + 1e-9)  # 0.29 * 100 is below 29
    if count == 0:
        return gradient
    # Stable, so that the choice among equal entries is the same on every device; NaN counts as the largest and stays.
    smallest = gradient.abs().flatten().argsort(stable=True)[:count]
    return gradient.flatten().index_fill(0, smallest, 0).view_as(gradient)
