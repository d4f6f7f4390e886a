"""The server of split learning as an attacker: a network that turns features back into images (ST Sec. 5.3, Table 6).

The attacker has images of its own and can have them embedded as the client embeds its images, protection included. It
trains an inverter on such pairs and applies it to the client's features. The paper calls the inverter an MAE; it is a
plain ViT behind an MLP, with tanh at its end, as released. Where the width is not the number of values of a patch, one
linear layer more is put before the tanh.

The released attack forgets the position embeddings, and does not protect the images that it is tested on; both are
switches. Under row permutation it drops the first row for CLS, whatever it is. The paper does not consider an attacker
who first sorts the rows, which position embeddings would tell apart.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.config import Strict
from pipeline.core.dynamo import AdamW
from pipeline.core.errors import ConfigError
from pipeline.core.seeds import generator_for
from pipeline.models.patches import Encoder, grid_of, to_images
from pipeline.models.position import num_prefix_tokens, patch_positions
from pipeline.permutation.protections import FeatureProtection
from pipeline.permutation.split import Client
from pipeline.privacy.similarity import psnr, ssim

METRICS = ("psnr", "ssim_valid", "psnr_released", "ssim_released")
Network = Callable[[Tensor], Tensor]  # images (B, C, H, W) in [-1, 1] -> features (B, ...)


class InversionConfig(Strict):
    """How the attacker trains, and what the release leaves out; the other defaults are the released ones."""

    epochs: int = Field(50, ge=1)
    """Passes over the attacker's images."""
    batch: int = Field(128, ge=1)
    """Images of a step."""
    lr: float = Field(1.5e-4, gt=0)
    """Largest learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    warmup_steps: int = Field(40, ge=0)
    """Steps (not epochs) in which the rate rises."""
    has_positions: bool = True
    """Whether the attacked features have positions; false as released, where they are forgotten."""
    protects_test: bool = Field(
        True, description="false as released: the attacked images have no noise, filter or shuffle; rows are permuted"
    )

    def rate(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step counted from 0: linear up to `lr`, then half a cosine to 0."""
        if step < self.warmup_steps:
            return self.lr * step / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        return self.lr * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class Inverter(nn.Module):
    """Features of N patches (B, N, D) -> images (B, C, H, W) in [-1, 1]; its blocks start as those of `encoder`."""

    def __init__(self, encoder: Encoder, channels: int) -> None:
        from timm.layers import Mlp

        super().__init__()
        if getattr(encoder, "pos_embed", None) is None:
            raise ConfigError("the inverter needs position embeddings, to know where in the image a patch belongs")
        width, (height, self.cols) = encoder.embed_dim, encoder.patch_embed.patch_size
        self.grid, self.channels, self.rows = grid_of(encoder), channels, height
        num_values = channels * self.rows * self.cols
        self.mlp = Mlp(width, out_features=width)
        self.positions = nn.Parameter(patch_positions(encoder).detach().clone())
        self.blocks, self.norm = copy.deepcopy(encoder.blocks), copy.deepcopy(encoder.norm)
        self.to_values = nn.Identity() if width == num_values else nn.Linear(width, num_values)

    def forward(self, features: Tensor) -> Tensor:
        tokens = self.norm(self.blocks(self.mlp(features) + self.positions))
        values = self.to_values(tokens).tanh().unflatten(2, (self.channels, -1))
        return to_images(values, (self.grid.rows * self.rows, self.grid.cols * self.cols), self.grid)


