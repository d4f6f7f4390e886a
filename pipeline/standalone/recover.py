"""The attacks that the command `attack` knows, on one image of a client.

april is the closed form (pipeline/privacy/april.py). cosine and gradvit are searches by gradient matching with the
configs gradient_matching and gradvit of configs/eval, as a run's scale changes them. A search that is stopped continues
where it was.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.core.config import Layers, parse
from pipeline.core.errors import ConfigError
from pipeline.evals.parts import Arrays, Parts, key_of
from pipeline.evals.privacy.gradient_matching import GradientMatching, bounds_of, draw_curves
from pipeline.evals.privacy.leakage import PictureColumn, pixels_of
from pipeline.privacy import april, matching
from pipeline.privacy.similarity import as_png, similarity
from pipeline.standalone.victim import Victim
from pipeline.study.resolve.draft import fragment
from pipeline.study.spec import read_scale

log = logging.getLogger(__name__)
AttackName = Literal["april", "cosine", "gradvit"]
Numbers = dict[str, float | None]
CHANGED = (  # what april.Assumptions() take away
    "for this attack, the norm and the skip connections of the model's first block were removed; its equations hold "
    "only without them, so the result is about the changed model"
)
SEARCHES = {"cosine": "gradient_matching", "gradvit": "gradvit"}  # files of configs/eval


@dataclass(frozen=True)
class Target:
    """One image of the client, (1, C, H, W) as the model sees it, with the label (1,) that it trains with."""

    file: Path
    inputs: Tensor
    label: Tensor
    label_is_predicted: bool
    predicted: int
    folder: Path


@dataclass(frozen=True)
class RecoveredImage:
    """What an attack made of one image; pictures are (1, C, H, W) as the model sees them."""

    pictures: dict[str, Tensor]  # `recovered`, and `ceiling` where there is one
    given: str  # what the attacker has, in words
    config: dict[str, Any]
    numbers: Numbers
    lines: list[tuple[str, str]] = field(default_factory=list)  # what else there is to say
    on_the_way: list[PictureColumn] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


Attack = Callable[[Victim, Target], RecoveredImage]


def attack_of(name: AttackName, victim: Victim, iterations: int | None) -> Attack:
    """The attack of this name, if it can work on this model."""
    if name != "april":
        cfg = _search(name, victim, iterations)
        return lambda victim, target: _by_matching(victim, target, cfg)
    if iterations is not None:
        raise ConfigError("--iterations is for cosine and gradvit; april has no iterations")
    if reason := april.reason_other_algebra(victim.method.encoder):
        raise ConfigError(f"APRIL does not work on {victim.name}: {reason}; choose another --attack")
    return _by_april


def _by_april(victim: Victim, target: Target) -> RecoveredImage:
    cfg = april.Assumptions()
    found = april.attack(victim.method, target.inputs, target.label, None, cfg, victim.protection)
    return RecoveredImage(
        {"recovered": found.images, "ceiling": found.ceiling},
        cfg.words(),
        cfg.model_dump(),
        {"condition": finite(found.condition), "rank": finite(found.rank)},
        [("changed", CHANGED)],
    )


def _search(name: AttackName, victim: Victim, iterations: int | None) -> GradientMatching.Config:
    """The config of configs/eval, for one image."""
    file, content = fragment("eval", SEARCHES[name], "attack")
    layers = [(file, content)]
    if victim.scale:
        scale = read_scale(victim.scale)
        layers.append((f"configs/scale/{victim.scale}.yaml: eval.{SEARCHES[name]}", scale.eval.get(SEARCHES[name], {})))
    asked = {"images": 1, "batch": 1} | ({} if iterations is None else {"iterations": iterations})
    return parse(GradientMatching.Config, Layers(*layers, ("command line", asked)))


def _by_matching(victim: Victim, target: Target, cfg: GradientMatching.Config) -> RecoveredImage:
    facts = victim.weights, target.inputs.cpu().numpy().tobytes(), int(target.label), victim.protection.model_dump()
    parts = Parts(target.folder / "parts", key_of(*facts, cfg.science()))

    def once(name: str, compute: Callable[[], Arrays]) -> Arrays:
        arrays = parts.once(name, compute)
        curve = arrays["curve"]
        log.info("%d of %d iterations, distance %.3g", curve.shape[-1], cfg.iterations, np.min(curve[..., -1]))
        return arrays

    images, bounds = target.inputs, bounds_of(victim.data)
    found = matching.attack(
        *(victim.method, images, target.label, None, cfg, bounds, victim.protection, cfg.seed, cfg.pictures, None, once)
    )
    parts.forget()
    pairs = zip(found.steps[:-1], found.progress[:-1], strict=True)
    blank, distance = _psnr(torch.zeros_like(images), images, victim), finite(found.distance)
    is_right = int(found.labels) == int(target.label)
    said = f"distance {found.distance.item():.3g} after {cfg.iterations:,} iterations; label {int(found.labels)}"
    return RecoveredImage(
        {"recovered": found.images},
        cfg.words(),
        cfg.science(),
        {"gradient_distance": distance, "label_accuracy": 100.0 * is_right, "blank_psnr": blank},
        [
            ("blank", f"PSNR {blank:.2f} dB: an image of the mean colour, which knows nothing"),
            ("gradient", f"{said}, which is {'right' if is_right else 'wrong'}"),
        ],
        [PictureColumn(f"iteration {step:,}", picture, images) for step, picture in pairs],
        {"loss.png": draw_curves(found.curve, cfg.distance)},
    )


def _psnr(images: Tensor, wanted: Tensor, victim: Victim) -> float:
    pair = [as_png(pixels_of(each, victim.data)) for each in (images, wanted)]
    return float(similarity(*pair)["psnr"])


def finite(value: Tensor) -> float | None:
    """A number that JSON can hold."""
    return float(value) if math.isfinite(value) else None
