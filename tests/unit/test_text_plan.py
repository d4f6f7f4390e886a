"""What `plan` says of text runs: operations against arithmetic and real tensors, and quick bounds below them."""

from types import SimpleNamespace

import pytest
import torch

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.core.registry import TASKS
from pipeline.engine.loop import build_method
from pipeline.engine.run import parse_run
from pipeline.methods.base import Batch
from pipeline.plan.operations import count_operations, step_cost
from pipeline.plan.rough import _step

pytestmark = pytest.mark.slow

RUNS = {
    "supervised": ("bert_demo", "books"),
    "language_model": ("gpt2_demo", "books_stream"),
    "masked_language": ("bert_demo", "books_stream"),
}
WIDTH, DEPTH, LENGTH, WORDS, CLASSES = 48, 2, 32, 2000, 2
HIDDEN_WORDS = 5  # 15 % of 32


def run_of(name):
    model, data = RUNS[name]
    optim = {"epochs": 1, "global_batch": 64, "micro_batch": 64, "base_lr": 1e-3}
    files = [read_yaml(CONFIGS / kind / f"{file}.yaml") for kind, file in (("model", model), ("data", data))]
    return parse_run(Layers(("test", merge(*files, {"method": {"name": name}, "optim": optim}))))


def products_by_hand(name):
    """Multiplications of one text in a forward pass: blocks, attention, and what is made of the tokens."""
    blocks = DEPTH * LENGTH * (12 * WIDTH**2 + 2 * LENGTH * WIDTH)
    heads = {
        "supervised": WIDTH**2 + WIDTH * CLASSES,
        "language_model": (LENGTH - 1) * WIDTH * WORDS,
        "masked_language": HIDDEN_WORDS * (WIDTH**2 + WIDTH * WORDS),
    }
    return blocks + heads[name]


@pytest.mark.parametrize("name", RUNS)
def test_step_cost__of_texts__is_that_of_real_tensors_and_of_arithmetic(name):
    run = run_of(name)
    method, (inputs, targets) = build_method(run).train(), TASKS.get(run.task).example(run.data, 2)
    real = count_operations(method, inputs, targets, method.draw(Batch(inputs, targets, torch.Generator()), 0.5))
    found = step_cost(run)["gflop_per_image"] * 1e9
    assert found == real / 2
    # Two operations each; backward twice as many.
    assert found == pytest.approx(6 * products_by_hand(name), rel=1e-3)


@pytest.mark.parametrize("name", RUNS)
def test_rough_bound__of_texts__is_below_the_operations_and_has_the_same_bytes(name):
    run = run_of(name)
    cost, bound = step_cost(run), _step(SimpleNamespace(config=run.model_dump(mode="json")))
    assert 0.05 * cost["gflop_per_image"] < bound.least_gflop_per_image < cost["gflop_per_image"]
    assert bound.num_bytes == cost["weights_bytes"] + cost["checkpoints_bytes"]
