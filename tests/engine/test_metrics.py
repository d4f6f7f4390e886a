"""Metrics over a data set: means as they always were, to the last bit; errors, and values of single images."""

import math

import numpy as np
import pytest
import torch
from peers import peers
from torch.nn import functional as F

from pipeline.methods.base import Prediction, accuracy, cross_entropies, percent
from pipeline.tasks.metrics import MeanPerImage

SIZES = (128, 128, 128, 77)


def logits_of(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def found_in(batches, world_size=1):
    """What processes find that share the batches."""
    for world in peers(world_size):
        metric = MeanPerImage()
        for number in range(world.rank, len(batches), world.size):
            metric.update(batches[number], number)
        metric.merge(world.gather(metric.state()))
    return metric.compute()


def mean_of_sums(sums, count):
    """What validation did when methods summed over their batches."""
    total = 0
    for value in sums:
        total = total + value.double()
    return float(total) / count


def test_accuracy__of_batches__has_the_digits_of_sums_over_batches():
    batches = [(logits_of(size, 10), torch.arange(size) % 10) for size in SIZES]
    found = found_in([accuracy(Prediction(logits, logits), labels) for logits, labels in batches]).metrics
    losses = [F.cross_entropy(logits, labels, reduction="sum") for logits, labels in batches]
    right = [100 * (logits.argmax(dim=1) == labels).sum() for logits, labels in batches]
    assert found["loss"] == mean_of_sums(losses, sum(SIZES))
    assert found["top1"] == mean_of_sums(right, sum(SIZES))


def test_accuracy__label_at_each_rank__counts_as_the_first_or_as_one_of_five():
    logits = torch.arange(7.0).flip(0).expand(7, 7)  # class 0 is the first, class 6 the last
    found = accuracy(Prediction(logits, logits), torch.arange(7))
    assert found["top1"].values.tolist() == [100, 0, 0, 0, 0, 0, 0]
    assert found["top5"].values.tolist() == [100, 100, 100, 100, 100, 0, 0]


def test_positions__of_batches__have_the_digits_of_sums_over_batches():
    batches = [(logits_of(size, 49, 49), torch.randint(49, (size, 49))) for size in SIZES]
    shares = [(logits.argmax(dim=2) == places).float().mean(dim=1) for logits, places in batches]
    measured = [
        {"top1": percent(share), "loss": cross_entropies(*batch)} for share, batch in zip(shares, batches, strict=True)
    ]
    found = found_in(measured).metrics
    losses = [
        F.cross_entropy(logits.flatten(0, 1), places.flatten(), reduction="sum") / 49 for logits, places in batches
    ]
    assert found["loss"] == mean_of_sums(losses, sum(SIZES))
    assert found["top1"] == mean_of_sums([100 * share.sum() for share in shares], sum(SIZES))


def test_error__of_an_accuracy__is_the_binomial_one():
    right = torch.arange(400) < 130
    found = found_in([{"top1": percent(part)} for part in right.split(128)])
    assert found.count == 400
    assert found.metrics == {"top1": 32.5}
    assert found.errors["top1"] == pytest.approx(100 * math.sqrt(0.325 * 0.675 / 400), rel=1e-12)


def test_error__of_any_mean__is_the_deviation_over_the_root_of_the_count():
    values = logits_of(300).double().float()
    found = found_in([{"loss": part} for part in values.split(64)])
    assert found.errors["loss"] == pytest.approx(np.std(values.double().numpy()) / math.sqrt(300), rel=1e-12)


@pytest.mark.parametrize("size", [2, 3, 7])  # of five batches: shared unevenly, and too few
def test_found__by_several_processes__is_equal_to_the_last_bit_and_in_the_order_of_the_set(size):
    parts = [{"loss": part} for part in logits_of(300).split(64)]
    alone, together = found_in(parts), found_in(parts, size)
    assert (together.metrics, together.errors, together.count) == (alone.metrics, alone.errors, 300)
    assert together.per_image["loss"].dtype == np.float32
    assert together.per_image["loss"].tolist() == logits_of(300).tolist()


def test_with_mean__of_several_metrics__has_a_value_for_each_image_too():
    found = found_in([{"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 8.0])}]).with_mean("mean")
    assert found.metrics == {"mean": 3.5, "a": 1.5, "b": 5.5}
    assert found.per_image["mean"].tolist() == [2.0, 5.0]
    assert found.errors["mean"] == pytest.approx(1.5 / math.sqrt(2))
