"""Training with permuted rows and with a key (ST Theorems 4.2, 4.3, 4.6): step by step what plain training learns."""

import copy

import pytest
import torch
from permuted_models import split_key_biases
from pydantic import ValidationError
from tiny_vit import tiny_encoder, tiny_model, tiny_resnet, tiny_swin

from pipeline.core.config import Layers
from pipeline.engine.optim import OptimConfig, build_optimizer, build_schedule
from pipeline.engine.run import parse_run
from pipeline.methods.base import Batch, cross_entropies
from pipeline.methods.permuted import Permutation
from pipeline.methods.supervised import Supervised
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import Shape
from pipeline.permutation.rules import permute_state, unpermute_state

STEPS = 6
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5}
PRECISIONS = pytest.mark.parametrize("dtype", CLOSE, ids=["float64", "float32"])
PERMUTATIONS = {
    "rows": {"rows": True},
    "key": {"key": "used"},
    "released key": {"key": "used", "kind": "released"},
    "rows and key": {"rows": True, "key": "used", "kind": "shared", "seed": 3},
}
MODELS = {"learned positions": {}, "no positions": {"pos_embed": "none"}, "average": {"pool": "avg"}}


def built(dtype=torch.float64, model=None, **permutation):
    """From one start, with every parameter random, also those that start as zeros."""
    encoder = tiny_encoder(**model or {}, num_heads=4).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    method = Supervised(Supervised.Config(permutation=permutation), encoder)
    method.begin()
    return method.train()


def batches(dtype):
    generator = torch.Generator().manual_seed(2)
    for step in range(STEPS):
        images = torch.randn(5, 1, 28, 28, generator=generator, dtype=dtype)
        targets = torch.rand(5, 10, generator=generator, dtype=dtype).softmax(dim=1)
        yield Batch(images, targets, torch.Generator().manual_seed(step))


def trained(method, dtype):
    """The loss of every step, and the weights after it."""
    optim = OptimConfig(epochs=1, global_batch=5, micro_batch=5, base_lr=1e-3, lr_batch=5)
    optimizer = build_optimizer(method, optim)
    schedule = build_schedule(optimizer, optim, STEPS)
    for step, batch in enumerate(batches(dtype)):
        schedule.step_update(step)
        optimizer.zero_grad()
        loss = method(batch.images, batch.targets, method.draw(batch, 0.5)).loss
        loss.backward()
        optimizer.step()
        yield loss.detach(), copy.deepcopy(method.encoder.state_dict())


def apart(found, expected):
    """The largest difference of all weights; the biases of keys have no gradient, so their steps are rounding."""
    found, expected = (split_key_biases(state)[0] for state in (found, expected))
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


def unlocked(state, method):
    return unpermute_state(state, method.key) if method.cfg.permutation.key == "used" else state


@pytest.mark.slow
@PRECISIONS
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("permutation", PERMUTATIONS)
def test_training__permuted__is_plain_training_step_by_step(permutation, model, dtype):
    plain = trained(built(dtype, MODELS[model]), dtype)
    other = built(dtype, MODELS[model], **PERMUTATIONS[permutation])
    for (loss, weights), (other_loss, found) in zip(plain, trained(other, dtype), strict=True):
        assert abs(float(other_loss - loss)) < CLOSE[dtype]
        assert apart(unlocked(found, other), weights) < CLOSE[dtype]


@pytest.mark.slow
def test_training__with_the_key_missing__learns_other_weights():
    *_, (_, weights) = trained(built(), torch.float64)
    other = built(key="missing")
    assert other.tokens is None
    *_, (_, found) = trained(other, torch.float64)
    assert apart(unpermute_state(found, other.key), weights) > 1e-3


def test_begin__with_a_key__locks_the_weights_that_are_in_the_encoder():
    plain = built()
    for use in ("used", "missing"):
        method = built(key=use)
        expected = permute_state(plain.encoder.state_dict(), method.key)
        assert all(torch.equal(value, expected[name]) for name, value in method.encoder.state_dict().items())


def test_key__of_another_seed_or_kind__is_another_and_of_the_same_is_the_same():
    given = [{}, {}, {"seed": 1}, {"kind": "shared"}]
    prints = [built(key="used", **fields).key.fingerprint() for fields in given]
    assert prints[0] == prints[1] and len(set(prints)) == 3


