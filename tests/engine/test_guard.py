"""Steps whose loss or gradient is not finite: skipped and counted, and too many of them end a run."""

import pytest
import torch
from tiny_runs import StopAfter, differing, fit, tiny_run, weights_of
from unstable import Unstable, train_together

from pipeline.core.errors import NumericsError
from pipeline.core.files import read_lines
from pipeline.methods.base import METHODS

pytestmark = pytest.mark.slow


@pytest.fixture
def unstable():
    """A registered method whose loss, or gradient, is not a number at given steps."""
    METHODS.register("unstable")(Unstable)
    yield lambda *steps, where="loss", rank=0, **optim: tiny_run(
        {"method": {"name": "unstable", "steps": steps, "where": where, "rank": rank}},
        {"optim": {"log_every": 1, **optim}},
    )
    del METHODS._entries["unstable"]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_guard__two_bad_steps__are_skipped_counted_and_survived(unstable, images, tmp_path, where):
    trainer = fit(unstable(3, 9, where=where, max_skips=2), tmp_path, images)
    records = [r for r in read_lines(trainer.paths.metrics) if "skipped" in r]
    assert [r["skipped"] for r in records] == [0] * 3 + [1] * 6 + [2] * 9
    bad = "loss" if where == "loss" else "grad_norm"
    assert [r["step"] for r in records if r[bad] is None] == [4, 10]
    assert all(value.isfinite().all() for value in weights_of(trainer).values())


def test_guard__bad_step__leaves_the_weights_as_they_were(unstable, images, tmp_path):
    run = unstable(3)
    before = weights_of(fit(run, tmp_path, images, StopAfter(3)))
    after = weights_of(fit(run, tmp_path, images, StopAfter(1)))
    assert differing(before, after) == []


def test_guard__more_bad_steps_than_tolerated__stops_with_advice(unstable, images, tmp_path):
    run = unstable(3, 5, 9, max_skips=2)
    with pytest.raises(NumericsError, match=r"3 of 10 steps .* 2 are tolerated; lower optim.base_lr"):
        fit(run, tmp_path, images)


def test_guard__resumed_in_between__counts_all_skips(unstable, images, tmp_path):
    run = unstable(3, 9)
    fit(run, tmp_path, images, StopAfter(6))
    assert int(fit(run, tmp_path, images).num_skips) == 2


def test_guard__loss_of_one_process_is_bad__both_skip_and_keep_equal_weights(unstable, images, tmp_path):
    """The gradient of that loss is finite: only the processes' talk about it makes both skip."""
    train_together(unstable(3, 9, rank=1).model_dump(mode="json"), images, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert first.pop("num_skips") == second.pop("num_skips") == 2
    assert differing(first, second) == []
