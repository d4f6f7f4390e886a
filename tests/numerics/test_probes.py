"""Probes of frozen encoders against scikit-learn, against a few lines of numpy, and after a kill."""

import math

import numpy as np
import pytest
import torch
from probing import compute, features_in, head_in_doubles, is_new_order_each_time, plain_gradients, probe_of
from sklearn.linear_model import LogisticRegression
from small_set import ALONE, MEAN, STD, build, config_of
from tiny_vit import tiny_resnet

from pipeline.engine.loop import build_method
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.parts import Parts
from pipeline.evals.probes.features import pooled_features
from pipeline.evals.probes.heads import Fitting, LinearHead, fit
from pipeline.evals.probes.linear_probe import LinearProbe, lars

PROBES = ("knn", "linear_probe", "position_probe")


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 4])
def test_batches_of_parts__whole_or_in_pieces__are_those_of_each_part_by_itself(world, monkeypatch, pieces):
    monkeypatch.setattr("pipeline.engine.batches.pieces_for", lambda task, device, batch: pieces)
    parts = [np.arange(30), np.array([3, 1, 2]), np.arange(5, 21)]
    probe = probe_of(world.with_site(workers=2), "knn")
    together = [[*batches] for batches in probe.batches_of_parts(world.data, "val", parts, 8)]
    assert [[len(batch.images) for batch in batches] for batches in together] == [[8, 8, 8, 6], [3], [8, 8]]
    monkeypatch.undo()
    for part, found in zip(parts, together, strict=True):
        for batch, expected in zip(found, probe.batches(world.data, "val", part, 8), strict=True):
            assert torch.equal(batch.images, expected.images) and torch.equal(batch.targets, expected.targets)
            assert batch.generator.initial_seed() == expected.generator.initial_seed()
        # What is drawn for a batch is not drawn for the next.
        assert len({batch.generator.initial_seed() for batch in found}) == len(found)


@pytest.mark.parametrize("split", ["train", "val"])
def test_batches__of_a_split__have_its_own_images_and_labels(world, split):
    count = {"train": 40, "val": 150}[split]
    pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)  # as the set was written
    chosen = [7, 3, 39]
    (batch,) = probe_of(world, "knn").batches(world.data, split, chosen)
    found = (255 * (STD * batch.images[:, 0] + MEAN)).round()
    np.testing.assert_array_equal(found, pixels[chosen])
    assert batch.targets.tolist() == [7, 3, 9]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBES)
def test_untrained__of_any_run__is_the_start_of_the_run_and_not_what_it_learned(world, name):
    method = build("droppos")
    run = world.run_of(method, seed=4)
    found = probe_of(world, name, untrained=True).compute(Subject(run, method))
    assert found.metrics == probe_of(world, name).compute(Subject(run, build_method(run))).metrics
    assert found.metrics != compute(world, name, method).metrics


# Training


def test_linear_probe__every_epoch__sees_all_features_in_a_new_order(monkeypatch):
    seen, forward = [], LinearHead.forward
    monkeypatch.setattr(LinearHead, "forward", lambda self, given: seen.append(given[:, 0]) or forward(self, given))
    cfg = LinearProbe.Config(epochs=3, batch=4, warmup_epochs=0)
    features = torch.arange(12.0)[:, None].repeat(1, 2)
    LinearProbe(cfg, {}, None, None, ALONE)._fit(features, torch.arange(12) % 3, 3)
    assert [len(batch) for batch in seen] == [4] * 9
    epochs = torch.cat(seen).long().view(3, 12).tolist()
    assert is_new_order_each_time(epochs, range(12))


def fitted(count, **fields):
    cfg = LinearProbe.Config(epochs=4, warmup_epochs=1, base_lr=30, **fields)
    features = torch.randn(count, 5, generator=torch.Generator().manual_seed(1))
    head = LinearProbe(cfg, {}, None, None, ALONE)._fit(features, torch.arange(count) % 3, 3)
    return head.state_dict()


def test_linear_probe__batch_larger_than_the_set__is_the_set_with_its_learning_rate():
    whole, larger = fitted(24, batch=24), fitted(24, batch=1000)
    assert all(torch.equal(larger[name], value) for name, value in whole.items())
    assert not torch.equal(fitted(24, batch=12)["linear.weight"], whole["linear.weight"])


