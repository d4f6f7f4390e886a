"""Attacks that look for images whose gradients are those that the client sent.

Geiping et al. (2020), Inverting Gradients: the cosine distance of all gradients together and total variation, Adam on
the sign of the gradient, pixels kept in their range. GradViT (Hatamizadeh et al. 2022): for each parameter the L2 norm
of the difference, summed, with half the weight in the second half; priors on patch borders, total variation and
norm, and in the second half on what several starts agree on. GradViT's image prior, the BatchNorm statistics of a
pretrained CNN, is left out, and so is RANSAC-flow (pipeline/privacy/priors.py). GradViT does not say when registration
starts; before the second half there is little to register.

Unlike the closed form, these attacks take the model as it is. Groups of k images with one set of gradients each, and
several starts of each, are optimised side by side; none depends on another, except on the starts of its own group.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from pipeline.config import Strict
from pipeline.engine.protection import Protection, protected
from pipeline.methods.base import Method
from pipeline.privacy.client import Client, Gradients
from pipeline.privacy.labels import recover_labels
from pipeline.privacy.priors import disagreement, patch_borders, size, total_variation
from pipeline.seeds import generator_for

BETAS, EPS = (0.9, 0.999), 1e-8
STEPS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations; the rate falls to a tenth at each (Geiping et al., their code)
Arrays = dict[str, np.ndarray]
Once = Callable[[str, Callable[[], Arrays]], Arrays]


class Matching(Strict):
    """An attack by gradient matching."""

    distance: Literal["cosine", "cosines", "l2"] = Field(
        "cosine", description="of all gradients as one vector, or the sum of L2 norms over parameters"
    )
    weights: tuple[float, float] = Field((1.0, 1.0), description="of the distance, in the first and the second half")
    tv: float = Field(0.1, ge=0, description="weight of the total variation")
    patch: float = Field(0.0, ge=0, description="weight of jumps across patch borders")
    norm: float = Field(0.0, ge=0, description="weight of the L2 norm of the image")
    registration: float = Field(
        0.0, ge=0, description="weight of the distance to what the starts agree on, in the second half"
    )
    start: float = Field(1.0, ge=0, description="standard deviation of the noise that it starts from")
    seeds: int = Field(1, ge=1, description="starts; the one with the smallest distance at the end is the result")
    iterations: int = Field(4800, ge=1)
    lr: float = Field(0.1, gt=0)
    decay: Literal["none", "step", "cosine"] = "step"
    signed: bool = Field(True, description="Adam sees the sign of the gradient")
    boxed: bool = Field(True, description="pixels stay between black and white")
    labels: Literal["known", "recovered"] = "recovered"
    knows_shuffled: bool = Field(True, description="the attacker knows which slots have the unknown position")
    batch: int = Field(1, ge=1, description="images per gradient")
    gradients: Literal["float32", "float64"] = "float32"

    @model_validator(mode="after")
    def _has_starts_to_register(self) -> "Matching":
        if self.registration and self.seeds == 1:
            raise ValueError("registration compares several starts; set seeds to 2 or more, or registration to 0")
        return self

    def words(self, has_unknown: bool = False) -> str:
        """What the attacker is given, in one sentence; `has_unknown`: some patches have the unknown position."""
        images = "one image" if self.batch == 1 else f"{self.batch} images of distinct classes"
        given = [f"the weights of the model as it is, the gradients of all its parameters for {images}"]
        given.append("the labels" if self.labels == "known" else "no labels: the classifier's bias gradient tells them")
        if has_unknown and self.knows_shuffled:
            given.append("which slots have the unknown position: of one image, rows of the table without gradient tell")
        elif has_unknown:
            given.append("not which slots have the unknown position")
        return f"The attacker is given {', and '.join([', '.join(given[:-1]), given[-1]])}."


@dataclass(frozen=True)
class Observed:
    """What the attacker has of G groups of k images."""

    gradients: Gradients
    labels: Tensor  # (G, k)
    shuffled: Tensor | None  # (G, k, N)

    def part(self, groups: slice) -> "Observed":
        gradients = {name: value[groups] for name, value in self.gradients.items()}
        return Observed(gradients, self.labels[groups], None if self.shuffled is None else self.shuffled[groups])


@dataclass(frozen=True)
class State:
    """Where an attack is: images and Adam's moments (G, S, k, C, H, W), distances so far (G, S, iterations done)."""

    images: Tensor
    first: Tensor
    second: Tensor
    curve: Tensor

    @property
    def step(self) -> int:
        return self.curve.shape[2]

    def as_arrays(self) -> Arrays:
        return {name: value.cpu().numpy() for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays, device: torch.device) -> "State":
        return cls(**{name: torch.from_numpy(value).to(device) for name, value in arrays.items()})


