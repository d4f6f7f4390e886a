"""What an attacker believes about images, as numbers that are small for plausible ones.

Images are (..., C, H, W); each prior is one number per image. Total variation is that of Geiping et al. (2020): the
mean absolute difference between neighbours, down and to the right. GradViT (Hatamizadeh et al. 2022) adds the jumps
across the borders of patches, the L2 norm, and the distance to what the results of several starts agree on. GradViT
registers these results with RANSAC-flow, a trained network; here each is moved as a whole, by phase correlation.
"""

import torch
from torch import Tensor

from pipeline.models.patches import Grid

IMAGE = (-3, -2, -1)


def total_variation(images: Tensor) -> Tensor:
    down, right = images.diff(dim=-2), images.diff(dim=-1)
    return down.abs().mean(dim=IMAGE) + right.abs().mean(dim=IMAGE)


def patch_borders(images: Tensor, grid: Grid) -> Tensor:
    """The sum over all borders between rows or columns of patches of the L2 norm of the jump across."""
    rows = torch.arange(1, grid.rows, device=images.device) * (images.shape[-2] // grid.rows)
    cols = torch.arange(1, grid.cols, device=images.device) * (images.shape[-1] // grid.cols)
    down = images[..., rows, :] - images[..., rows - 1, :]
    right = images[..., cols] - images[..., cols - 1]
    return _norm(down, dims=(-3, -1)).sum(dim=-1) + _norm(right, dims=(-3, -2)).sum(dim=-1)


def size(images: Tensor) -> Tensor:
    """The L2 norm of each image: 0 for the mean colour of the data set."""
    return _norm(images, IMAGE)


def disagreement(images: Tensor) -> Tensor:
    """(G, S, k, C, H, W) of S starts -> (G, S, k): the distance of each to what the starts of its image agree on."""
    return _norm(images - agreed(images.detach()), IMAGE)


def agreed(images: Tensor) -> Tensor:
    """(G, S, k, C, H, W) -> (G, 1, k, C, H, W): the mean over starts after each was moved to fit the plain mean."""
    plain = images.mean(dim=1, keepdim=True)
    return moved(images, shifts(images, plain)).mean(dim=1, keepdim=True)


def shifts(images: Tensor, target: Tensor) -> Tensor:
    """(..., 2) rows and columns by which to move each image so that it fits its target, by phase correlation.

    Channels are averaged, and what leaves the image on one side comes back on the other.
    """
    one, other = (torch.fft.rfft2(each.mean(dim=-3)) for each in (images, target))
    cross = other * one.conj()
    cross = cross / cross.abs().clamp(min=torch.finfo(images.dtype).tiny)
    peaks = torch.fft.irfft2(cross, s=images.shape[-2:]).flatten(-2).argmax(dim=-1)
    return torch.stack([peaks // images.shape[-1], peaks % images.shape[-1]], dim=-1)


def moved(images: Tensor, by: Tensor) -> Tensor:
    """images (..., C, H, W) rolled by (..., 2) rows and columns."""
    for axis in (-2, -1):
        length = images.shape[axis]
        places = torch.arange(length, device=images.device)
        source = (places - by[..., 2 + axis, None]) % length  # (..., length)
        index = source[..., None, :, None] if axis == -2 else source[..., None, None, :]
        images = images.gather(axis, index.expand(images.shape))
    return images


def _norm(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The L2 norm, with gradient 0 where everything is 0."""
    return torch.linalg.vector_norm(values, dim=dims)
