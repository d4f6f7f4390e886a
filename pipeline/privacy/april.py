"""APRIL, the closed-form attack: an image from the gradients of one training step (MJP Eq. 8 and 9; Lu et al. 2022).

Let z (P+N, D) be what enters the first attention, A the gradient of z, and W the weights of query, key and value with
gradient G. Then W^T G = A^T z. Of z all is known but the patches X: z = known + X E^T, where `known` is CLS, positions
and the bias of the patch embedding E. The attacker solves A^T (X E^T) = W^T G - A^T known for X, in float64.

That holds where the first block has no norm before its attention and no skip around it; the attacked models are
changed so. What is known is subtracted before the equations are solved, not after it: the same where they have one
solution, and closer to the image where they have several.

Two counts limit any such attack, whatever the method: D equations for N tokens, and D equations for the pixels of a
patch. `ceiling` is what these equations would give without any error; only the distance to it can be protection.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.config import Strict
from pipeline.core.errors import ConfigError
from pipeline.engine.protection import Protection
from pipeline.methods.base import Method
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder, Grid, grid_of, to_images, to_patches
from pipeline.models.position import refuse_other_than_plain
from pipeline.privacy.client import QKV, SLOTS, Client, Gradients, finite, protect

DTYPES = {"float64": torch.float64, "float32": torch.float32}
POSITIONS, UNKNOWN = "encoder.pos_embed", "unknown"
BIAS = "encoder.patch_embed.proj.bias"


class Assumptions(Strict):
    """What the attacker is given, and what is assumed of the model; `words` says it in a sentence."""

    gradients: Literal["float64", "float32"] = Field("float64", description="precision of the client's step")
    given: Literal["slots", "parameters"] = Field(
        "slots",
        description="slots: the gradient of what is added to the token at every slot, also where a model hides or has "
        "no position. parameters: gradients of parameters alone, which is what a client of federated learning sends",
    )
    first_norm: bool = Field(False, description="the norm before the first attention stays; the algebra is then wrong")
    first_skips: bool = Field(False, description="the skips of the first block stay; the algebra is then wrong")
    cutoff: float = Field(
        0.0, ge=0, lt=1, description="singular values below this share of the largest are dropped; 0: below rounding"
    )

    def words(self) -> str:
        given = {
            "slots": "the gradient at every slot, also of positions that are hidden or missing",
            "parameters": "the gradients of parameters alone",
        }[self.given]
        norm, skips = (("with", "without")[not kept] for kept in (self.first_norm, self.first_skips))
        return (
            f"the weights, and {given}, in {self.gradients}, of one image at a time; the first block {norm} its norm "
            f"and {skips} its skips; equations solved in float64"
        )


@dataclass(frozen=True)
class Recovery:
    """What the attack found for B images; images are as the model sees them, float64, not clamped."""

    images: Tensor  # (B, C, H, W)
    ceiling: Tensor  # (B, C, H, W): what the same number of equations would give without any error
    condition: Tensor  # (B,): largest over smallest singular value of the equations for the tokens
    rank: Tensor  # (B,): how many singular values are above rounding


EXACT, UNPROTECTED = Assumptions(), Protection()


def reason_against(model: ModelConfig, assumptions: Assumptions) -> str:
    """Why the gradients of such a model cannot be attacked."""
    if model.family != "vit":
        return f"{model.arch} is not a ViT"
    if assumptions.given == "parameters" and model.table not in ("learn", "sincos_learn"):
        return f"model.pos_embed is {model.positions}: no parameter has the gradient at the slots, and none is sent"
    return ""


def attack(
    method: Method,
    images: Tensor,
    labels: Tensor,
    shuffled: Tensor | None = None,
    assumptions: Assumptions = EXACT,
    protection: Protection = UNPROTECTED,
    seed: int = 0,
) -> Recovery:
    """Images (B, C, H, W) as the model sees them, each from the gradients of its own step; shuffled (B, N) bool.

    `seed` is that of the noise with which the client protects its gradients.
    """
    refuse_other_than_plain(method.encoder, "APRIL")
    if reason := reason_other_algebra(method.encoder):
        raise ConfigError(f"APRIL's equations do not apply to this model: {reason}; use another attack")
    client = Client(method, DTYPES[assumptions.gradients], assumptions.first_norm, assumptions.first_skips)
    hidden = shuffled if shuffled is not None and hasattr(method, UNKNOWN) else None
    names = {"slots": (SLOTS, QKV), "parameters": (POSITIONS, QKV, UNKNOWN)[: 2 if hidden is None else 3]}
    mask = None if shuffled is None else shuffled[:, None]
    found = client.gradients(images[:, None], labels[:, None], mask, names[assumptions.given])
    sent = protect(finite(found), protection, seed)
    if assumptions.given == "slots":
        equations = _from_slots(client, sent, shuffled)
    else:
        equations = _from_parameters(client, sent, hidden)
    tokens, condition, rank = _solve(equations, assumptions.cutoff)
    embedding = Embedding.of(method)
    patches = tokens @ embedding.inverse.mT
    if hidden is not None and assumptions.given == "parameters":
        patches = torch.where(hidden[..., None], patches[:, -1:], patches[:, :-1])
    best = ceiling(method, embedding, images, labels, shuffled)
    return Recovery(_as_images(patches, images, client.grid), best, condition, rank)


def reason_other_algebra(encoder: Encoder) -> str:
    """Why the equations of this attack are not those of a plain ViT; empty where they are."""
    early = {"norm_pre": encoder.norm_pre, "patch_embed.norm": encoder.patch_embed.norm}
    normalised = [name for name, module in early.items() if not isinstance(module, nn.Identity)]
    if normalised:
        return f"{' and '.join(normalised)} stands before its first block, so tokens are not patches plus positions"
    if encoder.patch_embed.proj.bias is None:
        return "its patch embedding has no bias"
    parts = {"norm1", "attn", "ls1", "norm2", "mlp", "ls2"} - {*dict(encoder.blocks[0].named_children())}
    return f"its first block has no {', '.join(sorted(parts))}" if parts else ""


class Equations(NamedTuple):
    """rows^T (X E^T) = right, for M unknown tokens X E^T: rows (B, M, D), right (B, D, D)."""

    rows: Tensor
    right: Tensor


def _from_slots(client: Client, gradients: Gradients, shuffled: Tensor | None) -> Equations:
    """The gradient at every slot, and the positions that were added there, are known."""
    rows = gradients[SLOTS][:, 0]
    right = _products(client, gradients) - rows.mT @ _known(client, shuffled)
    return Equations(rows[:, client.num_prefix :], right)


def _from_parameters(client: Client, gradients: Gradients, hidden: Tensor | None) -> Equations:
    """Patches with the unknown position have one gradient together, so they are solved for as one patch, the last."""
    rows = gradients[POSITIONS][:, 0]
    if hidden is not None:  # they are zero, unless the client adds noise
        rows = rows.masked_fill(F.pad(hidden, (client.num_prefix, 0), value=False)[..., None], 0.0)
    right = _products(client, gradients) - rows.mT @ _known(client, None)
    rows = rows[:, client.num_prefix :]
    if hidden is None:
        return Equations(rows, right)
    together = gradients[UNKNOWN]  # (B, 1, D)
    weights = client.named_weights()
    known = (weights[UNKNOWN] + weights[BIAS]).double()
    return Equations(torch.cat([rows, together], dim=1), right - together.mT @ known)


def _products(client: Client, gradients: Gradients) -> Tensor:
    """W^T G (B, D, D)"""
    return client.named_weights()[QKV].double().mT @ gradients[QKV]


def _known(client: Client, shuffled: Tensor | None) -> Tensor:
    """(B or 1, P+N, D): what enters the first block where all patches are zero, which is the mean colour."""
    encoder = client.method.encoder
    bias = client.named_weights()[BIAS].expand(1, client.grid.size, -1)
    tokens = torch.cat([encoder.cls_token.detach(), bias], dim=1) if client.num_prefix else bias
    positions = client.method.slot_positions(shuffled)
    return (tokens if positions is None else tokens + positions.detach()).double()


@dataclass(frozen=True)
class Embedding:
    """The patch embedding E (D, values of a patch), and the inverse (values, D) that gives the smallest patches."""

    weight: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, method: Method) -> "Embedding":
        weight = method.encoder.patch_embed.proj.weight.detach().flatten(1).double()
        return cls(weight, torch.linalg.pinv(weight))


def _solve(equations: Equations, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest tokens (B, M, D) that solve the equations best, and condition and rank (B,) of `rows`."""
    left, values, right_vectors = torch.linalg.svd(equations.rows, full_matrices=False)
    rounding = torch.finfo(values.dtype).eps * max(equations.rows.shape[1:])
    largest = values[:, :1]
    kept = values > largest * max(cutoff, rounding)
    inverses = torch.where(kept, 1 / values, 0.0)
    tokens = left @ (inverses[..., None] * (right_vectors @ equations.right))
    condition = largest / values.clamp(min=rounding * largest)
    return tokens, condition[:, -1], (values > largest * rounding).sum(dim=1)


def ceiling(
    method: Method, embedding: Embedding, images: Tensor, labels: Tensor, shuffled: Tensor | None = None
) -> Tensor:
    """The part of the images that D equations for N tokens, and D for the values of a patch, can tell."""
    grid = grid_of(method.encoder)
    patches = to_patches(images.double(), grid).flatten(2)
    seen = patches @ (embedding.inverse @ embedding.weight).mT
    if grid.size > len(embedding.weight):
        client = Client(method, torch.float64, first_norm=False, first_skips=False)
        mask = None if shuffled is None else shuffled[:, None]
        found = finite(client.gradients(images[:, None], labels[:, None], mask, (SLOTS,)))
        rows = found[SLOTS][:, 0, client.num_prefix :]
        directions = torch.linalg.svd(rows, full_matrices=False).U
        seen = directions @ (directions.mT @ seen)
    return _as_images(seen, images, grid)


def _as_images(patches: Tensor, like: Tensor, grid: Grid) -> Tensor:
    """Patches (B, N, values) -> (B, C, H, W)"""
    return to_images(patches.unflatten(2, (like.shape[1], -1)), like.shape[2:], grid)
