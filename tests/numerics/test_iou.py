"""mIoU, mAcc and aAcc against a count by hand, with classes that are absent, and across processes."""

import numpy as np
import pytest
import torch
from peers import peers

from pipeline.dense.iou import IGNORED, Areas, areas, confusion
from pipeline.engine.validate import measure_set
from pipeline.tasks.metrics import standard_error
from pipeline.tasks.segment import Overlaps


def test_confusion__a_small_image__counts_pairs_and_leaves_out_ignored_pixels():
    labels = torch.tensor([[0, 0, 1], [2, IGNORED, 1]], dtype=torch.uint8)
    answers = torch.tensor([[0, 1, 1], [0, 2, 1]])
    assert confusion(answers, labels, 4).tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def by_hand(images, num_classes):
    """Sets of pixels, class by class; None where a class has no share."""
    ious, accs, right, total = [], [], 0, 0
    for label in range(num_classes):
        both = truth = either = 0
        for answers, labels in images:
            for answered, true in zip(answers.flatten().tolist(), labels.flatten().tolist(), strict=True):
                if true == IGNORED:
                    continue
                both += answered == true == label
                truth += true == label
                either += true == label or answered == label
        ious.append(100 * both / either if either else None)
        accs.append(100 * both / truth if truth else None)
        right, total = right + both, total + truth
    means = [sum(v for v in each if v is not None) / sum(v is not None for v in each) for each in (ious, accs)]
    return *means, 100 * right / total, ious, accs


def some_images(count=5, num_classes=6, seed=0):
    """Answers that are right more often than not; class 3 is in no image, class 4 is answered and never true."""
    generator = torch.Generator().manual_seed(seed)
    images = []
    for number in range(count):
        size = (5 + number, 7)
        labels = torch.tensor([0, 1, 2, 5, IGNORED])[torch.randint(5, size, generator=generator)]
        wrong = torch.tensor([0, 1, 2, 4, 5])[torch.randint(5, size, generator=generator)]
        is_right = (torch.rand(size, generator=generator) < 0.6) & (labels != IGNORED)
        images.append((torch.where(is_right, labels, wrong), labels.to(torch.uint8)))
    return images


def counted(images, num_classes=6):
    return torch.stack([confusion(*image, num_classes) for image in images])


def test_shares__classes_absent_from_truth_or_from_both__are_left_out_of_the_means():
    images = some_images()
    miou, macc, aacc, ious, accs = by_hand(images, 6)
    found = Areas(areas(counted(images)).numpy()).shares()
    assert (found.miou, found.macc, found.aacc) == pytest.approx((miou, macc, aacc))
    assert [None if np.isnan(value) else pytest.approx(value) for value in found.iou] == ious
    assert [None if np.isnan(value) else pytest.approx(value) for value in found.acc] == accs
    assert (ious[3], ious[4], accs[4]) == (None, 0.0, None)


def test_per_image__of_a_set__has_the_metrics_as_means():
    counts = Areas(areas(counted(some_images())).numpy())
    shares = counts.shares()._asdict()
    for name, values in counts.per_image().items():
        assert values.shape == (5,)
        assert values.mean() == pytest.approx(shares[name])


@pytest.mark.slow
def test_errors__of_many_sets_drawn_alike__are_the_spread_of_the_metric():
    """Sets of 40 images that are drawn from 400: the error that one set reports is the deviation between sets."""
    everything = areas(counted(some_images(400))).numpy()
    generator = np.random.default_rng(0)
    drawn = [Areas(everything[generator.integers(0, 400, 40)]) for _ in range(200)]
    for name in ("miou", "macc", "aacc"):
        spread = np.std([each.shares()._asdict()[name] for each in drawn])
        errors = [standard_error(each.per_image()[name]) for each in drawn]
        assert np.mean(errors) == pytest.approx(spread, rel=0.2)


class Nothing:
    """A method that has answered already: its batches are counts."""

    training = False

    def eval(self):
        return self

    def train(self, mode):
        return self


class AsTheyAre:
    def eval_batch(self, inputs, targets):
        return inputs, targets


def measured(matrices, world_size, batch=2):
    """What the last of so many processes finds."""
    pieces = [matrices[start : start + batch] for start in range(0, len(matrices), batch)]
    for world in peers(world_size):
        share = [(piece, piece) for piece in pieces[world.rank :: world_size]]
        found = measure_set(
            Nothing(),
            share,
            AsTheyAre(),
            world,
            "fp32",
            lambda method, each: {
                "confusion": each.inputs,
                "rows_confusion": each.inputs,
                "apart": each.inputs[:, 0, 0].double(),
            },
            metric=Overlaps(),
        )
    return found


def test_overlaps__over_processes__finds_the_same_to_the_last_bit():
    images = some_images(7)
    matrices = counted(images)
    alone, shared = measured(matrices, 1), measured(matrices, 3)
    assert alone.metrics == shared.metrics and alone.errors == shared.errors and alone.count == shared.count == 7
    miou, macc, aacc, *_ = by_hand(images, 6)
    for prefix in ("", "rows_"):
        expected = {f"{prefix}miou": miou, f"{prefix}macc": macc, f"{prefix}aacc": aacc}
        assert {name: alone.metrics[name] for name in expected} == pytest.approx(expected)
    assert alone.metrics["apart"] == pytest.approx(matrices[:, 0, 0].double().mean().item())
    assert {name: len(values) for name, values in alone.per_image.items()} == dict.fromkeys(alone.metrics, 7)
    for name, values in alone.per_image.items():
        assert shared.per_image[name].tolist() == values.tolist()
        assert alone.errors[name] == pytest.approx(np.std(values.astype(float)) / np.sqrt(7), rel=1e-4)


def test_overlaps__without_a_batch__is_empty():
    metric = Overlaps()
    metric.merge([metric.state()])
    assert metric.compute().metrics == {}


def test_errors__of_rare_classes__are_those_of_the_bootstrap_over_images():
    """As in ADE20K, most classes are in few images."""
    draw = np.random.default_rng(0)
    images, classes = 300, 40
    shown = draw.uniform(size=(images, classes)) < np.maximum(0.6 / np.arange(1, classes + 1), 0.02)
    truth = np.where(shown, draw.integers(50, 2000, (images, classes)), 0)
    both = (truth * draw.beta(2, 1, (images, classes))).astype(int)
    counts = np.stack([both, truth, both + draw.integers(0, 40, (images, classes))], axis=1)
    found = Areas(counts).per_image()

    def shares(drawn):
        return np.array(Areas(drawn).shares()[:3])

    resampled = [shares(counts[draw.integers(0, images, images)]) for _ in range(300)]
    for name, spread in zip(("miou", "macc", "aacc"), np.std(resampled, axis=0), strict=True):
        assert standard_error(found[name]) == pytest.approx(spread, rel=0.15), name