def test_validation__with_the_key__is_that_of_the_plain_model_and_permutes_no_rows():
    batch = next(batches(torch.float64))
    plain, other = built().eval(), built(rows=True, key="used").eval()
    expected = plain.predict(batch.images).logits
    torch.testing.assert_close(other.predict(batch.images).logits, expected, rtol=0, atol=1e-12)
    before = other.predict(batch.images).logits
    other.train()(batch.images, batch.targets, other.draw(batch, 0.5))
    assert torch.equal(other.eval().predict(batch.images).logits, before)  # to the bit: no order is left behind
    without = built(key="missing").eval().predict(batch.images).logits
    assert (without - expected).abs().max() > 0.1


def test_validation__after_a_pass_that_failed__permutes_no_rows():
    batch, method = next(batches(torch.float64)), built(rows=True)
    with pytest.raises(RuntimeError):
        method(batch.images, batch.targets[:, :3], method.draw(batch, 0.5))
    assert method.tokens.rows is None


def test_rows__of_two_batches__are_two_orders_of_all_tokens():
    method = built(rows=True)
    first, second = (method.draw(batch, 0.5)["rows"] for batch in list(batches(torch.float64))[:2])
    assert sorted(first.tolist()) == sorted(second.tolist()) == [*range(50)]
    assert first.tolist() != second.tolist()


def test_copy__of_a_method__has_hooks_of_its_own():
    """As a moving average makes one: it must not be told the rows of the other."""
    batch, method = next(batches(torch.float64)), built(rows=True, key="used")
    other = copy.deepcopy(method)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    assert other.tokens is not method.tokens
    expected = other.eval().predict(batch.images).logits
    method.tokens.rows = torch.arange(50).flip(0)
    assert torch.equal(other.predict(batch.images).logits, expected)
    assert {*other.state_dict()} == {*built().state_dict()}


def test_permuted__around_a_model_with_a_key__puts_back_the_last_permutation_first():
    batch, method = next(batches(torch.float64)), built(key="used").eval()
    expected = method.predict(batch.images).logits
    second = built(key="used", seed=5).key
    twice = copy.deepcopy(method)
    twice.encoder.load_state_dict(permute_state(twice.encoder.state_dict(), second))
    with permuted(twice.encoder, second, torch.Generator().manual_seed(0)):
        found = twice.predict(batch.images).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_measure__with_the_key__reports_the_loss_of_the_plain_model():
    batch = next(batches(torch.float64))
    labels = torch.arange(5)
    found = built(key="used").eval().measure(Batch(batch.images, labels, batch.generator))
    expected = cross_entropies(built().eval().predict(batch.images).logits.float(), labels)
    torch.testing.assert_close(found["loss"].values, expected.values, rtol=0, atol=1e-6)


# Configs

RUN = {
    "method": {"name": "supervised"},
    "data": {"name": "small", "source": "fashion_mnist", "image_size": 28, "channels": 1, "num_classes": 10}
    | {"num_train": 40, "num_val": 40, "mean": [0.286], "std": [0.353], "eval_crop": 1.0},
    "optim": {"epochs": 1, "global_batch": 20, "micro_batch": 20, "base_lr": 1e-3, "warmup_epochs": 0.0},
}


def run_of(model, **permutation):
    method = {"name": "supervised"} | ({"permutation": permutation} if permutation else {})
    return parse_run(Layers(("test", RUN | {"method": method, "model": model.model_dump()})))


def test_name__permutation_off_or_not_given__is_that_of_runs_from_before():
    names = {run_of(tiny_model(), **fields).name for fields in ({}, {"rows": False, "key": "none"})}
    assert names == {"supervised-tiny-small-e1-s0-2fb6c3ad"}
    assert run_of(tiny_model(), rows=True).name not in names


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        (tiny_swin(), {"rows": True}, "swin_tiny_patch4_window7_224 is not a ViT"),
        (tiny_resnet(), {"key": "used"}, "test_resnet is not a ViT"),
        (tiny_model(pos_embed="relative"), {"rows": True}, "rows: relative positions in the blocks know the order"),
    ],
    ids=["swin", "cnn", "relative"],
)
def test_config__for_a_model_that_cannot__is_refused(model, fields, words):
    with pytest.raises(ValueError, match=words):
        Supervised.Config(permutation=fields).check(model, 28)


def test_config__key_of_a_model_with_relative_positions__is_possible():
    Supervised.Config(permutation={"key": "used"}).check(tiny_model(pos_embed="relative"), 28)
    with pytest.raises(ValidationError):
        Permutation(key="lost")


def test_shape__of_a_vit__is_that_of_its_keys():
    assert shape_of(tiny_encoder(num_heads=4)) == Shape("vit", 32, 2, 4, 32)