def test_linear_probe__learning_rate__rises_over_the_epochs_of_the_warm_up(monkeypatch):
    rates, descend = [], Fitting.descend
    monkeypatch.setattr(Fitting, "descend", lambda self: rates.append(self.rate) or descend(self))
    fitted(26, batch=8)  # three steps in each of four epochs; two images are left out
    peak = 30 * 8 / 256
    falling = [peak * (1 + math.cos(math.pi * step / 9)) / 2 for step in range(9)]
    assert rates == pytest.approx([0, peak / 3, 2 * peak / 3, *falling])


def test_linear_probe__head__is_returned_in_evaluation_mode():
    cfg = LinearProbe.Config(epochs=1, batch=4)
    head = LinearProbe(cfg, {}, None, None, ALONE)._fit(torch.randn(8, 2), torch.arange(8) % 3, 3)
    assert not any(module.training for module in head.modules())


# The head


def test_rate__over_a_training__rises_in_the_warm_up_and_falls_to_0():
    fitting = Fitting(torch.nn.Linear(1, 1), None, peak=2.0, num_steps=12, num_warmup=4)
    rates = {}
    for fitting.step in (0, 1, 2, 4, 6, 8, 12):
        rates[fitting.step] = fitting.rate
    assert rates == pytest.approx({0: 0, 1: 0.5, 2: 1, 4: 2, 6: 1 + math.sqrt(0.5), 8: 1, 12: 0}, abs=1e-12)


def test_lars__two_steps__are_those_of_a_few_lines():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(2, 3, (40, 6)), np.arange(40) % 4
    head, weight, bias = head_in_doubles(6, 4)
    fitting = Fitting(head, lars(head), peak=5.0, num_steps=10)
    momenta = 0.0, 0.0
    for step in range(2):
        torch.nn.functional.cross_entropy(head(torch.tensor(features)), torch.tensor(labels)).backward()
        fitting.descend()
        _, of_weight, of_bias = plain_gradients(features, labels, weight, bias)
        of_weight = of_weight * 0.001 * np.linalg.norm(weight) / np.linalg.norm(of_weight)
        momenta = 0.9 * momenta[0] + of_weight, 0.9 * momenta[1] + of_bias
        rate = 5 * (1 + math.cos(math.pi * step / 10)) / 2
        weight, bias = weight - rate * momenta[0], bias - rate * momenta[1]
        np.testing.assert_allclose(head.linear.weight.detach(), weight, rtol=1e-6)
        np.testing.assert_allclose(head.linear.bias.detach(), bias, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [lars, lambda head: torch.optim.AdamW(head.parameters())], ids=["lars", "adamw"])
