"""Cells with noise, and the verdict on a comparison of them."""

import math

import numpy as np

from pipeline.study.claims.decide import JudgedClaim, ResolvedClaim, judge
from pipeline.study.claims.reading import Reading, SeedNoise

A, B, C = ("s.t1.a", "top1"), ("s.t1.b", "top1"), ("s.t1.c", "top1")
SURE = 1.96


def accuracies(both: int, only_a: int, only_b: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Which images two classifiers get right, as 100 or 0, so that the mean is an accuracy in per cent."""
    a = np.repeat([100, 100, 0, 0], [both, only_a, only_b, neither]).astype(np.float32)
    b = np.repeat([100, 0, 100, 0], [both, only_a, only_b, neither]).astype(np.float32)
    return a, b


def paired(values: np.ndarray, *more_seeds: np.ndarray, **about) -> Reading:
    seeds = (values, *more_seeds)
    return Reading(float(np.mean(seeds, dtype=np.float64)), error=1.0, per_image=seeds, images="val", **about)


def binomial(accuracy: float, count: int) -> float:
    return 100 * math.sqrt(accuracy / 100 * (1 - accuracy / 100) / count)


def unpaired(accuracy: float, count: int = 1000) -> Reading:
    return Reading(accuracy, error=binomial(accuracy, count))


def judged(text: str, type: str = "directional", **readings: Reading) -> JudgedClaim:
    for name in ("a", "b", "c"):
        text = text.replace(f" {name} ", f" s.t1.{name}:top1 ")
    claim = ResolvedClaim(statement="", type=type, holds=[text.strip()])
    return judge({"s.c1": claim}, {(f"s.t1.{name}", "top1"): reading for name, reading in readings.items()})[0]


def verdict(text: str, **readings: Reading) -> str:
    return judged(text, **readings).verdict


def one_run(value: float, spread: float | None, dof: int = 1000) -> Reading:
    seeds = None if spread is None else SeedNoise(spread, dof)
    return Reading(value, error=0.0, tolerance=0.4, is_one_run=True, seeds=seeds)
