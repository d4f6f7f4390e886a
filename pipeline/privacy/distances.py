"""How far two sets of gradients are from each other, group by group."""

import torch
from torch import Tensor

from pipeline.privacy.client import Gradients


def cosine_distance(one: Gradients, other: Gradients) -> Tensor:
    """(G,): 1 less the cosine between all gradients of a group, taken as one vector (Geiping et al. 2020)."""
    smallest = torch.finfo(next(iter(one.values())).dtype).tiny
    own, target = (_dot(each, each).clamp(min=smallest).sqrt() for each in (one, other))
    return 1 - _dot(one, other) / (own * target)


def l2_distance(one: Gradients, other: Gradients) -> Tensor:
    """(G,): the L2 norm of the difference of each parameter's gradient, summed over parameters (GradViT)."""
    return torch.stack([(one[name] - other[name]).flatten(1).norm(dim=1) for name in one]).sum(dim=0)


def _dot(one: Gradients, other: Gradients) -> Tensor:
    return torch.stack([(one[name] * other[name]).flatten(1).sum(dim=1) for name in one]).sum(dim=0)


DISTANCES = {"cosine": cosine_distance, "l2": l2_distance}
