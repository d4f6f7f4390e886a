"""The client's gradients against plain autograd, one image at a time, and against a first block written by hand."""

import copy
import math

import pytest
import torch
from timm.layers import LayerScale
from tiny_vit import tiny_encoder
from torch import nn
from torch.nn import functional as F

from pipeline.engine.protection import Protection, protected
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.privacy.client import QKV, SLOTS, Client, protect

LABELS = torch.tensor([[1], [4], [7]])
TABLE, UNKNOWN = "encoder.pos_embed", "unknown"
MODELS = {
    "learned positions": {},
    "no positions": {"pos_embed": "none"},
    "sin-cos": {"pos_embed": "sincos"},
    "sin-cos, learned from there": {"pos_embed": "sincos_learn"},
    "relative": {"pos_embed": "relative"},
    "average of patches": {"pool": "avg"},
    "drop-path": {"drop_path": 0.5},
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def spread(method):
    """With weights far from their start, where attention looks everywhere alike and all biases are zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return method


def plain(**model):
    return spread(Supervised(Supervised.Config(), tiny_encoder(**model)))


def mjp(**fields):
    return spread(MJP(MJP.Config(**fields), tiny_encoder()))


def pictures(groups=3, count=1):
    return torch.randn(groups, count, 1, 28, 28, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def masks(groups=3, count=1):
    return torch.rand(groups, count, 49, generator=torch.Generator().manual_seed(2)) < 0.3


def by_autograd(method, image, label, shuffled=None):
    """Gradients by name of one image (C, H, W) with a label (), shuffled (N,)."""
    method = copy.deepcopy(method).double().eval()
    logits = method.predict(image[None], None if shuffled is None else shuffled[None]).logits
    return named_gradients(F.cross_entropy(logits, label[None]), method)


def named_gradients(loss, method):
    trained = {name: value for name, value in method.named_parameters() if value.requires_grad}
    found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True, allow_unused=True)
    return dict(zip(trained, found, strict=True))


def assert_same(found, expected, tolerance=1e-12):
    """To this share of the largest entry of each tensor."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert (found[name] - value).abs().max() <= tolerance * value.abs().max(), name


def of_group(gradients, number):
    return {name: value[number] for name, value in gradients.items()}


@pytest.mark.slow
@every_model
def test_gradients__one_image_a_group__are_those_of_autograd_for_every_trained_parameter(model):
    method, images = plain(**model), pictures()
    found = Client(method, torch.float64).gradients(images, LABELS)
    for number in range(3):
        assert_same(of_group(found, number), by_autograd(method, images[number, 0], LABELS[number, 0]))


def test_gradients__fixed_positions__are_not_sent():
    """Nothing is learned of a sin-cos table, so no client has its gradient."""
    assert TABLE not in Client(plain(pos_embed="sincos"), torch.float64).gradients(pictures(), LABELS)


@pytest.mark.parametrize("shuffled", [None, masks()], ids=["nothing hidden", "hidden"])
def test_gradients__of_mjp__are_those_of_autograd_image_by_image(shuffled):
    method, images = mjp(), pictures()
    found = Client(method, torch.float64).gradients(images, LABELS, shuffled)
    for number in range(3):
        mask = None if shuffled is None else shuffled[number, 0]
        assert_same(of_group(found, number), by_autograd(method, images[number, 0], LABELS[number, 0], mask))


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [None, masks(2, 3)], ids=["nothing hidden", "hidden"])
def test_gradients__groups_of_images__are_the_mean_over_each_group(shuffled):
    method, images, labels = mjp(), pictures(2, 3), torch.tensor([[1, 4, 7], [0, 0, 9]])
    found = Client(method, torch.float64).gradients(images, labels, shuffled)
    for group in range(2):
        single = [
            by_autograd(method, images[group, i], labels[group, i], None if shuffled is None else shuffled[group, i])
            for i in range(3)
        ]
        assert_same(of_group(found, group), {name: sum(each[name] for each in single) / 3 for name in single[0]})


