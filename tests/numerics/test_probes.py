"""Probes of frozen encoders against scikit-learn, against a few lines of numpy, and after a kill."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from small_set import build, config_of, make_world
from tiny_vit import tiny_encoder, tiny_model, tiny_resnet, tiny_swin

from pipeline.engine.distributed import World
from pipeline.engine.loop import build_method
from pipeline.evals import base, knn
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.features import Probe, pooled_features, pooled_layers
from pipeline.evals.heads import Fitting, LinearHead, fit
from pipeline.evals.knn import Neighbours, nearest
from pipeline.evals.linear_probe import LinearProbe, lars
from pipeline.evals.parts import Parts
from pipeline.evals.position_probe import PositionReader, position_loss
from pipeline.methods.supervised import Supervised

ALONE = World(0, 1, torch.device("cpu"))
PROBES = ("knn", "linear_probe", "position_probe")
CHANCE = 100 / 49


def probe_of(world, name, parts=None, **fields):
    return EVALS.get(name)(config_of(name, **fields), {}, world.results, world.site, ALONE, parts)


def compute(world, name, method, parts=None, **fields):
    return probe_of(world, name, parts, **fields).compute(Subject(world.run_of(method), method))


@torch.no_grad()
def features_in(world, method, split, of=pooled_layers):
    """What `of` finds in a split, and labels."""
    count = world.data.count(split)
    (batch,) = probe_of(world, "knn").batches(world.data, split, np.arange(count), count)
    images, labels = batch.images, batch.targets
    return of(method, images), labels.numpy()


# Nearest neighbours


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
    assert found.metrics.keys() == {"knn_layer_01", "knn_best", "knn_last"}
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


@pytest.mark.parametrize("pieces", [1, 4])
def test_batches_of_parts__whole_or_in_pieces__are_those_of_each_part_alone(world, monkeypatch, pieces):
    monkeypatch.setattr(base, "pieces_for", lambda task, device, batch: pieces)
    parts = [np.arange(30), np.array([3, 1, 2]), np.arange(5, 21)]
    probe = probe_of(world.with_site(workers=2), "knn")
    together = [[*batches] for batches in probe.batches_of_parts(world.data, "val", parts, 8)]
    assert [[len(batch.images) for batch in batches] for batches in together] == [[8, 8, 8, 6], [3], [8, 8]]
    monkeypatch.undo()
    for part, found in zip(parts, together, strict=True):
        for batch, expected in zip(found, probe.batches(world.data, "val", part, 8), strict=True):
            assert torch.equal(batch.images, expected.images) and torch.equal(batch.targets, expected.targets)
            assert batch.generator.initial_seed() == expected.generator.initial_seed()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBES)
def test_untrained__of_any_run__is_the_start_of_the_run_and_not_what_it_learned(world, name):
    method = build("droppos")
    run = world.run_of(method, seed=4)
    found = probe_of(world, name, untrained=True).compute(Subject(run, method))
    assert found.metrics == probe_of(world, name).compute(Subject(run, build_method(run))).metrics
    assert found.metrics != compute(world, name, method).metrics


# The head


def test_rate__over_a_training__rises_in_the_warm_up_and_falls_to_0():
    fitting = Fitting(torch.nn.Linear(1, 1), None, peak=2.0, num_steps=12, num_warmup=4)
    rates = {}
    for fitting.step in (0, 1, 2, 4, 6, 8, 12):
        rates[fitting.step] = fitting.rate
    assert rates == pytest.approx({0: 0, 1: 0.5, 2: 1, 4: 2, 6: 1 + math.sqrt(0.5), 8: 1, 12: 0}, abs=1e-12)


def plain_gradients(features, labels, weight, bias):
    """Gradients of the mean cross-entropy of standardised features, in numpy."""
    inputs = (features - features.mean(0)) / np.sqrt(features.var(0) + 1e-6)
    logits = inputs @ weight.T + bias
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(labels)), labels]).mean()
    errors = (shares - np.eye(len(bias))[labels]) / len(labels)
    return loss, errors.T @ inputs, errors.sum(0)


def head_in_doubles(width, outputs):
    torch.manual_seed(3)
    head = LinearHead(width, outputs).double()
    return head, head.linear.weight.detach().numpy().copy(), head.linear.bias.detach().numpy().copy()


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


def test_position_loss__fixed_features__has_the_loss_and_gradient_of_a_few_lines():
    features = np.random.default_rng(1).normal(size=(8, 9, 6))  # 8 images of 9 patches
    head, weight, bias = head_in_doubles(6, 9)
    loss = position_loss(head(torch.tensor(features)))
    loss.backward()
    expected = plain_gradients(features.reshape(72, 6), np.tile(np.arange(9), 8), weight, bias)
    assert loss.item() == pytest.approx(expected[0], rel=1e-9)
    np.testing.assert_allclose(head.linear.weight.grad, expected[1], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(head.linear.bias.grad, expected[2], rtol=1e-6, atol=1e-12)


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
def test_linear_probe__on_the_small_set__measures_its_head_on_the_pooled_validation_images(world):
    method, cfg = build("mjp"), config_of("linear_probe")
    (bank, named), (pooled, labels) = (
        features_in(world, method, split, lambda method, images: pooled_features(method, images, "run"))
        for split in ("train", "val")
    )
    head = probe_of(world, "linear_probe")._fit(bank, torch.tensor(named), 10)
    with torch.no_grad():
        logits = head(pooled).double().numpy()
    ranks = (-logits).argsort(axis=1)

    found = compute(world, "linear_probe", method)

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


# Positions


def patches_that_tell(pixels):
    """Every patch has a brightness pattern of its own place, with a little noise."""
    places = np.random.default_rng(9).integers(0, 226, (28, 28))
    return (places + pixels % 30).astype(np.uint8)


@pytest.fixture(scope="module")
def telling(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("telling"), tmp_path_factory.mktemp("results"), patches_that_tell)


def without_positions():
    return Supervised(Supervised.Config(), tiny_encoder(pos_embed="none")).eval()


LONGER = {"epochs": 25, "batch": 10, "lr": 0.03}


@pytest.mark.slow
def test_position_probe__content_that_tells_the_place__is_read_without_position_embeddings(telling):
    found = compute(telling, "position_probe", without_positions(), **LONGER)
    assert found.metrics["position_top1"] > 95
    assert found.reasons == {"position_top1_visible": "the encoder has no position embeddings"}


@pytest.mark.slow
def test_position_probe__shuffled_tokens_without_position_embeddings__is_at_chance(telling):
    found = compute(telling, "position_probe", without_positions(), shuffle_tokens=True, **LONGER)
    assert found.metrics["position_top1"] == pytest.approx(CHANCE, abs=4 * 100 * math.sqrt(0.02 / 49 / 150))


@pytest.mark.slow
def test_position_probe__noise_with_position_embeddings__reads_visible_ones_and_no_masked_one(world):
    method = Supervised(Supervised.Config(), tiny_encoder()).eval()
    with torch.no_grad():
        method.encoder.pos_embed.normal_()
    found = compute(world, "position_probe", method, **LONGER)
    assert found.metrics["position_top1_visible"] > 95
    # Nobody can do better than to guess among the 37 masked ones.
    assert CHANCE - 0.8 < found.metrics["position_top1"] < 100 / 37 + 0.8
    every = compute(world, "position_probe", method, position_ratio=1.0)
    assert every.reasons == {"position_top1_visible": "every position is masked"}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "token"), [("droppos", "mask_token"), ("mjp", "unknown")])
def test_position_probe__own_token_of_a_method__takes_the_place_of_masked_positions(world, kind, token):
    method = build(kind)
    with torch.no_grad():
        getattr(method, token).normal_()
    own = compute(world, "position_probe", method, masked="own")
    zero = compute(world, "position_probe", method, masked="zero")
    assert own.metrics != zero.metrics
    with torch.no_grad():
        getattr(method, token).zero_()
    assert compute(world, "position_probe", method, masked="own").metrics == zero.metrics


@torch.no_grad()
def test_position_reader__tokens__have_masked_positions_replaced_and_all_others_kept():
    method = build("droppos")
    reader = PositionReader(config_of("position_probe", position_ratio=0.75), method)
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    tokens, masked = reader.tokens(images, torch.Generator().manual_seed(5))
    assert masked.sum(dim=1).tolist() == [37, 37, 37] and not torch.equal(masked[0], masked[1])
    encoder = method.encoder
    for image, places, found in zip(images, masked, tokens, strict=True):
        entering = encoder.patch_embed(image[None])[0]
        rows = [
            entering[patch] + (method.mask_token[0, 0] if places[patch] else encoder.pos_embed[0, 1 + patch])
            for patch in range(49)
        ]
        whole = torch.stack([encoder.cls_token[0, 0] + encoder.pos_embed[0, 0], *rows])
        torch.testing.assert_close(found, encoder.norm(encoder.blocks(whole[None]))[0, 1:], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_position_probe__learned_token__is_trained_and_the_encoder_is_not(world, monkeypatch):
    method, readers = build("droppos"), []
    before = {name: value.clone() for name, value in method.state_dict().items()}
    start = PositionReader.__init__

    def noted(self, *given):
        readers.append(self)
        start(self, *given)

    monkeypatch.setattr(PositionReader, "__init__", noted)
    compute(world, "position_probe", method, masked="learned")
    assert readers[0].token.abs().max() > 0.01
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (tiny_swin(), "the last layer of swin_tiny_patch4_window7_224 has no token for each patch"),
        (tiny_resnet(), "the last layer of test_resnet has no token for each patch"),
        (
            tiny_model(pos_embed="relative"),
            "relative positions belong to pairs of patches, so those of a share of patches cannot be masked",
        ),
        (tiny_model(pos_embed="none"), ""),
    ],
    ids=["swin", "cnn", "relative", "none"],
)
def test_position_probe__encoders_whose_positions_cannot_be_masked__are_told_so(world, model, reason):
    run = world.run_of(build("baseline")).model_copy(update={"model": model})
    assert EVALS.get("position_probe").reason_against(config_of("position_probe"), {"model": run}) == reason


@pytest.mark.parametrize("name", PROBES)
def test_probe__of_a_set_without_a_train_split__does_not_apply(world, name):
    run = world.run_of(build("baseline"))
    data = run.data.model_copy(update={"num_train": 0})
    reason = EVALS.get(name).reason_against(config_of(name), {"model": run.model_copy(update={"data": data})})
    assert reason == "data set small_fashion has no train split, from which a probe learns"