@dataclass(frozen=True)
class Recovery:
    """What an attack found of B images in G groups, as the model sees them."""

    images: Tensor  # (B, C, H, W)
    labels: Tensor  # (B,) those that the attacker used
    distance: Tensor  # (G,) of the gradients at the end
    curve: Tensor  # (G, iterations) distance before each iteration, of the start that was chosen
    steps: tuple[int, ...]  # iterations after which there is a picture
    progress: Tensor  # (len(steps), B, C, H, W)


class Attack:
    """The optimisation; `low` and `high` (C, 1, 1) are black and white as the model sees them."""

    def __init__(self, client: Client, observed: Observed, cfg: Matching, low: Tensor, high: Tensor) -> None:
        self.client, self.cfg = client, cfg
        self.low, self.high = (bound.to(client.slots) for bound in (low, high))
        # Each start is a group of its own for the client: (G, ...) -> (G * S, ...).
        self.target = {name: self._for_starts(value) for name, value in observed.gradients.items()}
        self.labels = self._for_starts(observed.labels)
        self.shuffled = None if observed.shuffled is None else self._for_starts(observed.shuffled)

    def _for_starts(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.cfg.seeds, dim=0)

    def start(self, shape: tuple[int, ...], seed: int, first_group: int = 0) -> State:
        """Noise for images of `shape` (C, H, W); that of a group depends on its number alone."""
        groups = range(first_group, first_group + len(self.labels) // self.cfg.seeds)
        noise = torch.stack([self._noise(shape, seed, group) for group in groups])
        images = self.cfg.start * noise.to(self.client.slots)
        curve = images.new_zeros(*images.shape[:2], 0)
        return State(images, torch.zeros_like(images), torch.zeros_like(images), curve)

    def _noise(self, shape: tuple[int, ...], seed: int, group: int) -> Tensor:
        generator = generator_for("matching", seed, group)
        return torch.randn(self.cfg.seeds, self.cfg.batch, *shape, generator=generator, dtype=torch.float64)

    def advance(self, state: State, steps: int) -> State:
        """The state `steps` iterations later."""
        images, first, second = state.images, state.first, state.second
        distances = []
        for step in range(state.step, state.step + steps):
            distance, gradient = self._descent(images, step)
            first = torch.lerp(gradient, first, BETAS[0])
            second = torch.lerp(gradient.square(), second, BETAS[1])
            unbiased = [moment / (1 - beta ** (step + 1)) for moment, beta in zip((first, second), BETAS, strict=True)]
            images = images - self.lr_at(step) * unbiased[0] / (unbiased[1].sqrt() + EPS)
            if self.cfg.boxed:
                images = images.clamp(self.low, self.high)
            distances.append(distance)
        return State(images, first, second, torch.cat([state.curve, torch.stack(distances, dim=2)], dim=2))

    def _descent(self, images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The distance (G, S), and the gradient of the loss with respect to the images, or its sign."""
        images = images.detach().requires_grad_()
        distance = self.distances(images)
        loss = self.cfg.weights[self._half(step)] * distance + self._priors(images, step)
        (gradient,) = torch.autograd.grad(loss.sum(), images)
        return distance.detach(), gradient.sign() if self.cfg.signed else gradient

    def distances(self, images: Tensor) -> Tensor:
        """(G, S, k, C, H, W) -> (G, S): how far their gradients are from those of the client."""
        found = self.client.gradients(images.flatten(0, 1), self.labels, self.shuffled, tuple(self.target))
        return DISTANCES[self.cfg.distance](found, self.target).view(images.shape[:2])

    def _priors(self, images: Tensor, step: int) -> Tensor:
        """(G, S): their weighted sum, the mean over the images of a group."""
        cfg, total = self.cfg, images.new_zeros(images.shape[:3])
        if cfg.tv:
            total = total + cfg.tv * total_variation(images)
        if cfg.patch:
            total = total + cfg.patch * patch_borders(images, self.client.grid)
        if cfg.norm:
            total = total + cfg.norm * size(images)
        if cfg.registration and self._half(step):
            total = total + cfg.registration * disagreement(images)
        return total.mean(dim=2)

    def _half(self, step: int) -> int:
        return int(2 * step >= self.cfg.iterations)

    def lr_at(self, step: int) -> float:
        progress = step / self.cfg.iterations
        if self.cfg.decay == "cosine":
            return self.cfg.lr * (1 + math.cos(math.pi * progress)) / 2
        falls = sum(progress >= at for at in STEPS) if self.cfg.decay == "step" else 0
        return self.cfg.lr * 0.1**falls


def attack(
    method: Method,
    images: Tensor,
    labels: Tensor,
    shuffled: Tensor | None,
    cfg: Matching,
    bounds: tuple[Tensor, Tensor],
    protection: Protection = Protection(),  # noqa: B008
    seed: int = 0,
    segments: int = 1,
    at_once: int | None = None,
    once: Once = lambda name, compute: compute(),
) -> Recovery:
    """Recover images (B, C, H, W) as the model sees them, with labels (B,) and shuffled (B, N), from their gradients.

    Every `cfg.batch` images in turn are a group. `bounds` are black and white (C, 1, 1); `at_once` groups share memory.
    The attack is made in segments: each is kept by `once` (see Parts), and gives a picture.
    """
    client = Client(method, getattr(torch, cfg.gradients))
    observed = observe(client, images, labels, shuffled, cfg, protection, seed)
    count = len(observed.labels)
    chunks = [slice(first, first + (at_once or count)) for first in range(0, count, at_once or count)]
    found = []
    for chunk in chunks:
        part = Attack(client, observed.part(chunk), cfg, *bounds)
        found.append(_recover(part, tuple(images.shape[1:]), seed, chunk.start, segments, once))
    return Recovery(
        images=torch.cat([each.images for each in found]),
        labels=observed.labels.flatten(),
        distance=torch.cat([each.distance for each in found]),
        curve=torch.cat([each.curve for each in found]),
        steps=found[0].steps,
        progress=torch.cat([each.progress for each in found], dim=1),
    )


def observe(
    client: Client,
    images: Tensor,
    labels: Tensor,
    shuffled: Tensor | None,
    cfg: Matching,
    protection: Protection,
    seed: int,
) -> Observed:
    """What the attacker sees of a client's images (B, C, H, W): gradients of all that it trains, one set per group."""
    groups = len(images) // cfg.batch
    if groups * cfg.batch != len(images):
        raise ValueError(f"{len(images)} images do not make groups of {cfg.batch}")
    images, labels = images.unflatten(0, (groups, -1)), labels.unflatten(0, (groups, -1))
    hidden = None if shuffled is None else shuffled.unflatten(0, (groups, -1))
    trained = tuple(name for name, value in client.method.named_parameters() if value.requires_grad)
    gradients = client.gradients(images, labels, hidden, trained)
    if protection.is_on:
        gradients = _protected(gradients, protection, seed)
    if cfg.labels == "recovered":
        labels = recover_labels(gradients, cfg.batch)
    return Observed(gradients, labels, hidden if cfg.knows_shuffled else None)


def _protected(gradients: Gradients, protection: Protection, seed: int) -> Gradients:
    """Each group by a client of its own, with noise of its own."""
    count = len(next(iter(gradients.values())))
    generators = [generator_for("client", seed, group) for group in range(count)]
    return {
        name: torch.stack([protected(each, protection, of) for each, of in zip(value, generators, strict=True)])
        for name, value in gradients.items()
    }


def _recover(attack: Attack, shape: tuple[int, ...], seed: int, first: int, segments: int, once: Once) -> Recovery:
    """Run an attack to its end, segment by segment; of each group the start whose gradients are closest."""
    iterations = attack.cfg.iterations
    steps = sorted({round(iterations * number / segments) for number in range(1, segments + 1)} - {0})
    state, pictures = attack.start(shape, seed, first), []
    for step in steps:
        arrays = once(f"group_{first}_step_{step}", lambda: attack.advance(state, step - state.step).as_arrays())  # noqa: B023
        state = State.from_arrays(arrays, attack.low.device)
        pictures.append(state.images)
    with torch.no_grad():
        distance = attack.distances(state.images)
    best = distance.argmin(dim=1)
    chosen = torch.arange(len(best), device=best.device), best
    progress = torch.stack([picture[chosen].flatten(0, 1) for picture in pictures])
    labels = attack.labels[:: attack.cfg.seeds].flatten()
    return Recovery(progress[-1], labels, distance[chosen], state.curve[chosen], tuple(steps), progress)


def cosine_distance(one: Gradients, other: Gradients) -> Tensor:
    """(G,): 1 less the cosine between all gradients of a group, taken as one vector."""
    dot, own, target = (
        sum((a[name] * b[name]).flatten(1).sum(dim=1) for name in one)
        for a, b in ((one, other), (one, one), (other, other))
    )
    smallest = torch.finfo(dot.dtype).tiny
    return 1 - dot / (own.clamp(min=smallest).sqrt() * target.clamp(min=smallest).sqrt())


def l2_distance(one: Gradients, other: Gradients) -> Tensor:
    """(G,): the L2 norm of the difference of each parameter's gradient, summed over parameters (GradViT's)."""
    return torch.stack([(one[name] - other[name]).flatten(1).norm(dim=1) for name in one]).sum(dim=0)


def mean_cosine(one, other):
    return torch.stack([cosine_distance({n: one[n]}, {n: other[n]}) for n in one]).mean(dim=0)
DISTANCES = {"cosine": cosine_distance, "l2": l2_distance, "cosines": mean_cosine}
