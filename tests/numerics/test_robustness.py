"""Adversarial images, outliers and calibration: each number against a plain loop or scikit-learn."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from small_set import MEAN, STD, build

from pipeline.core.errors import DataError
from pipeline.data.readers.published import check_classes, published_classes
from pipeline.data.store.prepare import prepare
from pipeline.engine.parallel.distributed import World
from pipeline.evals.accuracy import calibration
from pipeline.evals.accuracy.adversarial import Adversarial, aurra
from pipeline.evals.accuracy.calibration import Calibration, ece, rms_calibration
from pipeline.evals.accuracy.classify_on import ClassifyOn
from pipeline.evals.accuracy.outliers import Outliers, aupr, auroc, fpr95
from pipeline.evals.accuracy.restricted import resampled_error, seen_by
from pipeline.evals.base import Subject
from pipeline.evals.parts import Parts
from pipeline.methods.base import Prediction
from pipeline.tasks.metrics import MetricValues

ALONE = World(0, 1, torch.device("cpu"))


def draw(seed, count=237, ties=False):
    """Confidences and whether each answer is right, more often the surer it is."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.1, 1.0, count)
    confidence = confidence.round(1) if ties else confidence
    return confidence, (rng.uniform(size=count) < confidence**2).astype(float)


# Numbers of whole sets


def test_aurra__any_answers__is_the_mean_accuracy_of_the_surest():
    confidence, right = draw(0)
    order = sorted(range(len(right)), key=lambda i: -confidence[i])
    accuracies = []
    for n in range(1, len(order) + 1):
        accuracies.append(sum(right[i] for i in order[:n]) / n)
    assert aurra(confidence, right) == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-12)


def test_aurra__confidence_says_nothing__is_near_the_accuracy():
    rng = np.random.default_rng(0)
    right = (rng.uniform(size=20000) < 0.3).astype(float)
    assert aurra(rng.uniform(size=20000), right) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("ties", [False, True])
def test_scores_of_outliers__with_and_without_ties__equal_scikit_learn(ties):
    positives, negatives = draw(1, 90, ties)[0] + 0.2, draw(2, 300, ties)[0]
    truth, scores = np.r_[np.ones(90), np.zeros(300)], np.r_[positives, negatives]
    false_rate, true_rate, _ = roc_curve(truth, scores, drop_intermediate=False)

    assert aupr(positives, negatives) == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    assert auroc(positives, negatives) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert fpr95(positives, negatives) == pytest.approx(false_rate[true_rate >= 0.95].min(), abs=1e-12)


def released_fpr(positives, negatives):
    """As in calibration_tools.py of Natural Adversarial Examples: the threshold whose recall is nearest to 95 %."""
    scores, truth = np.r_[positives, negatives], np.r_[np.ones(len(positives)), np.zeros(len(negatives))]
    order = np.argsort(scores, kind="mergesort")[::-1]
    scores, truth = scores[order], truth[order]
    ends = np.r_[np.where(np.diff(scores))[0], truth.size - 1]
    hits = np.cumsum(truth)[ends]
    false = 1 + ends - hits
    backwards = slice(hits.searchsorted(hits[-1]), None, -1)
    recall, false = np.r_[(hits / hits[-1])[backwards], 1], np.r_[false[backwards], 0]
    return false[np.argmin(np.abs(recall - 0.95))] / len(negatives)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [7, 19, 50, 90])
def test_fpr95__as_released__is_that_of_the_nearest_recall(count, ties):
    positives, negatives = draw(1, count, ties)[0] + 0.2, draw(2, 300, ties)[0]
    expected = released_fpr(positives, negatives)
    assert fpr95(positives, negatives, "released") == pytest.approx(expected, abs=1e-12)


def test_fpr95__recall_just_below_95_percent__is_nearer_but_not_enough():
    positives, negatives = np.arange(18) + 0.5, np.array([-1, 0.5, 0.5, 2])  # recalls are 17/18 = 94.4 % and 1
    assert (fpr95(positives, negatives, "released"), fpr95(positives, negatives, "corrected")) == (0.25, 0.75)


