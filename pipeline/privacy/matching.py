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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from tqdm import tqdm

from pipeline.core.config import Strict
from pipeline.core.cuda_graph import Replayed
from pipeline.core.seeds import generator_for
from pipeline.engine.protection import Protection
from pipeline.methods.base import Method
from pipeline.privacy.client import Client, Gradients, finite, protect
from pipeline.privacy.distances import DISTANCES
from pipeline.privacy.labels import recover_labels
from pipeline.privacy.priors import disagreement, patch_borders, size, total_variation

BETAS, EPS = (0.9, 0.999), 1e-8
FALLS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations; the rate falls to a tenth at each, as in the code of Geiping et al.
LITTLE = 0.05  # so that patches differ: without positions, equal ones would stay equal
Arrays = dict[str, np.ndarray]
Once = Callable[[str, Callable[[], Arrays]], Arrays]


class Matching(Strict):
    """An attack by gradient matching."""

    distance: Literal["cosine", "l2"] = Field(
        "cosine", description="of all gradients as one vector, or the sum of L2 norms over parameters"
    )
    weights: tuple[float, float] = Field((1.0, 1.0), description="of the distance, in the first and the second half")
    tv: float = Field(0.1, ge=0, description="weight of the total variation")
    patch: float = Field(0.0, ge=0, description="weight of the jumps across patch borders")
    norm: float = Field(0.0, ge=0, description="weight of the L2 norm of the image")
    registration: float = Field(
        0.0, ge=0, description="weight of the distance to what the starts agree on, in the second half"
    )
    start: Literal["normal", "mean", "black"] = Field(
        "normal", description="standard normal noise, or an image of the mean colour, or of black, with a little noise"
    )
    seeds: int = Field(1, ge=1, description="starts; the one with the smallest distance at the end is the result")
    iterations: int = Field(4800, ge=1)
    """Updates of the image."""
    lr: float = Field(0.1, gt=0)
    """Step size of Adam at the start."""
    decay: Literal["none", "step", "cosine"] = Field("step", description="step: to a tenth at 3, 5 and 7 eighths")
    signed: bool = Field(True, description="Adam sees the sign of the gradient")
    boxed: bool = Field(True, description="pixels stay between black and white")
    labels: Literal["known", "recovered"] = "recovered"
    """Whether the attacker has the labels, or reads them off the gradient."""
    knows_shuffled: bool = Field(True, description="the attacker knows which slots have the unknown position")
    batch: int = Field(1, ge=1, description="images per gradient")
    gradients: Literal["float32", "float64"] = Field("float32", description="precision of client and attacker")

    @model_validator(mode="after")
    def _has_starts_to_register(self) -> "Matching":
        if self.registration and self.seeds == 1:
            raise ValueError("registration compares several starts: set seeds to 2 or more, or registration to 0")
        return self

    def words(self, has_hidden: bool = False) -> str:
        """What the attacker has; `has_hidden`: some patches have the unknown position."""
        images = "one image at a time" if self.batch == 1 else f"{self.batch} images together"
        words = [f"the model as it is and the gradients of its parameters, in {self.gradients}, of {images}"]
        if self.labels == "known":
            words.append("their labels")
        else:
            words.append("labels from the gradient of the classifier's bias" + ", all different" * (self.batch > 1))
        if has_hidden and self.knows_shuffled:
            words.append("which slots have the unknown position (of one image, rows of the table without gradient)")
        elif has_hidden:
            words.append("no knowledge of which slots have the unknown position")
        return "; ".join(words)


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
    curve: Tensor  # (G, iterations) distance before each iteration
    steps: tuple[int, ...]  # iterations after which there is a picture
    progress: Tensor  # (len(steps), B, C, H, W)


