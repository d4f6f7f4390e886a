"""How much a recovered image resembles the original: the metrics of MJP, Table 5.

Images are (B, C, H, W) with values in [0, 1], grey or in colour; every metric is (B,) float64. The released ones are
computed from PNG files, so images go through `as_png` first. Where the released code differs from the literature, both
are here under names of their own:

- ssim pads with zeros and averages everything; ssim_valid has only windows inside the image (Wang et al. 2004).
- fft2d is a distance of 2-D spectra. The released one multiplies them without a conjugate, which compares an image with
  the other one turned by 180 degrees; fft2d_proper has the conjugate.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.errors import DataError

METRICS = ("mse", "psnr", "ssim", "ssim_valid", "fft2d", "fft2d_proper")
LEVELS = 255
WINDOW, SIGMA = 11, 1.5  # pixels
C1, C2 = 0.01**2, 0.03**2


def as_png(pixels: Tensor) -> Tensor:
    """Rounded to the 256 levels of a PNG and clamped; what is not a number becomes black."""
    return pixels.nan_to_num(0, posinf=1, neginf=0).clamp(0, 1).mul(LEVELS).round().div(LEVELS)


def similarity(recovered: Tensor, original: Tensor) -> dict[str, Tensor]:
    """Every metric of METRICS for each pair of images."""
    if recovered.shape != original.shape:
        raise ValueError(f"found images {tuple(recovered.shape)} and {tuple(original.shape)}, expected one shape")
    one, other = recovered.double(), original.double()
    mse = (one - other).square().mean(dim=(1, 2, 3))
    values = (
        mse,
        psnr(mse, other[0].numel()),
        ssim(one, other, padding=WINDOW // 2),
        ssim(one, other, padding=0),
        fft2d(one, other, is_conjugated=False),
        fft2d(one, other, is_conjugated=True),
    )
    return dict(zip(METRICS, values, strict=True))


def psnr(mse: Tensor, num_values: int) -> Tensor:
    """In dB, for a peak of 1. Equal images count as if one value of the image were one level off, not as infinite."""
    return -10 * mse.clamp(min=1 / LEVELS**2 / num_values).log10()


def ssim(one: Tensor, other: Tensor, padding: int) -> Tensor:
    """The mean over channels and windows of SSIM, with Gaussian windows of 11 pixels."""
    if min(one.shape[2:]) < WINDOW:
        raise DataError(f"images of {min(one.shape[2:])} px are too small for SSIM, whose windows have {WINDOW} px")
    mean_one, mean_other = _smoothed(one, padding), _smoothed(other, padding)
    variance_one = _smoothed(one.square(), padding) - mean_one.square()
    variance_other = _smoothed(other.square(), padding) - mean_other.square()
    covariance = _smoothed(one * other, padding) - mean_one * mean_other
    means = (2 * mean_one * mean_other + C1) / (mean_one.square() + mean_other.square() + C1)
    return (means * (2 * covariance + C2) / (variance_one + variance_other + C2)).mean(dim=(1, 2, 3))


def _smoothed(images: Tensor, padding: int) -> Tensor:
    """The weighted mean of each window; along columns, then along rows."""
    places = torch.arange(WINDOW, dtype=images.dtype, device=images.device) - WINDOW // 2
    weights = (-places.square() / (2 * SIGMA**2)).softmax(dim=0)
    flat = images.flatten(0, 1).unsqueeze(1)  # (B * C, 1, H, W)
    flat = F.conv2d(flat, weights.view(1, 1, -1, 1), padding=(padding, 0))
    return F.conv2d(flat, weights.view(1, 1, 1, -1), padding=(0, padding)).squeeze(1).unflatten(0, images.shape[:2])


def fft2d(one: Tensor, other: Tensor, is_conjugated: bool) -> Tensor:
    """Cosine distance of the spectra, |1 - sum UV / sqrt(sum UU sum VV)|; 1 for a black image, which has no direction.

    No spectrum is computed: by Parseval's theorem the sum of U conj(V) is HW times that of u(x) v(x), and the sum of
    U V is HW times that of u(x) v(-x).
    """

    def product(u: Tensor, v: Tensor) -> Tensor:
        return (u * (v if is_conjugated else _turned(v))).sum(dim=(1, 2, 3))

    squares = product(one, one) * product(other, other)
    cosine = product(one, other) / squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
    return (1 - torch.where(squares > 0, cosine, 0)).abs()


def _turned(images: Tensor) -> Tensor:
    """v(-x): each image turned about its first pixel; indices begin again at the border."""
    return images.flip(2, 3).roll((1, 1), (2, 3))
