"""Positions read from a frozen encoder: what is masked, how the head is trained, and what can be read."""

import math

import numpy as np
import pytest
import torch
from probing import compute, head_in_doubles, is_new_order_each_time, plain_gradients
from small_set import build, config_of, make_world
from tiny_vit import tiny_encoder, tiny_model, tiny_resnet, tiny_swin

from pipeline.evals.base import BATCH, EVALS, Evaluation
from pipeline.evals.probes import position_probe
from pipeline.evals.probes.heads import Fitting
from pipeline.evals.probes.position_probe import PositionReader, position_loss
from pipeline.methods.supervised import Supervised

CHANCE = 100 / 49


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


@pytest.mark.parametrize("is_shuffled", [False, True])
@torch.no_grad()
def test_position_reader__tokens__have_masked_positions_replaced_and_all_others_kept(is_shuffled):
    method = build("droppos")
    reader = PositionReader(config_of("position_probe", position_ratio=0.75, shuffle_tokens=is_shuffled), method)
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    tokens, masked = reader.tokens(images, torch.Generator().manual_seed(5))
    assert masked.sum(dim=1).tolist() == [37, 37, 37] and not torch.equal(masked[0], masked[1])
    encoder, generator = method.encoder, torch.Generator().manual_seed(5)
    chosen, orders = (torch.rand(3, 49, generator=generator).argsort(dim=1) for _ in range(2))
    assert all(places[order[:37]].all() for places, order in zip(masked, chosen, strict=True))
    for image, places, order, found in zip(images, masked, orders, tokens, strict=True):
        entering = encoder.patch_embed(image[None])[0]
        entering = entering[order] if is_shuffled else entering
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
    # Four epochs of four batches: the head's statistics are those of training, and validation leaves them alone.
    assert readers[0].head.norm.num_batches_tracked == 4 * 4
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


# Training


@pytest.fixture
def trained_on(monkeypatch):
    """Indices of the train images of each epoch, one list for each."""
    seen, take = [], Evaluation.batches

    def noted(self, data, split="val", indices=None, batch=BATCH):
        if split == "train":
            seen.append(list(indices))
        return take(self, data, split, indices, batch)

    monkeypatch.setattr(Evaluation, "batches", noted)
    return seen


@pytest.mark.slow
def test_position_probe__every_epoch__sees_the_chosen_images_in_a_new_order_with_new_masks(
    world, trained_on, monkeypatch
):
    masks, tokens, rates, descend = [], PositionReader.tokens, [], Fitting.descend
    monkeypatch.setattr(PositionReader, "tokens", lambda *given: masks.append(tokens(*given)) or masks[-1])
    monkeypatch.setattr(Fitting, "descend", lambda self: rates.append(self.rate) or descend(self))
    compute(world, "position_probe", build("droppos"), epochs=3, batch=10, train_limit=20, lr=0.5)
    assert is_new_order_each_time(trained_on, np.linspace(0, 39, 20).round().astype(int).tolist())
    drawn = {masked.numpy().tobytes() for _, masked in masks}
    assert len(drawn) == len(masks) == 3 * 2 + 2  # and two batches of validation images
    assert rates == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 6)) / 2 for step in range(6)])


@pytest.mark.slow
def test_position_probe__batch_larger_than_the_set__is_the_set(world):
    found = [compute(world, "position_probe", build("droppos"), epochs=2, batch=batch) for batch in (40, 1000)]
    assert found[0].metrics == found[1].metrics


@pytest.mark.slow
def test_position_probe__batch_in_pieces__has_the_gradient_of_the_whole(world, monkeypatch):
    norms, descend = [], Fitting.descend

    def noted(self):
        norms.append(self.head.head.linear.weight.grad.norm().item())
        descend(self)

    monkeypatch.setattr(Fitting, "descend", noted)
    for piece in (40, 8):
        monkeypatch.setattr(position_probe, "BATCH", piece)
        compute(world, "position_probe", build("droppos"), epochs=1, batch=40)
    whole, in_pieces = norms
    assert in_pieces == pytest.approx(whole, rel=0.2)


def test_position_loss__fixed_features__has_the_loss_and_gradient_of_a_few_lines():
    features = np.random.default_rng(1).normal(size=(8, 9, 6))  # 8 images of 9 patches
    head, weight, bias = head_in_doubles(6, 9)
    loss = position_loss(head(torch.tensor(features)))
    loss.backward()
    expected = plain_gradients(features.reshape(72, 6), np.tile(np.arange(9), 8), weight, bias)
    assert loss.item() == pytest.approx(expected[0], rel=1e-9)
    np.testing.assert_allclose(head.linear.weight.grad, expected[1], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(head.linear.bias.grad, expected[2], rtol=1e-6, atol=1e-12)