def test_gradients__positions_hidden__are_zero_at_their_rows_and_together_in_the_unknown_one():
    found = Client(mjp(), torch.float64).gradients(pictures(), LABELS, masks(), (SLOTS, TABLE, UNKNOWN))
    assert found.keys() == {SLOTS, TABLE, UNKNOWN}
    for slots, table, unknown, mask in zip(found[SLOTS], found[TABLE], found[UNKNOWN], masks()[:, 0], strict=True):
        hidden = F.pad(mask, (1, 0), value=False)
        assert not table[0, hidden].any()
        assert slots[0].any(dim=1).all()
        torch.testing.assert_close(table[0, ~hidden], slots[0, ~hidden], rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(unknown[0], slots[0, hidden].sum(dim=0), rtol=1e-12, atol=1e-15)


def test_gradients__nothing_hidden__of_slots_are_those_of_the_table():
    found = Client(mjp(), torch.float64).gradients(pictures(), LABELS, None, (SLOTS, TABLE, UNKNOWN))
    torch.testing.assert_close(found[SLOTS], found[TABLE], rtol=1e-12, atol=1e-15)
    assert found[TABLE].any() and not found[UNKNOWN].any()


def test_gradients__shuffled_without_the_unknown_position__are_those_of_the_same_image():
    client = Client(mjp(unknown=False), torch.float64)
    found, expected = (client.gradients(pictures(), LABELS, shuffled) for shuffled in (masks(), None))
    assert_same(found, expected)


@every_model
def test_gradients__of_slots__are_those_of_the_tokens_that_the_blocks_are_given(model):
    method, images = plain(**model), pictures()
    found = Client(method, torch.float64).gradients(images, LABELS, None, (SLOTS,))[SLOTS]
    given, method = [], copy.deepcopy(method).double().eval()
    method.encoder.pos_drop.register_forward_hook(lambda _, __, tokens: given.append(tokens))
    for number in range(3):
        loss = F.cross_entropy(method.predict(images[number]).logits, LABELS[number])
        assert_same({SLOTS: found[number]}, {SLOTS: torch.autograd.grad(loss, given[-1])[0]})


@pytest.mark.parametrize("names", [(QKV,), (SLOTS, QKV), (TABLE, "encoder.head.bias")], ids=str)
def test_gradients__of_some_names__are_these_among_all(names):
    client = Client(plain(), torch.float64)
    every = client.gradients(pictures(), LABELS) | client.gradients(pictures(), LABELS, None, (SLOTS,))
    assert_same(client.gradients(pictures(), LABELS, None, names), {name: every[name] for name in names})


def test_gradients__where_autograd_is_off__are_the_same():
    client = Client(plain(), torch.float64)
    with torch.no_grad():
        found = client.gradients(pictures(), LABELS)
    assert_same(found, client.gradients(pictures(), LABELS))


@pytest.mark.slow
def test_gradients__in_float32__are_those_of_float64_to_its_precision():
    single, double = (Client(plain(), dtype).gradients(pictures(), LABELS) for dtype in (torch.float32, torch.float64))
    assert {value.dtype for value in single.values()} == {torch.float32}
    assert_same(single, double, 1e-4)
    assert (single[QKV] - double[QKV]).abs().max() > 1e-12 * double[QKV].abs().max()


# The first block

WITH_AND_WITHOUT = [(norm, skips) for norm in (True, False) for skips in (True, False)]


def attention_by_hand(attn, tokens):
    """Softmax of scaled products, head by head."""
    query, key, value = F.linear(tokens, attn.qkv.weight, attn.qkv.bias).chunk(3, dim=1)
    width = tokens.shape[1] // attn.num_heads
    heads = []
    for head in range(attn.num_heads):
        q, k, v = (part[:, head * width : (head + 1) * width] for part in (query, key, value))
        heads.append((q @ k.T / math.sqrt(width)).softmax(dim=1) @ v)
    return attn.proj(torch.cat(heads, dim=1))


def logits_by_hand(encoder, image, norm, skips):
    embedded = F.conv2d(image[None], encoder.patch_embed.proj.weight, encoder.patch_embed.proj.bias, stride=4)
    tokens = torch.cat([encoder.cls_token[0], embedded[0].flatten(1).T]) + encoder.pos_embed[0]
    first, second = encoder.blocks
    out = first.ls1(attention_by_hand(first.attn, first.norm1(tokens) if norm else tokens))
    tokens = tokens + out if skips else out
    out = first.ls2(first.mlp.fc2(F.gelu(first.mlp.fc1(first.norm2(tokens)))))
    tokens = tokens + out if skips else out
    return encoder.head(encoder.norm(second(tokens[None]))[0, 0])


@pytest.mark.parametrize(("norm", "skips"), WITH_AND_WITHOUT)
def test_first_block__with_or_without_norm_and_skips__is_the_one_written_by_hand(norm, skips):
    method, images = plain(), pictures()
    method.encoder.blocks[0].ls1, method.encoder.blocks[0].ls2 = LayerScale(32, 0.5), LayerScale(32, 2.0)
    client = Client(method, torch.float64, first_norm=norm, first_skips=skips)
    found = client.gradients(images, LABELS)
    model = copy.deepcopy(method).double().eval()
    for number in range(3):
        logits = logits_by_hand(model.encoder, images[number, 0], norm, skips)
        torch.testing.assert_close(client(images[number])[0], logits, rtol=1e-11, atol=1e-13)
        expected = named_gradients(F.cross_entropy(logits, LABELS[number, 0]), model)
        if not norm:  # there is none, so nothing is sent of it
            assert not any(expected.pop(f"encoder.blocks.0.norm1.{part}").any() for part in ("weight", "bias"))
        assert_same(of_group(found, number), expected)


@every_model
def test_client__as_it_is__has_the_logits_of_timm(model):
    method, images = plain(**model), pictures(1, 4)[0]
    with torch.no_grad():
        found = Client(method, torch.float64)(images)
        torch.testing.assert_close(found, copy.deepcopy(method).double().eval().encoder(images), rtol=1e-11, atol=1e-12)


# Derivatives of gradients


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "skips"), [(True, True), (False, False)])
@pytest.mark.parametrize("shuffled", [None, masks(2, 2)], ids=["nothing hidden", "hidden"])
def test_gradients__differentiated_again__match_finite_differences(norm, skips, shuffled):
    client = Client(mjp(), torch.float64, first_norm=norm, first_skips=skips)
    labels, generator = torch.tensor([[1, 4], [7, 7]]), torch.Generator().manual_seed(3)
    weights = {name: torch.randn(value.shape, generator=generator) for name, value in client.named_weights().items()}
    names = tuple(weights)

    def total(images):
        """Each gradient times fixed numbers, summed over all of them; a value for each group."""
        found = client.gradients(images, labels, shuffled, names)
        return sum((found[name] * weights[name]).flatten(1).sum(dim=1) for name in names)

    images = pictures(2, 2).requires_grad_()
    direction = torch.randn(images.shape, generator=generator, dtype=torch.float64)
    slopes = [
        (torch.autograd.grad(value, images, retain_graph=True)[0] * direction).sum() for value in total(images).unbind()
    ]
    step = 1e-5
    with torch.no_grad():
        expected = (total(images + step * direction) - total(images - step * direction)) / (2 * step)
    torch.testing.assert_close(torch.stack(slopes), expected, rtol=1e-6, atol=0)


