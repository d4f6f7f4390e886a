"""Nearest neighbours in every layer, against scikit-learn and against a plain loop."""

import math

import numpy as np
import pytest
import torch
from probing import compute, features_in, probe_of
from sklearn.neighbors import KNeighborsClassifier
from small_set import build

from pipeline.evals.probes import knn
from pipeline.evals.probes.features import Probe
from pipeline.evals.probes.knn import Neighbours, nearest


@pytest.mark.slow
def test_knn__uniform_votes__are_those_of_scikit_learn_in_every_layer(world):
    method = build("mjp")
    (bank, bank_labels), (queries, labels) = (features_in(world, method, split) for split in ("train", "val"))

    found = compute(world, "knn", method, weighting="uniform", k=7)

    for layer in range(3):
        judge = KNeighborsClassifier(7, metric="cosine", algorithm="brute").fit(bank[layer].numpy(), bank_labels)
        right = 100.0 * (judge.predict(queries[layer].numpy()) == labels)
        np.testing.assert_array_equal(found.per_image[f"knn_layer_{layer:02d}"], right)
        assert found.metrics[f"knn_layer_{layer:02d}"] == pytest.approx(right.mean())
    assert found.metrics["knn_last"] == found.metrics["knn_layer_02"]
    assert found.metrics["knn_best"] == max(found.metrics[f"knn_layer_0{layer}"] for layer in range(3))
    assert len({*found.metrics.values()}) == 3 and found.count == 150


@pytest.mark.slow
def test_knn__weighted_votes__are_those_of_a_plain_loop(world):
    method = build("mjp")
    (bank, bank_labels), (queries, labels) = (features_in(world, method, split) for split in ("train", "val"))
    right = []
    for query, label in zip(queries[1].double(), labels, strict=True):
        cosines = [float(query @ one / query.norm() / one.norm()) for one in bank[1].double()]
        votes = [0.0] * 10
        for cosine, of in sorted(zip(cosines, bank_labels, strict=True))[-5:]:
            votes[of] += math.exp(cosine / 0.01)
        right.append(100.0 * (votes.index(max(votes)) == label))

    weighted, uniform = (
        compute(world, "knn", method, weighting=weighting, temperature=0.01) for weighting in ("softmax", "uniform")
    )

    np.testing.assert_array_equal(weighted.per_image["knn_layer_01"], right)
    assert (weighted.per_image["knn_layer_01"] != uniform.per_image["knn_layer_01"]).any()


def test_nearest__bank_in_blocks__is_the_nearest_of_all_of_it(monkeypatch):
    monkeypatch.setattr(knn, "QUERY_BLOCK", 7)
    generator = torch.Generator().manual_seed(0)
    queries, bank = (torch.nn.functional.normalize(torch.randn(n, 8, generator=generator)) for n in (20, 60))
    labels = torch.randint(10, (60,), generator=generator)
    found: Neighbours | None = None
    for some, named in zip(bank.split(3), labels.split(3), strict=True):  # fewer than k at first
        found = nearest(queries, some, named, k=5).merged(found, k=5)
    order = (queries @ bank.T).numpy().argsort(axis=1)[:, ::-1][:, :5]
    np.testing.assert_array_equal(found.labels, labels.numpy()[order])
    np.testing.assert_allclose(found.cosines, np.take_along_axis((queries @ bank.T).numpy(), order, 1), rtol=1e-6)


@pytest.mark.slow
def test_knn__small_blocks_of_the_bank__find_the_same(world, monkeypatch):
    method = build("mjp")
    whole = compute(world, "knn", method)
    monkeypatch.setattr(knn, "BATCH", 16)
    monkeypatch.setattr(knn, "BANK_BLOCK", 2)
    assert compute(world, "knn", method).metrics == whole.metrics


@pytest.mark.slow
def test_knn__layers_that_the_encoder_lacks__have_a_reason_and_last_is_its_own_last(world):
    method = build("mjp")
    found = compute(world, "knn", method, layers=(1, 12))
    assert found.reasons == {"knn_layer_12": "the encoder has layers 0 to 2"}
    assert found.metrics.keys() == {"knn_layer_01", "knn_best", "knn_middle", "knn_last"}
    assert found.metrics["knn_best"] == found.metrics["knn_layer_01"]  # the last was not asked for
    assert found.metrics["knn_last"] == compute(world, "knn", method).metrics["knn_layer_02"]


@pytest.mark.slow
def test_knn__bank_with_a_limit__has_images_of_the_whole_split(world, monkeypatch):
    seen, take = [], Probe.batches_of_parts

    def noted(self, data, split, parts, batch):
        seen.extend(np.concatenate(parts) if split == "train" else [])
        return take(self, data, split, parts, batch)

    monkeypatch.setattr(Probe, "batches_of_parts", noted)
    compute(world, "knn", build("mjp"), bank_limit=4)
    assert seen == [0, 13, 26, 39]


def test_outcome__last_layer_is_the_best_and_was_not_asked_for__best_is_of_those_asked_for(world):
    right = {0: [0, 100, 0, 0], 1: [100, 0, 100, 0], 2: [100, 100, 100, 0]}
    values = {layer: np.array(each, dtype=np.float32) for layer, each in right.items()}
    found = probe_of(world, "knn", layers=(0, 1))._outcome(values, "images")
    assert found.metrics == {"knn_layer_00": 25, "knn_layer_01": 50, "knn_best": 50, "knn_middle": 50, "knn_last": 75}
    assert found.per_image["knn_best"].tolist() == right[1]
    assert found.count == 4 and found.images == "images"


def test_outcome__middle__is_the_best_between_the_first_and_the_last(world):
    right = {0: [100, 100, 100, 100], 1: [0, 0, 0, 0], 2: [100, 0, 0, 0], 3: [100, 100, 0, 0]}
    values = {layer: np.array(each, dtype=np.float32) for layer, each in right.items()}
    found = probe_of(world, "knn")._outcome(values, "images")
    assert (found.metrics["knn_best"], found.metrics["knn_middle"], found.metrics["knn_last"]) == (100, 25, 50)
    assert found.per_image["knn_middle"].tolist() == right[2]


def test_outcome__one_block__has_no_middle_and_says_why(world):
    values = {layer: np.zeros(2, dtype=np.float32) for layer in (0, 1)}
    found = probe_of(world, "knn", layers=(0, 1))._outcome(values, "images")
    assert "knn_middle" not in found.metrics
    assert found.reasons == {"knn_middle": "none of the layers asked for lies between 0 and 1"}