def test_aupr__random_scores__is_the_prevalence():
    rng = np.random.default_rng(0)
    found = [aupr(rng.uniform(size=200), rng.uniform(size=1000)) for _ in range(200)]
    assert np.mean(found) == pytest.approx(1 / 6, abs=0.005)
    assert aupr(np.zeros(200), np.zeros(1000)) == pytest.approx(1 / 6)


def test_auroc_and_fpr__perfect_and_reversed_scores__are_the_extremes():
    low, high = np.linspace(0, 1, 50), np.linspace(2, 3, 70)
    assert (aupr(high, low), auroc(high, low), fpr95(high, low)) == (1, 1, 0)
    assert (auroc(low, high), fpr95(low, high)) == (0, 1)


def hand_ece(confidence, right, bins):
    total = 0.0
    for number in range(bins):
        inside = [i for i, c in enumerate(confidence) if number / bins < c <= (number + 1) / bins]
        if inside:
            accuracy = sum(right[i] for i in inside) / len(inside)
            total += len(inside) / len(right) * abs(accuracy - sum(confidence[i] for i in inside) / len(inside))
    return total


@pytest.mark.parametrize("ties", [False, True])  # ties lie on the edges of ten bins
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece__any_answers__equals_a_loop_over_bins(bins, ties):
    confidence, right = draw(3, ties=ties)
    assert ece(confidence, right, bins) == pytest.approx(hand_ece(confidence, right, bins), abs=1e-12)


def test_ece__sure_and_always_wrong__is_one():
    assert ece(np.ones(5), np.zeros(5), 15) == 1


@pytest.mark.parametrize("per_bin", [10, 79, 100, 237, 1000])  # there are 237 answers, 3 x 79
def test_rms_calibration__any_answers__equals_a_loop_over_ranks(per_bin):
    confidence, right = draw(4)
    order = sorted(range(len(right)), key=lambda i: confidence[i])
    bins = [order[start : start + per_bin] for start in range(0, len(order), per_bin)]
    if len(bins) > 1 and len(bins[-1]) < per_bin:
        bins[-2:] = [bins[-2] + bins[-1]]
    squares = [len(b) * (np.mean(right[b]) - np.mean(confidence[b])) ** 2 for b in bins]
    expected = math.sqrt(sum(squares) / len(right))
    assert rms_calibration(confidence, right, per_bin) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("per_bin", [10, 79, 100, 237])
