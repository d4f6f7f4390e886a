"""Protected gradients against numpy: what is pruned, how much noise is added, and in which order."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from pipeline.core.seeds import generator_for
from pipeline.engine.protection import Protection, protect_gradients, protected


def gradient_of(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def protect(gradient, seed=0, **fields):
    return protected(gradient, Protection(**fields), torch.Generator().manual_seed(seed))


def pruned_by_numpy(gradient, count):
    """One entry after the other, each the first of the smallest that are left."""
    values, left = gradient.numpy().copy().ravel(), np.abs(gradient.numpy().ravel())
    for _ in range(count):
        place = int(np.argmin(left))
        values[place], left[place] = 0, np.inf
    return values.reshape(gradient.shape)


@pytest.mark.parametrize(("noise", "pruning", "is_on"), [(0, 0, False), (0.1, 0, True), (0, 0.1, True), (1, 0.9, True)])
def test_protection__any_of_the_two__is_on(noise, pruning, is_on):
    assert Protection(noise=noise, pruning=pruning).is_on == is_on


@pytest.mark.parametrize("fields", [{"noise": -0.1}, {"pruning": -0.1}, {"pruning": 1.0}, {"sparsity": 0.5}], ids=str)
def test_protection__impossible_value__is_refused(fields):
    with pytest.raises(ValidationError):
        Protection(**fields)


# 0.29 * 100 and 0.7 * 10 are below 29 and 7 in floating point.
@pytest.mark.parametrize(
    ("shape", "pruning", "count"),
    [
        ((100,), 0.29, 29),
        ((2, 5), 0.7, 7),
        ((4, 3, 2), 0.5, 12),
        ((7,), 0.5, 3),
        ((10,), 0.99, 9),
        ((10,), 0.05, 0),
        ((1,), 0.99, 0),
        ((), 0.99, 0),
        ((2,), 0.5, 1),
        ((0,), 0.5, 0),
        ((1000,), 0.999, 999),
    ],
)
def test_pruning__any_size__removes_the_smallest_entries_and_leaves_the_others(shape, pruning, count):
    gradient = gradient_of(*shape)
    found = protect(gradient, pruning=pruning)
    assert int((found == 0).sum()) == count
    assert np.array_equal(found.numpy(), pruned_by_numpy(gradient, count))


def test_pruning__equal_entries__removes_exactly_the_count_and_the_first_of_them():
    gradient = torch.tensor([[2.0, -1, 1, 3], [-1, 1, -1, 1]])
    found = protect(gradient, pruning=0.5)
    assert found.tolist() == [[2, 0, 0, 3], [0, 0, -1, 1]]
    assert found.tolist() == pruned_by_numpy(gradient, 4).tolist()


def test_pruning__already_zero__counts_as_pruned_first():
    assert protect(torch.tensor([5.0, 0, 0, 1]), pruning=0.5).tolist() == [5, 0, 0, 1]


def test_pruning__transposed_gradient__is_that_of_its_entries_in_place():
    gradient = gradient_of(6, 5).T
    assert np.array_equal(protect(gradient, pruning=0.5).numpy(), pruned_by_numpy(gradient.contiguous(), 15))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("fields", [{"pruning": 0.9}, {"noise": 0.1}, {"noise": 0.1, "pruning": 0.9}], ids=str)
def test_protected__not_finite__stays_so(value, fields):
    """The guard of the training loop must see it."""
    gradient = gradient_of(10)
    gradient[3] = value
    assert not protect(gradient, **fields).isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_noise__many_entries__is_normal_with_a_spread_relative_to_the_root_mean_square(scale):
    gradient = 3 * scale * gradient_of(400, 500) + scale
    added = (protect(gradient, noise=0.25) - gradient).double().numpy().ravel()
    expected = 0.25 * np.sqrt((gradient.double().numpy() ** 2).mean())
    # Five standard errors of 200,000 draws; those of a normal distribution's fourth moment, which is 3, for the last.
    count = added.size
    assert abs(added.mean() / expected) < 5 / np.sqrt(count)
    assert abs(added.std() / expected - 1) < 5 / np.sqrt(2 * count)
    assert abs(((added / expected) ** 4).mean() - 3) < 5 * np.sqrt(96 / count)


def test_noise__known_draw__is_added_entry_by_entry():
    gradient, drawn = known_draw()
    found = protect(gradient, seed=7, noise=0.5)
    expected = gradient.numpy() + 0.5 * np.sqrt((gradient.numpy() ** 2).mean()) * drawn
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_protected__both__is_pruned_before_noise_of_the_whole_gradient_s_size_is_added():
    gradient, drawn = known_draw()
    found = protect(gradient, seed=7, noise=0.5, pruning=0.75)
    expected = pruned_by_numpy(gradient, 9) + 0.5 * np.sqrt((gradient.numpy() ** 2).mean()) * drawn
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert (found != 0).all()


def known_draw():
    """A gradient, and what a generator of seed 7 draws for it."""
    drawn = torch.randn(3, 4, generator=torch.Generator().manual_seed(7))
    return gradient_of(3, 4, dtype=torch.float64), drawn.double().numpy()


@pytest.mark.parametrize("shape", [(), (1,), (5, 5)])
def test_protected__gradient_of_zeros__stays_one(shape):
    assert not protect(torch.zeros(shape), noise=3.0, pruning=0.5).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_protected__another_precision__has_the_same_noise(dtype):
    gradient = gradient_of(40, dtype=dtype)
    found, expected = (protect(value, noise=0.5, pruning=0.25) for value in (gradient, gradient.float()))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps + 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_protected__on_a_gpu__is_that_of_the_cpu():
    gradient = gradient_of(40, 30).round(decimals=1)  # with many equal entries
    found, expected = (protect(value, noise=0.5, pruning=0.25) for value in (gradient.cuda(), gradient))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)


def test_protected__off__is_the_gradient_itself_and_draws_nothing():
    gradient, generator = gradient_of(40), torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert protected(gradient, Protection(), generator) is gradient
    protected(gradient, Protection(pruning=0.5), generator)
    assert torch.equal(generator.get_state(), before)


def test_protected__any__leaves_its_input_as_it_was():
    gradient = gradient_of(40)
    protect(gradient, noise=0.5, pruning=0.5)
    assert torch.equal(gradient, gradient_of(40))


def layers_with_gradients():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    layers[0].bias.requires_grad = False
    layers(torch.ones(1, 4)).sum().backward()
    return layers


def test_protect_gradients__of_a_model__protects_each_tensor_with_noise_of_its_own():
    layers, plain, cfg = layers_with_gradients(), layers_with_gradients(), Protection(noise=0.5, pruning=0.5)
    protect_gradients(layers, cfg, "protection", 3, 17)
    generator = generator_for("protection", 3, 17)
    for found, before in zip(layers.parameters(), plain.parameters(), strict=True):
        if before.grad is None:
            assert found.grad is None
        else:
            assert torch.equal(found.grad, protected(before.grad, cfg, generator))


def test_protect_gradients__another_key__draws_other_noise_and_leaves_the_global_generator_unchanged():
    keys = [("protection", 0, 1), ("protection", 0, 2), ("protection", 1, 1)]
    found = []
    for key in keys:
        layers = layers_with_gradients()
        state = torch.get_rng_state()
        protect_gradients(layers, Protection(noise=0.5), *key)
        assert torch.equal(torch.get_rng_state(), state)
        found.append(tuple(layers[1].weight.grad.flatten().tolist()))
    assert len(set(found)) == 3


def test_protect_gradients__off__makes_no_generator(monkeypatch):
    monkeypatch.setattr(torch, "Generator", lambda *_: pytest.fail("a generator is made"))
    layers = torch.nn.Linear(2, 2)
    layers(torch.ones(1, 2)).sum().backward()
    protect_gradients(layers, Protection(), "protection", 0, 0)
    assert layers.weight.grad.tolist() == [[1, 1], [1, 1]]
