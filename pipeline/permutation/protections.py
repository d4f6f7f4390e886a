"""How a client of split learning hides its images from the server (ST Sec. 5.3, Table 6).

GN adds Gaussian noise to the image and LP keeps its low frequencies, both before the embedding. BS (batch shuffle, Yao
et al. 2022) exchanges patch tokens between the images of a batch, for good. Row permutation (ST Eq. 2) sends the tokens
in another order, one order for the whole batch, CLS included, new every time; the client undoes it in what comes back.

Where the paper is silent: it gives no value for the noise or for the shares of BS. The released filter is a square with
a half-open border, which is not symmetric; a disc, as the word radius says, is an option.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.config import Strict
from pipeline.core.errors import ConfigError
from pipeline.models.patches import random_order, send, take


class FeatureProtection(Strict):
    """What a client does to images and tokens before the server sees them; all of it can be combined."""

    noise: float = Field(0.0, ge=0, description="GN: standard deviation, on images as the model sees them")
    radius: float | None = Field(None, gt=0, le=0.5)
    """Low-pass filter (LP): radius as a share of the side; null: no filter."""
    filter: Literal["square", "disc"] = "square"
    """Shape of the low-pass filter: a square as released, or the disc that a radius means."""
    own_share: float | None = Field(
        None, ge=0, le=1, description="BS: share of the patches of an image that stay with it (k1); null: no shuffle"
    )
    still_share: float = Field(0.8, ge=0, le=1, description="BS: share of those that stay in their place (k2)")
    rows: bool = Field(False, description="row permutation, on top of all others")

    def words(self) -> str:
        """What is done, in a few words."""
        shares = f"{self.own_share} of the patches stay with their image, {self.still_share} of those in place"
        found = {
            f"Gaussian noise of {self.noise}": self.noise,
            f"low-pass filter, {self.filter} of radius {self.radius}": self.radius,
            f"batch shuffle, {shares}": self.own_share is not None,
            "row permutation": self.rows,
        }
        return "; ".join(words for words, is_on in found.items() if is_on) or "none"

    def of_images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """GN and LP: images (B, C, H, W) as the model sees them."""
        if self.noise:
            images = with_noise(images, self.noise, generator)
        return images if self.radius is None else low_pass(images, self.radius, self.filter)

    def of_tokens(self, tokens: Tensor, num_prefix: int, generator: torch.Generator) -> "SentTokens":
        """BS and row permutation: tokens (B, P+N, D), of which the P first ones are no patches."""
        if self.own_share is not None:
            prefix, patches = tokens[:, :num_prefix], tokens[:, num_prefix:]
            patches = batch_shuffled(patches, self.own_share, self.still_share, generator)
            tokens = torch.cat([prefix, patches], dim=1)
        # Drawn in any case, so that with rows or without, noise and shuffle of the next batch are the same.
        seed = int(torch.randint(2**62, (), generator=generator))
        if not self.rows:
            return SentTokens(tokens, None)
        order = random_order(1, tokens.shape[1], torch.Generator().manual_seed(seed), tokens.device)[0]
        return SentTokens(tokens[:, order], order)


class SentTokens(NamedTuple):
    """What a client sends (B, P+N, D), and the order (P+N,) of its rows, which it keeps to itself."""

    tokens: Tensor
    order: Tensor | None

    def restored(self, outputs: Tensor) -> Tensor:
        """What came back, with its rows in the place they had (the inverse of P_R in ST Eq. 2)."""
        return outputs if self.order is None else outputs[:, self.order.argsort()]


def with_noise(images: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Drawn on the CPU in float32, so that the noise is the same on every device and in every precision."""
    drawn = torch.randn(images.shape, generator=generator, dtype=torch.float32)
    return images + std * send(drawn, images.device).to(images.dtype)


def low_pass(images: Tensor, radius: float, shape: Literal["square", "disc"]) -> Tensor:
    """Images (B, C, H, W) without the frequencies outside a square or disc; of the result, the real part."""
    kept = _kept_frequencies(images.shape[2], images.shape[3], radius, shape).to(images.device)
    return torch.fft.ifft2(torch.fft.fft2(images) * kept).real


def _kept_frequencies(height: int, width: int, radius: float, shape: Literal["square", "disc"]) -> Tensor:
    """(H, W) bool, in the order of `fft2`, where the mean comes first."""
    rows, cols = (torch.fft.fftfreq(side, 1 / side, dtype=torch.float64) for side in (height, width))
    if shape == "disc":
        inside = (rows[:, None] / (radius * height)).square() + (cols / (radius * width)).square() <= 1
    else:
        half_rows, half_cols = int(radius * height), int(radius * width)
        if not (half_rows and half_cols):
            raise ConfigError(
                f"a low-pass filter of radius {radius} keeps nothing of {height}x{width} pixels; choose a radius of at "
                f"least {1 / min(height, width):.3g}"
            )
        # From -half up to, but without, +half: so the released code cuts it.
        inside_rows, inside_cols = ((at >= -half) & (at < half) for at, half in ((rows, half_rows), (cols, half_cols)))
        inside = inside_rows[:, None] & inside_cols
    return inside


def batch_shuffled(patches: Tensor, own_share: float, still_share: float, generator: torch.Generator) -> Tensor:
    """patches (B, N, D): of each image some stay in place, some move within it, the rest moves about the batch."""
    count, size, _ = patches.shape
    sources = _batch_order(count, size, own_share, still_share, generator)
    return patches.flatten(0, 1)[send(sources, patches.device)]


def _batch_order(count: int, size: int, own_share: float, still_share: float, generator: torch.Generator) -> Tensor:
    """(B, N): for each place the number of the patch that comes there, counted through the whole batch."""
    cpu = torch.device("cpu")
    num_own, num_still = int(size * own_share), int(size * own_share * still_share)
    places = random_order(count, size, generator, cpu)
    sources = places + size * torch.arange(count)[:, None]
    still, moving, leaving = sources.split([num_still, num_own - num_still, size - num_own], dim=1)
    mixed = leaving.flatten()[torch.randperm(leaving.numel(), generator=generator)].view_as(leaving)
    around = torch.cat([moving, mixed], dim=1)
    around = take(around, random_order(count, size - num_still, generator, cpu))
    return torch.empty_like(sources).scatter_(1, places, torch.cat([still, around], dim=1))
