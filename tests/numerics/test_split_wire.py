"""The evaluation of split learning over a wire: two processes learn what one does, and every byte is counted."""

import pytest
import torch
from safetensors.torch import save
from small_set import build, config_of
from threaded_server import server_in_a_thread

from pipeline.evals.base import EVALS
from pipeline.evals.permutation import split_wire
from pipeline.methods.supervised import Supervised

pytestmark = pytest.mark.slow
WIDE = {"float32": (torch.float32, 1e-6), "float64": (torch.float64, 1e-14)}


def test_split_wire__in_two_processes__learns_what_one_does(world):
    found = world.evaluate("split_wire", build("baseline"), batch=8, steps=3).metrics
    assert found["outputs_apart"] < 1e-6 and found["weights_apart"] < 1e-6
    assert found["messages"] == 4 and found["loss"] > 0


@pytest.fixture
def threaded(monkeypatch):
    monkeypatch.setattr(split_wire, "server_process", server_in_a_thread)


@pytest.mark.parametrize("precision", WIDE)
@pytest.mark.parametrize("rows", [True, False])
def test_split_wire__in_each_precision__is_equal_and_counts_tensors_with_their_headers(
    world, threaded, precision, rows
):
    dtype, close = WIDE[precision]
    found = world.evaluate("split_wire", build("baseline"), batch=8, steps=2, precision=precision, rows=rows).metrics
    assert found["outputs_apart"] < close and found["weights_apart"] < close

    def message(kind):
        return 8 + len(save({kind: torch.zeros(8, 50, 32, dtype=dtype)}))

    assert found["bytes_up"] == (message("features") + message("output_gradients")) / 8
    assert found["bytes_down"] == (message("outputs") + message("feature_gradients")) / 8


def test_split_wire__server_that_learns_otherwise__is_told_apart(world, threaded, monkeypatch):
    """The comparison can fail: a server in the other place that does not train."""
    built = split_wire.ServerPlan
    monkeypatch.setattr(
        split_wire, "ServerPlan", lambda model, size, start, end, recipe, *rest: built(model, size, start, end)
    )
    found = world.evaluate("split_wire", build("baseline"), batch=8, steps=3).metrics
    assert found["weights_apart"] > 1e-5 and found["outputs_apart"] > 1e-5


@pytest.mark.parametrize(
    ("changes", "permutation", "reason"),
    [
        ({}, {}, ""),
        ({"pos_embed": "none"}, {}, ""),
        ({"pos_embed": "relative"}, {}, "relative positions in the blocks know the order of the tokens"),
        ({}, {"key": "used"}, "its blocks are locked, and the server would need the key"),
        ({}, {"key": "missing"}, ""),
    ],
)
def test_reason_against__of_runs__is_for_blocks_that_a_server_can_have(world, changes, permutation, reason):
    run = world.run_of(Supervised(Supervised.Config(permutation=permutation), build("baseline").encoder))
    run = run.model_copy(update={"model": type(run.model)(**{**run.model.model_dump(), **changes})})
    kind = EVALS.get("split_wire")
    assert kind.reason_against(config_of("split_wire"), {"model": run}) == reason
    if "pos_embed" in changes:
        assert kind.reason_against(config_of("split_wire", rows=False), {"model": run}) == ""
