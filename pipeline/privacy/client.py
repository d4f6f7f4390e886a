"""The client of federated learning: its model, and the gradients that it sends for its images.

One set of gradients belongs to each group of images, often of one image; sets are computed side by side. Parameters
go by their names in the method (`encoder.blocks.0.attn.qkv.weight`, `unknown`). `SLOTS` is one more: the gradient of
what is added to the token at each slot. Where a model has learned positions and hides none of them, that is the
gradient of its table.

Gradients can be differentiated again: attention is computed without fused kernels, which have no second derivative, and
norms without their fused weights, of which torch's `vmap` has a wrong one.
"""

import copy
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.core.errors import NumericsError
from pipeline.engine.protection import Protection, protected
from pipeline.methods.base import Method
from pipeline.models.patches import grid_of
from pipeline.models.position import encode, num_prefix_tokens, refuse_other_than_plain

SLOTS = "slots"
QKV = "encoder.blocks.0.attn.qkv.weight"
Gradients = dict[str, Tensor]  # name -> (G, *shape of the parameter), for G groups of images


class Client(nn.Module):
    """A copy of a ViT classifier that computes in `dtype`, with the first block as it is or as APRIL assumes it."""

    def __init__(self, method: Method, dtype: torch.dtype, first_norm: bool = True, first_skips: bool = True) -> None:
        super().__init__()
        refuse_other_than_plain(method.encoder, "an attack on gradients")
        self.method: Any = copy.deepcopy(method).to(dtype).eval()
        encoder = self.method.encoder
        self.grid, self.num_prefix = grid_of(encoder), num_prefix_tokens(encoder)
        device = next(encoder.parameters()).device
        tokens = self.num_prefix + self.grid.size
        self.slots = nn.Parameter(torch.zeros(1, tokens, encoder.embed_dim, dtype=dtype, device=device))
        norms: list[Any] = [module for module in encoder.modules() if isinstance(module, nn.LayerNorm)]
        for norm in norms:
            if norm.elementwise_affine:
                norm.forward = types.MethodType(_norm_then_scale, norm)
        if not first_norm:
            encoder.blocks[0].norm1 = nn.Identity()
        if not first_skips:
            encoder.blocks[0].forward = types.MethodType(_without_skips, encoder.blocks[0])

    @property
    def dtype(self) -> torch.dtype:
        return self.slots.dtype

    def forward(self, images: Tensor, shuffled: Tensor | None = None) -> Tensor:
        """Logits of images (B, C, H, W); patches in `shuffled` (B, N) have the unknown position, if there is one."""
        positions = self.method.slot_positions(shuffled)
        added = self.slots if positions is None else positions + self.slots
        places = self.method.slot_places(shuffled)
        return self.method.classify(encode(self.method.encoder, images, added, places)).logits

    def named_weights(self) -> dict[str, Tensor]:
        """All parameters by the names that this file uses, with the table of slots."""
        return {name.removeprefix("method."): value.detach() for name, value in self.named_parameters()}

    def gradients(
        self, images: Tensor, labels: Tensor, shuffled: Tensor | None = None, names: tuple[str, ...] | None = None
    ) -> Gradients:
        """Gradients of the mean cross-entropy per group: images (G, k, C, H, W), labels (G, k), shuffled (G, k, N).

        By default of every parameter that a client trains, which the table of slots and fixed positions are not.
        """
        weights = self.named_weights()
        trained = (name for name, value in self.method.named_parameters() if value.requires_grad)
        wanted = {name: weights[name] for name in names or trained}
        fixed = {name: value for name, value in weights.items() if name not in wanted}

        def loss(chosen: dict[str, Tensor], images: Tensor, labels: Tensor, shuffled: Tensor | None) -> Tensor:
            given = {name if name == SLOTS else f"method.{name}": value for name, value in {**fixed, **chosen}.items()}
            return F.cross_entropy(functional_call(self, given, (images, shuffled)), labels)

        in_dims = (None, 0, 0, None if shuffled is None else 0)
        with sdpa_kernel(SDPBackend.MATH):
            return vmap(grad(loss), in_dims)(wanted, images.to(self.dtype), labels, shuffled)


def finite(gradients: Gradients) -> Gradients:
    """The gradients, unless they have NaN or infinity, from which nothing can be recovered."""
    broken = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    if broken:
        raise NumericsError(
            f"the gradient of {broken[0]} is not finite (NaN or infinity), so no image can be recovered from it; check "
            "the weights of the model"
        )
    return gradients


def protect(gradients: Gradients, protection: Protection, seed: int) -> Gradients:
    """The gradients of each group as a client with these protections sends them, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.stack([protected(one, protection, generator) for one in gradient.double()])
        for name, gradient in gradients.items()
    }


def _norm_then_scale(norm: Any, tokens: Tensor) -> Tensor:
    """A layer norm that scales in a step of its own.

    In one step, the gradient of the scale under `vmap` takes mean and variance of the tokens for constants.
    """
    tokens = F.layer_norm(tokens, norm.normalized_shape, eps=norm.eps) * norm.weight
    return tokens if norm.bias is None else tokens + norm.bias


def _without_skips(block: Any, tokens: Tensor) -> Tensor:
    """A timm block whose attention and MLP replace their input instead of adding to it."""
    tokens = block.ls1(block.attn(block.norm1(tokens)))
    return block.ls2(block.mlp(block.norm2(tokens)))
