"""Outputs that are not finite end every evaluation with one message, before any metric is computed from them."""

import numpy as np
import pytest
import torch
from small_set import ALONE, build, config_of, subjects_of
from test_every_evaluation import FEWER, OF_SUBJECTS, OF_TABLES
from threaded_server import server_in_a_thread

from pipeline.core.errors import CheckpointError, NumericsError
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.parts import Parts
from pipeline.evals.permutation import split_wire
from pipeline.permutation.forward import blocks_of
from pipeline.privacy.april import attack


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch):
    monkeypatch.setattr(split_wire, "server_process", server_in_a_thread)


def nan_for_every_third(module, given, output):
    """A forward hook; gradients of the same images are NaN, too."""
    factor = torch.ones(len(output)).masked_fill(torch.arange(len(output)) % 3 == 0, torch.nan)
    return output * factor.view(-1, *[1] * (output.ndim - 1)).to(output)


def break_first_block(method):
    attention = blocks_of(method.encoder)[1][0].attn
    (attention.c_proj if hasattr(attention, "c_proj") else attention.proj).register_forward_hook(nan_for_every_third)


def evaluate(world, name, methods):
    return world.evaluate(name, *methods, **FEWER.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OF_SUBJECTS if name not in OF_TABLES])
def test_evaluation__of_an_encoder_with_nan_for_some_inputs__is_refused_with_one_message(world, name):
    methods = subjects_of(name)
    for method in methods:
        break_first_block(method)
    with pytest.raises(NumericsError, match=r"not finite.*check the weights"):
        evaluate(world, name, methods)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["outliers", "corruptions", "shuffle_curve", "classify", "calibration"])
def test_evaluation__of_a_head_that_gives_nan__is_refused(world, name):
    method = build("baseline")
    method.encoder.head.register_forward_hook(nan_for_every_third)
    with pytest.raises(NumericsError, match=r"encoder\.head of the model"):
        evaluate(world, name, [method])


@pytest.mark.parametrize("name", sorted(OF_TABLES))
def test_evaluation__of_a_position_table_with_nan__names_it(world, name):
    method = build("baseline")
    with torch.no_grad():
        method.encoder.pos_embed[0, 3] = torch.nan
    with pytest.raises(CheckpointError, match=r"encoder\.pos_embed.*not finite"):
        evaluate(world, name, [method])


@pytest.mark.slow
def test_part__of_outputs_that_are_not_finite__is_not_kept(world, tmp_path):
    method = build("baseline")
    hook = method.encoder.head.register_forward_hook(nan_for_every_third)
    evaluation = EVALS.get("outliers")(
        config_of("outliers"), {"outliers": world.data}, world.results, world.site, ALONE, Parts(tmp_path, "key")
    )
    subject = Subject(world.run_of(method), method)
    with pytest.raises(NumericsError):
        evaluation.evaluate(model=subject)
    assert not list(tmp_path.iterdir())
    hook.remove()
    assert np.isfinite(evaluation.evaluate(model=subject).metrics["aupr"])


def test_attack__on_gradients_that_are_not_finite__is_refused():
    method = build("baseline")
    break_first_block(method)
    with pytest.raises(NumericsError, match="gradient"):
        attack(method, torch.randn(2, 1, 28, 28), torch.tensor([1, 2]))
