"""The evaluation of ST Table 2 on a small set: identical with the key, at chance without it."""

import pytest
from small_set import ALONE, build
from tiny_vit import tiny_encoder

from pipeline.evals.base import Subject
from pipeline.evals.permutation.equivariance import Equivariance
from pipeline.methods.supervised import Supervised

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


def test_equivariance__of_a_model_with_relative_positions__has_columns_only(world):
    method = Supervised(Supervised.Config(), tiny_encoder(pos_embed="relative")).eval()
    run = world.run_of(method)
    run = run.model_copy(update={"model": run.model.model_copy(update={"pos_embed": "relative"})})
    cfg = Equivariance.Config()
    assert not Equivariance.reason_against(cfg, {"model": run})
    outcome = Equivariance(cfg, {}, world.results, world.site, ALONE).compute(Subject(run, method))
    assert outcome.metrics["columns_top1"] == outcome.metrics["top1"]
    assert {*outcome.reasons} == {"rows_top1", "rows_apart"}
    assert "relative positions" in outcome.reasons["rows_top1"]