def test_gradients__of_one_group__do_not_depend_on_the_images_of_another():
    images = pictures().requires_grad_()
    first = Client(plain(), torch.float64).gradients(images, LABELS, None, (QKV,))[QKV][0]
    (found,) = torch.autograd.grad(first.square().sum(), images)
    assert found[0].any() and not found[1:].any()


# What it leaves alone


def test_client__made_and_asked__leaves_the_method_as_it_was():
    method = mjp().train()
    before, state = copy.deepcopy(method), method.state_dict()
    Client(method, torch.float64, first_norm=False, first_skips=False).gradients(pictures(), LABELS, masks())
    after = method.state_dict()
    assert after.keys() == state.keys() == before.state_dict().keys()
    for name, value in before.state_dict().items():
        assert after[name] is not value and after[name].dtype == value.dtype and torch.equal(after[name], value), name
    for (name, ours), theirs in zip(method.named_parameters(), before.parameters(), strict=True):
        assert ours.grad is None and ours.requires_grad == theirs.requires_grad, name
    assert all(module.training for module in method.modules())
    first = method.encoder.blocks[0]
    assert isinstance(first.norm1, nn.LayerNorm) and "forward" not in vars(first)


def test_client__of_a_method_in_training__draws_nothing():
    client = Client(plain(drop_path=0.9).train(), torch.float64)
    assert_same(client.gradients(pictures(), LABELS), client.gradients(pictures(), LABELS))


# Protection


def test_protect__two_groups__are_each_pruned_and_get_noise_of_their_own():
    gradients = {"a": torch.arange(8.0).view(2, 4), "b": torch.ones(2, 1000)}
    cfg = Protection(noise=0.5, pruning=0.5)
    found = protect(gradients, cfg, seed=4)
    assert {value.dtype for value in found.values()} == {torch.float64}
    generator = torch.Generator().manual_seed(4)
    for name, value in gradients.items():
        for group in range(2):
            assert torch.equal(found[name][group], protected(value[group].double(), cfg, generator))
    one, other = found["b"]
    assert not torch.equal(one, other)
    quiet = protect(gradients, Protection(pruning=0.5), seed=4)
    assert quiet["a"].tolist() == [[0, 0, 2, 3], [0, 0, 6, 7]]