def test_rms_calibration__as_released__leaves_the_last_bin_out(per_bin):
    confidence, right = draw(4)
    order = np.argsort(confidence)
    starts = [number * per_bin for number in range(len(order) // per_bin)][:-1]
    bins = [order[start : start + per_bin] for start in starts]
    squares = [len(b) / len(order) * (np.mean(right[b]) - np.mean(confidence[b])) ** 2 for b in bins]
    found = rms_calibration(confidence, right, per_bin, "released")
    assert found == pytest.approx(math.sqrt(sum(squares)), abs=1e-12)
    assert found < rms_calibration(confidence, right, per_bin)


def test_resampled_error__with_its_200_resamples__is_that_of_a_mean_within_a_tenth():
    values = np.random.default_rng(1).normal(size=500)
    found = resampled_error(lambda drawn: drawn.mean(), (values,), seed=0)
    assert found == pytest.approx(values.std() / np.sqrt(500), rel=0.1)


def test_resampled_error__of_a_mean__is_its_standard_error():
    values = np.random.default_rng(0).normal(size=400)
    found = resampled_error(lambda drawn: drawn.mean(), (values,), seed=0, times=2000)
    assert found == pytest.approx(values.std() / 20, rel=0.06)


def test_resampled_error__of_two_groups__draws_each_by_itself():
    values = np.random.default_rng(0).normal(size=400)
    apart, together = (
        resampled_error(lambda one, other: one.mean() - other.mean(), *groups, seed=0, times=1000)
        for groups in (((values,), (values,)), ((values, values),))
    )
    assert apart == pytest.approx(np.sqrt(2) * values.std() / 20, rel=0.08) and together == 0


# Evaluations


def probabilities(world, method, columns=None):
    """One image at a time."""
    found = []
    for pixels in world.pixels:
        image = (torch.tensor(pixels).float()[None, None] / 255 - MEAN) / STD
        with torch.no_grad():
            logits = method.predict(image).logits[0]
        kept = logits if columns is None else logits[columns]
        found.append(torch.softmax(kept, 0).numpy())
    return np.stack(found)


def part_of_world(world, name, *classes):
    """Some classes of the small set, prepared as a set of their own."""
    changes = {"only_classes": classes, "num_classes": len(classes), "num_train": 0, "num_val": 15 * len(classes)}
    data = world.data.model_copy(update={"name": name, "part_of": world.data.name, **changes})
    prepare(data, world.site.data[world.data.name], world.results.manifest(name).parent, progress=False)
    return data


def elsewhere(world, data):
    """The set in a folder of its own, as ImageNet-O has one."""
    folders = {**world.site.data, data.name: world.site.data[world.data.name]}
    return world.with_site(data=folders), data.model_copy(update={"part_of": None})


def evaluate(world, kind, method, data, own=None, parts=None, **fields):
    run = world.run_of(method)
    run = run if own is None else run.model_copy(update={"data": own})
    evaluation = kind(kind.Config(**fields), data, world.results, world.site, ALONE, parts)
    return evaluation.compute(Subject(run, method))


@pytest.mark.slow
def test_adversarial__set_of_three_classes__sees_their_logits_only(world):
    method, names = build("baseline"), ("Trouser", "Sandal", "Ankle boot")
    columns = [1, 5, 9]
    expected = probabilities(world, method, columns)[np.isin(world.labels, columns)]
    labels = np.searchsorted(columns, world.labels[np.isin(world.labels, columns)])

    found = evaluate(world, Adversarial, method, {"adversarial": part_of_world(world, "three", *names)})

    right = (expected.argmax(1) == labels).astype(float)
    assert found.metrics["top1"] == pytest.approx(100 * right.mean(), abs=1e-4)
    assert found.metrics["aurra"] == pytest.approx(100 * aurra(expected.max(1), right), abs=1e-3)
    assert found.count == 45 and set(found.errors) == {"top1", "aurra", "confidence"}
    assert found.metrics["confidence"] == pytest.approx(100 * expected.max(1).mean(), abs=1e-3)
    sets = np.random.default_rng(9).integers(0, 45, (400, 45))
    spread = np.std([aurra(expected.max(1)[chosen], right[chosen]) for chosen in sets])
    assert found.errors["aurra"] == pytest.approx(100 * spread, rel=0.2)
    unrestricted = (probabilities(world, method)[np.isin(world.labels, columns)].argmax(1)).tolist()
    assert 100 * np.mean(np.isin(unrestricted, columns)) < 100, "the restriction changes nothing here"


@pytest.mark.slow
def test_classify_on__set_with_other_labels__asks_for_the_classes_of_the_same_names(world):
    method, columns = build("baseline"), [1, 5, 9]
    found = evaluate(
        world, ClassifyOn, method, {"test": part_of_world(world, "some", "Trouser", "Sandal", "Ankle boot")}
    )
    chosen = np.isin(world.labels, columns)
    expected, labels = probabilities(world, method)[chosen], world.labels[chosen]
    assert found.metrics["top1"] == pytest.approx(100 * (expected.argmax(1) == labels).mean())
    assert found.metrics["loss"] == pytest.approx(-np.log(expected[np.arange(45), labels]).mean(), rel=1e-4)
    assert found.count == 45


@pytest.mark.slow
def test_outliers__of_known_classes__are_compared_with_images_of_the_same_classes(world):
    method, columns = build("baseline"), [0, 3]
    world, data = elsewhere(world, part_of_world(world, "two", "T-shirt/top", "Dress"))
    sure = probabilities(world, method, columns).max(1)[np.isin(world.labels, columns)]

    found = evaluate(world, Outliers, method, {"outliers": data})

    # The outliers are the negatives here, so every score is that of chance.
    assert found.metrics["aupr"] == pytest.approx(100 * aupr(-sure, -sure), abs=1e-3)
    assert found.metrics["auroc"] == pytest.approx(50, abs=1e-6)
    assert found.metrics["prevalence"] == 50 and found.count == 60


@pytest.mark.slow
@pytest.mark.parametrize("key", ["interpolation", "crop"])
def test_outliers__set_that_is_seen_otherwise__lets_inliers_be_seen_alike(world, key):
    method = build("baseline")
    world, data = elsewhere(world, part_of_world(world, "two", "T-shirt/top", "Dress"))
    own = world.data.model_copy(update={"eval_crop": 0.6})  # so that images are resized
    augment = own.augment.model_copy(update={"interpolation": "bilinear"})
    changes = {"augment": augment, "eval_crop": 0.6} if key == "interpolation" else {"eval_crop": 0.8}
    assert own.augment.interpolation == "bicubic"

    found = evaluate(world, Outliers, method, {"outliers": data.model_copy(update=changes)}, own=own)

    # The outliers are the negatives here: seen alike, their scores are the same.
    assert found.metrics["auroc"] == pytest.approx(50, abs=1e-6)


@pytest.mark.slow
def test_outliers__of_held_out_classes__are_compared_with_every_image(world):
    method = build("baseline")
    held_out = part_of_world(world, "held_out", "Sandal", "Bag")
    rest = {"without_classes": ("Sandal", "Bag"), "num_classes": 8, "num_train": 32, "num_val": 120}
    known = world.data.model_copy(update={"name": "known", "part_of": world.data.name, **rest})
    prepare(known, world.site.data[world.data.name], world.results.manifest("known").parent, progress=False)
    sure, is_outlier = probabilities(world, method).max(1), np.isin(world.labels, [5, 8])

    found = evaluate(world, Outliers, method, {"outliers": held_out}, own=known)

    expected = average_precision_score(is_outlier, -sure)
    assert found.metrics["aupr"] == pytest.approx(100 * expected, abs=1e-3)
    assert found.metrics["auroc"] == pytest.approx(100 * roc_auc_score(is_outlier, -sure), abs=1e-3)
    assert found.metrics["prevalence"] == 20 and found.errors["prevalence"] == 0
    with pytest.raises(DataError, match="does not have: Sandal"):
        mixed = part_of_world(world, "mixed", "Sandal", "Coat")
        evaluate(world, Outliers, method, {"outliers": mixed}, own=known)
    with pytest.raises(DataError, match="has no class of known"):
        evaluate(world, Adversarial, method, {"adversarial": held_out}, own=known)


@pytest.mark.slow
def test_outliers__of_classes_that_the_model_was_trained_on__are_none(world):
    found = evaluate(world, Outliers, build("baseline"), {"outliers": part_of_world(world, "pair", "Sandal", "Bag")})
    assert set(found.reasons) == set(Outliers.Config().metrics) and not found.metrics
    assert "the model was trained on the classes of pair" in found.reasons["aupr"]


@pytest.mark.slow
def test_outliers__killed_after_the_first_part__does_not_repeat_it(world, tmp_path, monkeypatch):
    method = build("baseline")
    world, two = elsewhere(world, part_of_world(world, "two", "T-shirt/top", "Dress"))
    data = {"outliers": two}
    whole = evaluate(world, Outliers, method, data, parts=Parts(tmp_path, "key"))
    seen = []
    over_images = Outliers.over_images
    monkeypatch.setattr(Outliers, "over_images", lambda *args: seen.append(args[2].name) or over_images(*args))
    (tmp_path / "inliers-key.npz").unlink()
    assert evaluate(world, Outliers, method, data, parts=Parts(tmp_path, "key")).metrics == whole.metrics
    assert seen == ["small_fashion"]


@pytest.mark.slow
def test_calibration__small_set__matches_one_image_at_a_time(world):
    method = build("baseline")
    found = evaluate(world, Calibration, method, {}, per_bin=20)

    expected = probabilities(world, method).astype(np.float64)
    sure, right = expected.max(1), (expected.argmax(1) == world.labels).astype(float)
    assert found.metrics["ece"] == pytest.approx(100 * hand_ece(sure, right, 15), abs=1e-3)
    for centre in range(5, 100, 10):
        inside = (sure > (centre - 5) / 100) & (sure <= (centre + 5) / 100)
        name = f"reliability_{centre}"
        if inside.any():
            assert found.metrics[name] == pytest.approx(100 * right[inside].mean(), abs=1e-4)
        else:
            assert "no answer" in found.reasons[name]
    assert {*found.metrics, *found.reasons} == set(Calibration.Config().metrics)
    assert found.reasons, "a diagram of a small set has empty bins"


def test_calibration__confidence_on_the_edge_of_a_bin__belongs_to_the_bin_below(world, monkeypatch):
    sure = np.array([20, 20, 30, 30.5, 80, 100], dtype=np.float32)
    values = {"top1": np.array([100, 0, 0, 100, 100, 0], dtype=np.float32), "confidence": sure}
    monkeypatch.setattr(calibration, "confidences", lambda *given: MetricValues({}, {}, len(sure), values))
    found = evaluate(world, Calibration, build("baseline"), {})
    assert {name: value for name, value in found.metrics.items() if name.startswith("reliability")} == {
        "reliability_15": 50,
        "reliability_25": 0,
        "reliability_35": 100,
        "reliability_75": 100,
        "reliability_95": 0,
    }
    assert found.reasons["reliability_85"] == "no answer has a confidence of 80 to 90 %"


# How images of another set are seen


def noting(seen):
    """A model that keeps the images that it is asked about."""
    method = build("baseline")
    method.predict = lambda images: seen.append(images) or Prediction(None, torch.zeros(len(images), 10))
    return method


def test_seen_by__a_model__has_its_size_and_colours_and_the_crop_of_the_set(world):
    own = {"image_size": 20, "mean": (0.5,), "std": (0.25,), "eval_crop": 0.5, "num_val": 7}
    run = world.run_of(build("baseline"), **own)
    found = seen_by(Subject(run, None), world.data)
    assert (found.image_size, found.mean, found.std) == (20, (0.5,), (0.25,))
    others = {key: value for key, value in found if key not in ("image_size", "mean", "std")}
    assert others == {key: value for key, value in world.data if key in others}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ClassifyOn, Adversarial, Outliers])
