"""The evaluation of ST Table 2 on a small set: identical with the key, at chance without it."""

import pytest
from small_set import build

from pipeline.evals.equivariance import Equivariance

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["independent", "released"])
@pytest.mark.parametrize("method", ["baseline", "no positions", "mjp"])
def test_equivariance__with_the_key__is_the_accuracy_of_the_plain_model(world, method, kind):
    model = build(method)
    found = world.evaluate("equivariance", model, kind=kind).metrics
    plain = world.evaluate("classify", model).metrics["top1"]
    assert found["top1"] == found["rows_top1"] == found["columns_top1"] == plain
    assert 0 < found["rows_apart"] < 1e-3 and 0 < found["columns_apart"] < 1e-3


def test_equivariance__without_the_key__answers_otherwise(world):
    one, other = (world.evaluate("equivariance", build("baseline"), seed=seed) for seed in (0, 1))
    assert not (one.per_image["without_key_top1"] == other.per_image["without_key_top1"]).all()


def test_equivariance__with_several_keys__is_their_mean(world):
    model = build("baseline")
    both = world.evaluate("equivariance", model, keys=2).per_image["without_key_top1"]
    first = world.evaluate("equivariance", model, keys=1).per_image["without_key_top1"]
    assert {*map(float, both)} <= {0.0, 50.0, 100.0} and ((2 * both - first) % 100 == 0).all()


def test_equivariance__of_a_model_with_relative_positions__does_not_apply(world):
    run = world.run_of(build("baseline"))
    relative = run.model_copy(update={"model": run.model.model_copy(update={"pos_embed": "relative"})})
    assert "relative positions" in Equivariance.reason_against(Equivariance.Config(), {"model": relative})
    assert not Equivariance.reason_against(Equivariance.Config(), {"model": run})