class Attack:
    """The optimisation; `bounds` (C, 1, 1) are black and white as the model sees them."""

    def __init__(self, client: Client, observed: Observed, cfg: Matching, bounds: Sequence[Tensor]) -> None:
        self.client, self.cfg = client, cfg
        self.bounds = [bound.to(client.slots) for bound in bounds]
        # Each start is a group of its own for the client: (G, ...) -> (G * S, ...).
        self.target = {name: self._for_starts(value) for name, value in observed.gradients.items()}
        self.labels = self._for_starts(observed.labels)
        self.shuffled = None if observed.shuffled is None else self._for_starts(observed.shuffled)
        self.replayed = Replayed("steps of the attack", client.slots.device)
        self.replayed.is_on = client.slots.device.type == "cuda"  # else the GPU waits for the host most of the time

    def _for_starts(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.cfg.seeds, dim=0)

    def start(self, shape: Sequence[int], seed: int, first_group: int = 0) -> State:
        """Noise for images of `shape` (C, H, W); that of a group depends on its number alone."""
        count = len(self.labels) // self.cfg.seeds
        generators = [generator_for("matching", seed, first_group + number) for number in range(count)]
        size = self.cfg.seeds, self.cfg.batch, *shape
        noise = torch.stack([torch.randn(size, generator=each, dtype=torch.float64) for each in generators])
        noise = noise.to(self.client.slots)
        images = noise if self.cfg.start == "normal" else LITTLE * noise
        images = images + self.bounds[0] if self.cfg.start == "black" else images
        return State(images, torch.zeros_like(images), torch.zeros_like(images), images.new_zeros(count, size[0], 0))

    def advance(self, state: State, steps: int) -> State:
        """The state `steps` iterations later."""
        images, first, second = state.images, state.first, state.second
        distances = []
        for step in tqdm(range(state.step, state.step + steps), "matching gradients", disable=None, leave=False):
            half = self._half(step)
            distance, gradient = self.replayed.run(partial(self._descent, half), (half, images.shape), images)
            first = torch.lerp(gradient, first, BETAS[0])
            second = torch.lerp(gradient.square(), second, BETAS[1])
            mean, square = (
                moment / (1 - beta ** (step + 1)) for moment, beta in zip((first, second), BETAS, strict=True)
            )
            images = images - self.lr_at(step) * mean / (square.sqrt() + EPS)
            if self.cfg.boxed:
                images = images.clamp(*self.bounds)
            distances.append(distance)
        return State(images, first, second, torch.cat([state.curve, torch.stack(distances, dim=2)], dim=2))

    def _descent(self, half: int, images: Tensor) -> tuple[Tensor, Tensor]:
        """The distance (G, S), and the gradient of the loss with respect to the images, or its sign."""
        images = images.detach().requires_grad_()
        distance = self.distances(images)
        loss = self.cfg.weights[half] * distance + self._priors(images, half)
        (gradient,) = torch.autograd.grad(loss.sum(), images)
        return distance.detach(), gradient.sign() if self.cfg.signed else gradient

    def distances(self, images: Tensor) -> Tensor:
        """(G, S, k, C, H, W) -> (G, S): how far their gradients are from those of the client."""
        found = self.client.gradients(images.flatten(0, 1), self.labels, self.shuffled, tuple(self.target))
        return DISTANCES[self.cfg.distance](found, self.target).view(images.shape[:2])

    def _priors(self, images: Tensor, half: int) -> Tensor:
        """(G, S): their weighted sum, the mean over the images of a group."""
        cfg, total = self.cfg, images.new_zeros(images.shape[:3])
        if cfg.tv:
            total = total + cfg.tv * total_variation(images)
        if cfg.patch:
            total = total + cfg.patch * patch_borders(images, self.client.grid)
        if cfg.norm:
            total = total + cfg.norm * size(images)
        if cfg.registration and half:
            total = total + cfg.registration * disagreement(images)
        return total.mean(dim=2)

    def _half(self, step: int) -> int:
        return int(2 * step >= self.cfg.iterations)

    def lr_at(self, step: int) -> float:
        progress = step / self.cfg.iterations
        if self.cfg.decay == "cosine":
            return self.cfg.lr * (1 + math.cos(math.pi * progress)) / 2
        falls = sum(progress >= fall for fall in FALLS) if self.cfg.decay == "step" else 0
        return self.cfg.lr * 0.1**falls


def attack(
    method: Method,
    images: Tensor,
    labels: Tensor,
    shuffled: Tensor | None,
    cfg: Matching,
    bounds: Sequence[Tensor],
    protection: Protection | None = None,
    seed: int = 0,
    segments: int = 1,
    at_once: int | None = None,
    once: Once = lambda name, compute: compute(),
) -> Recovery:
    """Images (B, C, H, W) as the model sees them, with labels (B,) and shuffled (B, N), from their gradients alone.

    Every `cfg.batch` images in turn are a group, and `at_once` groups are attacked side by side. The attack is made in
    segments: each is kept by `once` (see `Parts`), and gives a picture.
    """
    client = Client(method, getattr(torch, cfg.gradients))
    observed = observe(client, images, labels, shuffled, cfg, protection or Protection(), seed)
    size = at_once or len(observed.labels)
    found = []
    for first in range(0, len(observed.labels), size):
        part = Attack(client, observed.part(slice(first, first + size)), cfg, bounds)
        start = part.start(images.shape[1:], seed, first)
        found.append(_recover(part, start, segments, once, f"group_{first}"))
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
    if len(images) % cfg.batch:
        raise ValueError(f"{len(images)} images do not make groups of {cfg.batch}")
    images, labels = (each.unflatten(0, (-1, cfg.batch)) for each in (images, labels))
    hidden = None if shuffled is None else shuffled.unflatten(0, (-1, cfg.batch))
    gradients = finite(client.gradients(images, labels, hidden))
    if protection.is_on:
        gradients = {name: value.to(client.dtype) for name, value in protect(gradients, protection, seed).items()}
    if cfg.labels == "recovered":
        labels = recover_labels(gradients, cfg.batch)
    return Observed(gradients, labels, hidden if cfg.knows_shuffled else None)


def _recover(attack: Attack, state: State, segments: int, once: Once, prefix: str) -> Recovery:
    """Run an attack to its end, segment by segment; of each group the start whose gradients are closest counts."""
    iterations, device = attack.cfg.iterations, state.images.device
    steps = sorted({math.ceil(iterations * number / segments) for number in range(1, segments + 1)})
    pictures = []
    for step in steps:
        arrays = once(f"{prefix}_step_{step}", partial(_segment, attack, state, step))
        state = State.from_arrays(arrays, device)
        pictures.append(state.images)
    with torch.no_grad():
        distance = attack.distances(state.images)
    chosen = torch.arange(len(distance), device=device), distance.argmin(dim=1)
    progress = torch.stack([picture[chosen].flatten(0, 1) for picture in pictures])
    labels = attack.labels[:: attack.cfg.seeds].flatten()
    return Recovery(progress[-1], labels, distance[chosen], state.curve[chosen], tuple(steps), progress)


def _segment(attack: Attack, state: State, step: int) -> Arrays:
    return attack.advance(state, step - state.step).as_arrays()
