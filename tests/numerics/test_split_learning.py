"""The evaluation of split learning: its accuracy is that of a model trained in one piece."""

import copy

import numpy as np
import pytest
import torch
from small_set import ALONE, MEAN, STD, build, config_of
from torch.nn import functional as F

from pipeline.core.seeds import generator_for
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.parts import Parts
from pipeline.evals.permutation import split_learning
from pipeline.methods.supervised import Supervised
from pipeline.permutation.split import split
from pipeline.privacy.inversion import Attacker

pytestmark = pytest.mark.slow
RECIPE = {"epochs": 2, "batch": 20, "positions": "given", "lr": 0.05, "block_ratio": 0.2}
ROWS = {"feature_protection": {"rows": True}}


def evaluate(world, method, **fields):
    return world.evaluate("split_learning", method, **{"recipe": RECIPE, **fields})


def images_of(pixels):
    return (torch.as_tensor(np.array(pixels)).unsqueeze(1).float() / 255 - MEAN) / STD


@pytest.fixture(scope="module")
def train_set():
    """Those of `make_world`, which keeps the validation images alone."""
    pixels = np.random.default_rng(40).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    return images_of(pixels), torch.arange(40) % 10


def trained_whole(encoder, images, labels):
    """In one piece, by torch's own optimiser and schedule; two batches an epoch, in the evaluation's order."""
    encoder = copy.deepcopy(encoder).train()
    blocks = list(encoder.blocks.parameters())
    others = [p for name, p in encoder.named_parameters() if not name.startswith("blocks.")]
    groups = [{"params": others}, {"params": blocks, "lr": 0.2 * 0.05}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2, 2e-4)
    for epoch in range(2):
        order = torch.randperm(40, generator=generator_for("split", "order", 0, epoch))
        for chosen in order.split(20):
            optimizer.zero_grad()
            F.cross_entropy(encoder(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        schedule.step()
    return encoder.eval()


def test_accuracy__of_split_learning__is_that_of_the_model_trained_in_one_piece(world, train_set):
    method = build("baseline")
    whole = trained_whole(method.encoder, *train_set)
    right = whole(images_of(world.pixels)).argmax(dim=1) == torch.as_tensor(world.labels.astype(int))
    expected = 100 * right.double().mean().item()
    untrained = method.encoder(images_of(world.pixels)).argmax(dim=1).numpy() == world.labels
    assert expected != pytest.approx(100 * untrained.mean())
    for fields in ({}, ROWS):
        assert evaluate(world, method, **fields).metrics["acc"] == pytest.approx(expected)


def test_precision__of_an_evaluation_that_sends_features__is_that_of_the_site(world):
    kind = EVALS.get("split_learning")
    evaluation = kind(config_of("split_learning"), {}, world.results, world.site, ALONE)
    assert evaluation.precision_name() == evaluation.model_precision


def test_accuracy__of_a_model_that_drops_in_training__is_measured_without(world):
    encoder = build("baseline", dropout=0.5).encoder
    evaluation = EVALS.get("split_learning")(config_of("split_learning"), {}, world.results, world.site, ALONE)
    client, server = split(encoder)
    found = torch.cat(evaluation._test(client.train(), server.train(), world.data)["acc"])
    with torch.no_grad():
        right = encoder(images_of(world.pixels)).argmax(dim=1).numpy() == world.labels
    np.testing.assert_array_equal(found, 100 * right)


def test_epochs__of_both_trainings__have_new_orders_and_new_protections(world, monkeypatch):
    steps, step, inverted, invert = [], split_learning.train_step, [], Attacker._step

    def noted(client, server, images, targets, loss, generator):
        steps.append((images, generator.initial_seed()))
        return step(client, server, images, targets, loss, generator)

    monkeypatch.setattr(split_learning, "train_step", noted)
    monkeypatch.setattr(Attacker, "_step", lambda *given: inverted.append(given[1:]) or invert(*given))
    inversion = {"epochs": 3, "batch": 20, "lr": 1e-2, "warmup_steps": 1}
    evaluate(world, build("baseline"), recipe={**RECIPE, "epochs": 3}, inversion=inversion, images=2)
    assert [number for _, number in inverted] == list(range(6))
    seeds = [seed for _, seed in steps]
    assert seeds[::2] == seeds[1::2] and len({*seeds}) == 3
    epochs = [torch.cat([one, other]) for each in (steps, inverted) for (one, _), (other, _) in _pairs(each)]
    orders = [tuple(epoch.flatten(1)[:, :9].sum(dim=1).tolist()) for epoch in epochs]
    assert len({*orders}) == 6
    assert (
        len({tuple(sorted(order)) for order in orders[:3]}) == len({tuple(sorted(order)) for order in orders[3:]}) == 1
    )


def _pairs(steps):
    """Two steps make an epoch."""
    return zip(steps[::2], steps[1::2], strict=True)


def test_accuracy__under_noise__is_another_and_row_permutation_on_top_does_not_change_it(world):
    method = build("baseline")
    noisy, both = ({"feature_protection": {"noise": 1.0, "rows": rows}} for rows in (False, True))
    found = [evaluate(world, method, **fields).metrics["acc"] for fields in ({}, noisy, both)]
    assert found[0] != found[1] == found[2]


def test_bytes__of_an_image__are_its_tokens_and_their_gradients_each_way(world):
    metrics = evaluate(world, build("baseline")).metrics
    assert metrics["bytes_up"] == metrics["bytes_down"] == 2 * 50 * 32 * 4


def test_epoch__of_fewer_train_images__has_whole_batches_of_them(world):
    cfg = config_of("split_learning", train_images=24)
    evaluation = EVALS.get("split_learning")(cfg, {}, world.results, world.site, ALONE)
    batches = [*evaluation._epoch("split", world.data, 0, 10)]
    assert evaluation._epoch_steps(world.data, 10) == 2 and [len(batch.images) for batch in batches] == [10, 10]
    assert evaluation._epoch_steps(world.data, 30) == 1  # one smaller batch


def test_attacked_images__are_spread_over_val_and_compared_with_their_mean(world, monkeypatch):
    method, tries, recover = build("baseline"), [], Attacker.recover

    def noted(self, pixels, number):
        tries.append((number, pixels, recover(self, pixels, number)))
        return tries[-1][2]

    monkeypatch.setattr(Attacker, "recover", noted)
    outcome = evaluate(world, method, images=50)
    assert [number for number, *_ in tries[-3:]] == [0, 1, 2]  # each batch is protected by itself
    with torch.no_grad():
        features = [
            method.encoder.forward_features((torch.cat(each) - MEAN) / STD)[:, 0].double()
            for each in list(zip(*tries[-3:], strict=True))[1:]
        ]
    assert outcome.per_image["fsim"] == pytest.approx(F.cosine_similarity(*features).abs().numpy(), abs=1e-4)
    assert outcome.count == 50 and len(outcome.per_image["psnr"]) == 50
    pixels = world.pixels[np.linspace(0, 149, 50).round().astype(int)] / 255
    errors = ((pixels - pixels.mean(axis=0)) ** 2).mean(axis=(1, 2))
    assert outcome.metrics["blind_psnr"] == pytest.approx(np.mean(-10 * np.log10(errors)), abs=1e-4)
    assert outcome.reasons == {"acc_released": "images have one class each, and no threshold"}
    assert outcome.metrics["psnr"] - outcome.metrics["psnr_released"] == pytest.approx(6.0206, abs=1e-4)


@pytest.fixture(scope="module")
def compute(world):
    """The evaluation in a folder in which it keeps its parts, with noise, so that it draws in every step."""
    method, kind = build("baseline"), EVALS.get("split_learning")
    noisy = {"recipe": {**RECIPE, "epochs": 3}, "feature_protection": {"noise": 0.2, "rows": True}}
    cfg = config_of("split_learning", **noisy, inversion={"epochs": 3, "batch": 20, "lr": 1e-2, "warmup_steps": 1})

    def compute(folder):
        evaluation = kind(cfg, {}, world.results, world.site, ALONE, Parts(folder, "key"))
        return evaluation.compute(Subject(world.run_of(method), method))

    return compute


@pytest.fixture(scope="module")
def undisturbed(compute, tmp_path_factory):
    return compute(tmp_path_factory.mktemp("undisturbed"))


class Killed(Exception):
    pass


@pytest.mark.parametrize("number", [1, 3, 4])  # steps before the kill; there are two in each of three epochs
@pytest.mark.parametrize(("place", "name"), [(split_learning, "train_step"), (Attacker, "_step")])
def test_training__killed_in_any_epoch__goes_on_after_the_last_whole_one(
    compute, undisturbed, tmp_path, monkeypatch, place, name, number
):
    step, taken = getattr(place, name), []

    def until_killed(*given):
        if len(taken) == number:
            raise Killed
        taken.append(step(*given))
        return taken[-1]

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(place, name, until_killed)
        compute(tmp_path / "killed")
    again = []
    monkeypatch.setattr(place, name, lambda *given: again.append(step(*given)) or again[-1])
    found = compute(tmp_path / "killed")
    assert (found.metrics, found.files) == (undisturbed.metrics, undisturbed.files)
    assert len(again) == 6 - 2 * (number // 2)


def test_parts__of_a_killed_evaluation__are_not_computed_again(compute, tmp_path, monkeypatch):
    first = compute(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inverter-key.npz", "victim-key.npz"]
    monkeypatch.setattr(split_learning, "train_step", lambda *given: pytest.fail("trained again"))
    again = compute(tmp_path)
    assert (again.metrics, again.files) == (first.metrics, first.files)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"pos_embed": "sincos"}, ""),
        ({"pos_embed": "none"}, "model.pos_embed is none: an inverter would not know where a patch belongs"),
        ({"arch": "resnet18", "embed_dim": None, "depth": None, "num_heads": None}, "resnet18 is not a ViT"),
    ],
    ids=["learned", "sin-cos", "none", "cnn"],
)
def test_reason_against__of_models__is_for_vits_with_positions(world, changes, reason):
    run = world.run_of(Supervised(Supervised.Config(), build("baseline").encoder))
    run = run.model_copy(update={"model": type(run.model)(**{**run.model.model_dump(), **changes})})
    kind = EVALS.get("split_learning")
    assert kind.reason_against(config_of("split_learning"), {"model": run}) == reason