def test_fit__stopped_and_started_again__continues_to_the_same_bits(tmp_path, optimizer):
    features, labels = torch.randn(64, 5, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3

    def run(folder, last=99):
        torch.manual_seed(7)
        head = LinearHead(5, 3)
        fitting, trained = Fitting(head, optimizer(head), peak=0.5, num_steps=14), []

        def train(epoch):
            if epoch > last:
                raise KeyboardInterrupt
            trained.append(epoch)
            for chosen in torch.arange(64).roll(epoch).split(32):
                torch.nn.functional.cross_entropy(head(features[chosen]), labels[chosen]).backward()
                fitting.descend()

        fit(fitting, 7, train, Parts(folder, "key"), epochs_per_part=2)
        return fitting.state(), trained

    whole, _ = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", last=4)
    continued, trained = run(tmp_path / "killed")
    assert trained == [4, 5, 6]  # epoch 4 was not yet kept
    assert whole.keys() == continued.keys() and int(whole["step"]) == 14
    assert all(whole[name].tobytes() == continued[name].tobytes() for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kept"), [("knn", 3), ("linear_probe", 5), ("linear_probe", 9), ("position_probe", 2)]
)
def test_probe__killed_and_started_again__repeats_nothing_and_finds_the_same(world, tmp_path, name, kept):
    class Killed(Parts):
        """Ends the process after so many parts."""

        def once(self, part, work):
            if len([*tmp_path.glob("*.npz")]) == kept:
                raise KeyboardInterrupt
            return super().once(part, work)

    method, undisturbed = build("droppos"), compute(world, name, build("droppos"))
    with pytest.raises(KeyboardInterrupt):
        compute(world, name, method, Killed(tmp_path, "key"))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    again = compute(world, name, method, Parts(tmp_path, "key"))
    assert len(times) == kept and times == {path: path.stat().st_mtime_ns for path in times}
    assert len([*tmp_path.glob("*.npz")]) > kept
    assert again.metrics == undisturbed.metrics
    assert all(again.per_image[key].tobytes() == values.tobytes() for key, values in undisturbed.per_image.items())


# Linear probing


@pytest.mark.slow
def test_linear_probe__separable_features__is_as_right_as_logistic_regression_within_2_points():
    generator = np.random.default_rng(0)
    centres, labels = generator.normal(size=(10, 20)) * 1.2, np.arange(4000) % 10
    # Far from the origin, and of different scales: what BatchNorm is there for.
    features = ((centres[labels] + generator.normal(size=(4000, 20))) * np.arange(1, 21) + 100).astype(np.float32)
    seen, new = slice(0, 2000), slice(2000, 4000)
    cfg = LinearProbe.Config(epochs=60, batch=200, base_lr=6.4, warmup_epochs=5)
    probe = LinearProbe(cfg, {}, None, None, ALONE)
    with torch.enable_grad():
        head = probe._fit(torch.tensor(features[seen]), torch.tensor(labels[seen]), 10)
    with torch.no_grad():
        found = 100 * (head(torch.tensor(features[new])).argmax(1).numpy() == labels[new]).mean()
    standard = (features - features[seen].mean(0)) / features[seen].std(0)
    judge = LogisticRegression(max_iter=1000, C=10).fit(standard[seen], labels[seen])
    expected = 100 * judge.score(standard[new], labels[new])
    assert 80 < expected < 99.9  # the classes overlap a little, so that a bad head would be seen
    assert found == pytest.approx(expected, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "limit"), [("run", None), ("avg", 25)])
def test_linear_probe__on_the_small_set__measures_its_head_on_the_pooled_validation_images(world, pool, limit):
    method, cfg = build("mjp"), config_of("linear_probe")
    (bank, named), (pooled, labels) = (
        features_in(world, method, split, lambda method, images: pooled_features(method, images, pool))
        for split in ("train", "val")
    )
    chosen = np.linspace(0, 39, limit or 40).round().astype(int)
    head = probe_of(world, "linear_probe")._fit(bank[chosen], torch.tensor(named[chosen]), 10)
    with torch.no_grad():
        logits = head(pooled).double().numpy()
    ranks = (-logits).argsort(axis=1)

    found = compute(world, "linear_probe", method, pool=pool, train_limit=limit)

    np.testing.assert_array_equal(found.per_image["top1"], 100.0 * (ranks[:, 0] == labels))
    np.testing.assert_array_equal(found.per_image["top5"], 100.0 * (ranks[:, :5] == labels[:, None]).any(axis=1))
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(150), labels]
    assert found.metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found.errors["top1"] == pytest.approx(found.per_image["top1"].std() / math.sqrt(150), rel=1e-5)
    assert cfg.batch < len(named)


def test_linear_probe__of_cls__is_not_for_encoders_without_one(world):
    run = world.run_of(build("baseline")).model_copy(update={"model": tiny_resnet()})
    reason_against = EVALS.get("linear_probe").reason_against
    assert reason_against(config_of("linear_probe", pool="cls"), {"model": run}) == "test_resnet has no CLS token"
    assert reason_against(config_of("linear_probe", pool="avg"), {"model": run}) == ""


@pytest.mark.parametrize("name", PROBES)
def test_probe__of_a_set_without_a_train_split__does_not_apply(world, name):
    run = world.run_of(build("baseline"))
    data = run.data.model_copy(update={"num_train": 0})
    reason = EVALS.get(name).refusal(config_of(name), {"model": run.model_copy(update={"data": data})})
    assert reason.startswith("data set small_fashion has no train split")