@dataclass
class Attacker:
    """One attack on one client. Pixels are (B, C, H, W) in [0, 1]; `mean` and `std` are what the model sees them with.

    Random choices are seeded by (seed, step) in training and by (seed, batch) in the attack itself.
    """

    client: Client
    inverter: Inverter
    cfg: InversionConfig
    mean: Sequence[float]
    std: Sequence[float]
    seed: int = 0
    losses: list[float] = field(default_factory=list)  # mean squared error of each epoch, values in [-1, 1]
    held_out: list[float] = field(default_factory=list)  # the same of images it does not train on

    def __post_init__(self) -> None:
        cfg = self.cfg
        parameters = self.inverter.parameters()
        self.optimizer = AdamW(parameters, lr=cfg.lr, betas=cfg.betas, weight_decay=cfg.weight_decay)
        self.best = copy.deepcopy(self.inverter.state_dict())

    def train(
        self,
        batches: Callable[[int], Iterable[Tensor]],
        epoch_steps: int,
        kept: Sequence[Tensor],
        epochs: Iterable[int] | None = None,
    ) -> None:
        """`batches` gives the pixels of an epoch; the inverter is that of the epoch with the least error on `kept`.

        `epochs` are those that are left, where the state of the others was loaded.
        """
        cfg = self.cfg
        for epoch in range(cfg.epochs) if epochs is None else epochs:
            errors = []
            for step, pixels in enumerate(batches(epoch), start=epoch * epoch_steps):
                for group in self.optimizer.param_groups:
                    group["lr"] = cfg.rate(step, cfg.epochs * epoch_steps)
                errors.append(self._step(pixels, step))
            self.losses.append(torch.stack(errors).mean().item())
            self.held_out.append(self._error(kept))
            if self.held_out[-1] <= min(self.held_out):
                self.best = copy.deepcopy(self.inverter.state_dict())
        self.inverter.load_state_dict(self.best)

    def state_dict(self) -> dict[str, Any]:
        """After an epoch, all that the next one depends on."""
        trained = {"inverter": self.inverter.state_dict(), "optimizer": self.optimizer.state_dict(), "best": self.best}
        return {**trained, "losses": self.losses, "held_out": self.held_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inverter.load_state_dict(state["inverter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.losses, self.held_out = state["best"], state["losses"], state["held_out"]

    def _step(self, pixels: Tensor, step: int) -> Tensor:
        features = self.features(pixels, generator_for("inversion", self.seed, step), self.client.protection)
        loss = F.mse_loss(self.inverter.train()(features), 2 * pixels - 1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def recover(self, pixels: Tensor, number: int) -> Tensor:
        """The pixels of a batch that the attacker finds in what the client sends of it; `number` is the batch's."""
        generator = generator_for("inverted", self.seed, number)
        features = self.features(pixels, generator, self.tested_protection)
        return (self.inverter.eval()(features) + 1) / 2

    def _error(self, kept: Sequence[Tensor]) -> float:
        """Mean squared error over images, which count equally, with pixels in [-1, 1]."""
        errors = [
            (2 * (self.recover(pixels, number) - pixels)).square().mean(dim=(1, 2, 3))
            for number, pixels in enumerate(kept)
        ]
        return torch.cat(errors).mean().item()

    @property
    def tested_protection(self) -> FeatureProtection:
        """What hides the images that are attacked."""
        protection = self.client.protection
        return protection if self.cfg.protects_test else FeatureProtection(rows=protection.rows)

    @torch.no_grad()
    def features(self, pixels: Tensor, generator: torch.Generator, protection: FeatureProtection) -> Tensor:
        """(B, N, D): what the server gets, less the first row, where CLS would be without row permutation."""
        sent = self.client.eval().features(self.seen(pixels), generator, protection, self.cfg.has_positions)
        return sent.tokens[:, num_prefix_tokens(self.client.encoder) :]

    def seen(self, pixels: Tensor) -> Tensor:
        """Pixels as the model sees them."""
        mean, std = (pixels.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std


def compared(recovered: Tensor, original: Tensor, network: Network | None = None) -> dict[str, Tensor]:
    """METRICS, and fsim where a network is given, of each image (B,) in float64; pixels (B, C, H, W) in [0, 1].

    The released ones take values in [-1, 1] for a range and a peak of 1: PSNR is 6.02 dB lower, and SSIM another.
    The release averages PSNR over the errors of batches of 8; here each image has its own.
    """
    one, other = recovered.double(), original.double()
    found = psnr((one - other).square().mean(dim=(1, 2, 3)), other[0].numel())
    values = (
        found,
        ssim(one, other, padding=0),
        found - 20 * math.log10(2),
        ssim(2 * one - 1, 2 * other - 1, padding=0),
    )
    metrics = dict(zip(METRICS, values, strict=True))
    return metrics if network is None else {**metrics, "fsim": feature_similarity(network, recovered, original)}


@torch.no_grad()
def feature_similarity(network: Network, recovered: Tensor, original: Tensor) -> Tensor:
    """F-SIM: |cosine| of the features that a network gives both images (B,); the paper's is a face recogniser."""
    one, other = (network(2 * pixels - 1).flatten(1).double() for pixels in (recovered, original))
    return F.cosine_similarity(one, other, dim=1).abs()