def test_images_of_another_set__are_given_to_a_model_as_its_own_are(world, kind):
    own = world.data.model_copy(update={"image_size": 20, "mean": (0.5,), "std": (0.25,)})
    seen = []
    evaluate(world, kind, noting(seen), dict.fromkeys(kind.data_roles, world.data), own=own)
    image = Image.fromarray(world.pixels[0]).resize((20, 20), Image.Resampling.BICUBIC)
    expected = (torch.tensor(np.array(image)).float() / 255 - 0.5) / 0.25
    for first in [images[0] for images in seen][:: len(seen) // (2 if kind is Outliers else 1)]:
        torch.testing.assert_close(first[0], expected)


# Published class lists


def test_class_list__of_imagenet_a__is_the_one_in_timm():
    from importlib.resources import files

    known = (files("timm") / "data/_info/imagenet_a_indices.txt").read_text().split()
    assert published_classes("imagenet_a") == [int(index) for index in known]


def test_class_lists__of_a_and_o__have_200_classes_and_share_59():
    a, o = published_classes("imagenet_a"), published_classes("imagenet_o")
    assert len(set(a)) == len(set(o)) == 200 and a == sorted(a) and o == sorted(o)
    assert len(set(a) & set(o)) == 59


def test_check_classes__other_classes_than_published__names_those_that_differ():
    names = [f"n{index:08d}" for index in range(1000)]
    listed = published_classes("imagenet_a")
    check_classes("imagenet_a", listed, names)
    check_classes("class_folders", [1, 2], names)
    check_classes("imagenet_a", [0, 1], names[:200])  # the model is of another set
    with pytest.raises(DataError, match="n00000005 should not be there; n00000006 missing"):
        check_classes("imagenet_a", [5, *listed[1:]], names)
