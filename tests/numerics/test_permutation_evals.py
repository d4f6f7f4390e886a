"""Evaluations of what can be learned from permuted tokens, where that ends, and what it costs."""

import copy
import math

import pytest
import torch
from small_set import ALONE, build, config_of
from tiny_vit import tiny_encoder
from torch.nn import functional as F

from pipeline.evals.base import EVALS, Subject
from pipeline.evals.cost.permutation_cost import saved_bytes
from pipeline.methods.supervised import Supervised

EXACT = 1e-12
OF_ROWS = ("gradients_apart", "weights_apart", "gradients_digits", "weights_digits")
OF_ADAMW = 1e-9  # a gradient that is rounding alone, 1e-15, is divided by eps, 1e-8, and multiplied by the rate, 1e-3


# What is learned


def keyed(**permutation):
    """The small baseline, as a run that was itself trained so."""
    method = Supervised(Supervised.Config(permutation=permutation), copy.deepcopy(build("baseline").encoder))
    method.begin()
    return method.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "released"])
@pytest.mark.parametrize("permutation", [{}, {"rows": True, "key": "used"}], ids=["plain", "keyed"])
def test_training_equivariance__of_any_run__is_rounding_and_its_control_is_not(world, permutation, kind):
    found = world.evaluate("training_equivariance", keyed(**permutation), kind=kind, steps=4).metrics
    for side in ("rows", "columns"):
        assert 0 < found[f"{side}_gradients_apart"] < EXACT
        assert 0 < found[f"{side}_weights_apart"] < OF_ADAMW
    assert found["unlocked_gradients_apart"] > 0.1
    assert found["weights_moved"] > 1e-3
    assert found["rows_gradients_digits"] == pytest.approx(-math.log10(found["rows_gradients_apart"]))


@pytest.mark.slow
def test_training_equivariance__weights_moved__are_those_of_plain_training(world):
    method = build("baseline")
    found = world.evaluate("training_equivariance", method, steps=3, batch=5).metrics["weights_moved"]
    pixels = torch.as_tensor(world.pixels[:5]).unsqueeze(1).double()
    images, labels = (pixels / 255 - 0.286) / 0.353, torch.as_tensor(world.labels[:5]).long()
    moved = []
    for optimiser in (
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=5e-4),
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05),
    ):
        model = copy.deepcopy(method.encoder).double()
        before, optimizer = copy.deepcopy(model), optimiser(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        pairs = list(zip(model.parameters(), before.parameters(), strict=True))
        with torch.no_grad():
            moved.append(float(max((a - b).abs().max() for a, b in pairs) / max(b.abs().max() for _, b in pairs)))
    assert found == pytest.approx(max(moved), rel=1e-6)


@pytest.mark.slow
def test_training_equivariance__of_relative_positions__has_columns_only(world):
    model = Supervised(Supervised.Config(), tiny_encoder(pos_embed="relative")).eval()
    kind, cfg = EVALS.get("training_equivariance"), config_of("training_equivariance")
    run = world.run_of(model)
    run = run.model_copy(update={"model": run.model.model_copy(update={"pos_embed": "relative"})})
    assert kind.reason_against(cfg, {"model": run}) == ""
    outcome = kind(cfg, {}, world.results, world.site, ALONE).compute(Subject(run, model))
    assert outcome.metrics["columns_weights_apart"] < OF_ADAMW
    assert {*outcome.reasons} == {f"rows_{what}" for what in OF_ROWS}


@pytest.mark.slow
def test_training_equivariance__of_a_language_model__has_columns_only(world):
    outcome = world.evaluate("training_equivariance", build("language"), batch=4, steps=2)
    assert 0 < outcome.metrics["columns_gradients_apart"] < EXACT
    assert 0 < outcome.metrics["columns_weights_apart"] < OF_ADAMW
    assert outcome.metrics["unlocked_gradients_apart"] > 0.1
    assert "causal" in outcome.reasons["rows_gradients_apart"]


# Where it ends


@pytest.fixture(scope="module")
def counterexamples(world):
    return {seed: world.evaluate("counterexamples", seed=seed).metrics for seed in (0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["literal_one_head", "independent", "pma_equivariant"])
def test_counterexamples__what_holds__is_rounding(counterexamples, case):
    assert all(0 < found[f"{case}_apart"] < EXACT for found in counterexamples.values())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["literal", "convolution", "pma_invariant"])
def test_counterexamples__what_does_not_hold__is_far_off(counterexamples, case):
    assert all(found[f"{case}_apart"] > 0.1 for found in counterexamples.values())


# What it costs


@pytest.fixture(scope="module")
def cost(world):
    return world.evaluate("permutation_cost", batch=3).metrics


@pytest.mark.slow
def test_permutation_cost__products__have_the_multiply_adds_that_sec_5_4_counts(cost):
    """Two of N x N with N x D and two of N x D with D x D an image; indices have none."""
    tokens, width = 50, 32
    assert cost["indexed_gmacs"] == cost["plain_gmacs"]
    expected = 2 * (tokens**2 * width + tokens * width**2) / 1e9
    assert cost["products_gmacs"] - cost["plain_gmacs"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_permutation_cost__plain__has_the_multiply_adds_of_its_matrices(cost):
    tokens, width, patch, blocks = 50, 32, 16, 2
    each = 12 * tokens * width**2 + 2 * tokens**2 * width  # four, eight in the MLP; scores and values
    expected = (49 * patch * width + blocks * each + 10 * width) / 1e9
    assert cost["plain_gmacs"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_permutation_cost__indices__keep_only_their_order_for_the_backward_pass(cost):
    """A few hundred bytes; each product keeps its matrix, of N x N or D x D numbers."""
    assert 0 <= cost["indexed_saved_mb"] - cost["plain_saved_mb"] < 2e-3
    expected = 4 * (2 * 50**2 + 2 * 32**2) / 1e6
    assert cost["products_saved_mb"] - cost["plain_saved_mb"] == pytest.approx(expected, rel=0.1)


def test_saved_bytes__of_a_product__are_those_of_the_factor_that_was_computed():
    weight, given = torch.randn(4, 5, requires_grad=True), torch.randn(3, 4)
    with saved_bytes([weight, given]) as saved:
        hidden = (given @ weight).exp()  # keeps its result
        loss = hidden.square().sum()  # keeps the same memory
    assert loss.requires_grad and sum(saved.values()) == 3 * 5 * 4
