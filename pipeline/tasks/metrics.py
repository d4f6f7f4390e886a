"""Metrics over a data set: each batch updates them, processes merge them, `compute` gives what was found.

A metric knows the number of each batch, so what it finds is the same for any number of processes, to the last bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from pipeline.methods.base import Measured, PerImage, PerToken


@dataclass(frozen=True)
class MetricValues:
    """What was measured on a data set of `count` images."""

    metrics: dict[str, float] = field(default_factory=dict)
    # Standard errors of the metrics that are means over images.
    errors: dict[str, float] = field(default_factory=dict)
    count: int = 0
    # float32 (count,), in the order of the data set.
    per_image: dict[str, np.ndarray] = field(default_factory=dict)

    def with_mean(self, name: str) -> Self:
        """The mean of all metrics, under a name of its own, before them."""
        mean = sum(self.metrics.values()) / len(self.metrics)
        per_image = np.stack([*self.per_image.values()]).astype(np.float64).mean(axis=0).astype(np.float32)
        return replace(
            self,
            metrics={name: mean, **self.metrics},
            errors={name: standard_error(per_image), **self.errors},
            per_image={name: per_image, **self.per_image},
        )


class Metric(ABC):
    """What one process has seen, and what all of them found."""

    @abstractmethod
    def update(self, values: Any, number: int) -> None:
        """Take what was measured on batch `number` of the data set; nothing here waits for the device."""

    @abstractmethod
    def state(self) -> Any:
        """What this process has seen, as plain values and arrays, for the others."""

    @abstractmethod
    def merge(self, states: Sequence[Any]) -> None:
        """Take what all processes have seen, in the order of their ranks, instead of this one's own."""

    @abstractmethod
    def compute(self) -> MetricValues:
        """After `merge`."""


class MeanPerImage(Metric):
    """Means over images of named values."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[str, PerImage]] = {}
        self.parts: dict[int, dict[str, _Part]] = {}

    def update(self, values: Mapping[str, Any], number: int) -> None:
        each = {name: v if isinstance(v, PerImage) else PerImage(v, v.sum()) for name, v in values.items()}
        self.batches[number] = each

    def state(self) -> dict[int, "dict[str, _Part]"]:
        """Copied from the device once for each name."""
        names = next(iter(self.batches.values()), {})
        columns = [_to_host([batch[name] for batch in self.batches.values()]) for name in names]
        rows = zip(self.batches, zip(*columns, strict=True), strict=True) if names else ()
        return {number: dict(zip(names, parts, strict=True)) for number, parts in rows}

    def merge(self, states: Sequence[dict[int, "dict[str, _Part]"]]) -> None:
        self.parts = {number: batch for state in states for number, batch in state.items()}

    def compute(self) -> MetricValues:
        batches = [self.parts[number] for number in sorted(self.parts)]
        names = batches[0] if batches else {}
        per_image = {name: np.concatenate([batch[name].values for batch in batches]) for name in names}
        count = len(next(iter(per_image.values()), ()))
        # One after the other: `sum` and numpy add in other orders, which changes the last digits.
        means = {name: reduce(add, (batch[name].total for batch in batches)) / count for name in names}
        return MetricValues(means, {name: standard_error(v) for name, v in per_image.items()}, count, per_image)


class MeanPerToken(Metric):
    """Means over all tokens of a data set of named values, so that a long text counts for more than a short one.

    The mean of a text is no estimate of such a mean. Its value per text is therefore that of the ratio of the two sums,
    linearised: the mean of these values is the mean over tokens, and their standard error is that of the ratio.
    """

    def __init__(self) -> None:
        self.batches: dict[int, Mapping[str, Any]] = {}
        self.parts: dict[int, dict[str, np.ndarray]] = {}

    def update(self, values: Mapping[str, Measured], number: int) -> None:
        self.batches[number] = values

    def state(self) -> dict[int, dict[str, np.ndarray]]:
        return {number: {name: _sums(v) for name, v in batch.items()} for number, batch in self.batches.items()}

    def merge(self, states: Sequence[dict[int, dict[str, np.ndarray]]]) -> None:
        self.parts = {number: batch for state in states for number, batch in state.items()}

    def compute(self) -> MetricValues:
        batches = [self.parts[number] for number in sorted(self.parts)]
        names = batches[0] if batches else {}
        sums = {name: np.concatenate([batch[name] for batch in batches], axis=1) for name in names}
        means = {name: float(totals.sum() / counts.sum()) for name, (totals, counts) in sums.items()}
        values = {
            name: means[name] + (totals - means[name] * counts) / counts.mean()
            for name, (totals, counts) in sums.items()
        }
        errors = {name: standard_error(each) for name, each in values.items()}
        count = len(next(iter(values.values()), ()))
        return MetricValues(means, errors, count, {name: each.astype(np.float32) for name, each in values.items()})


def _sums(found: Measured) -> np.ndarray:
    """(2, B) float64: totals and counts; a plain number of each text counts once."""
    if isinstance(found, PerToken):
        return np.stack([part.double().cpu().numpy() for part in found])
    values = (found.values if isinstance(found, PerImage) else found).double().cpu().numpy()
    return np.stack([values, np.ones_like(values)])


class _Part(NamedTuple):
    """The images of one batch."""

    values: np.ndarray
    total: float


def _to_host(found: Sequence[PerImage]) -> list[_Part]:
    """The same value of all batches."""
    values = torch.cat([each.values for each in found]).float().cpu().numpy()
    totals = torch.stack([each.total for each in found]).double().tolist()
    ends = np.cumsum([len(each.values) for each in found])
    return [_Part(*part) for part in zip(np.split(values, ends[:-1]), totals, strict=True)]


def standard_error(values: np.ndarray) -> float:
    """Standard error of the mean of these values; for values 0 or 100 it is the binomial 100 sqrt(p (1 - p) / n)."""
    return float(np.std(values, dtype=np.float64) / np.sqrt(len(values)))
