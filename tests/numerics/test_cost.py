"""What a training step costs: which cases are measured, and what a method takes more than supervised training."""

import statistics

import pytest
from small_set import config_of

from pipeline.core.config import CONFIGS, read_yaml
from pipeline.engine.compute.timing import StepCost
from pipeline.evals.base import EVALS
from pipeline.evals.cost import cost

OF_MJP = {"methods": ["mjp"], "turns": 3}
SECONDS = {"Supervised": [1.0, 2.0, 4.0], "MJP": [1.02, 2.02, 4.12]}  # in each turn; a slow one is slow for both


@pytest.fixture
def measured(world, monkeypatch):
    """What it finds where steps take SECONDS; the order in which methods were measured is kept in `taken`."""
    taken = []

    def step_of_a_turn(method, batch, precision, compiled, steps):
        kind = type(method).__name__
        taken.append(kind)
        seconds = SECONDS[kind][taken.count(kind) - 1]
        return StepCost([seconds, seconds, 10 * seconds], warm_up_s=0.0, peak_memory_gib=seconds)

    monkeypatch.setattr(cost, "time_step", step_of_a_turn)
    return lambda **fields: (world.evaluate("cost", **fields), taken)


def test_cost__several_turns__measure_each_case_in_turn(measured):
    _, taken = measured(**OF_MJP)

    assert taken == ["MJP", "Supervised"] * 3


def test_cost__overhead__is_that_of_each_turn_so_that_a_slow_one_does_not_count(measured):
    found, _ = measured(**OF_MJP)

    each = [2.0, 1.0, 3.0]  # per cent
    assert found.metrics["mjp_overhead"] == pytest.approx(2.0)
    assert found.errors["mjp_overhead"] == pytest.approx(statistics.stdev(each) / 3**0.5)


def test_cost__seconds_of_several_turns__are_the_median_of_all_rounds(measured):
    found, _ = measured(**OF_MJP)

    assert found.metrics["vit_time_s"] == statistics.median([1, 1, 10, 2, 2, 20, 4, 4, 40])


def test_cost__any_config__finds_what_it_promises(measured):
    found, _ = measured(**OF_MJP)

    assert {*found.metrics} == {*config_of("cost", **OF_MJP).metrics}
    assert "vit_overhead" not in found.metrics and found.metrics["mjp_memory_gib"] == 1.02


def test_cost__one_turn__has_no_overhead_and_the_names_of_before():
    fields = read_yaml(CONFIGS / "eval/cost.yaml")
    before = EVALS.get("cost").Config(**fields)

    assert not any(name.endswith("overhead") for name in before.metrics)
    assert not {"methods", "turns"} & {*before.science()}


def test_cost__of_mjp__has_the_keys_of_its_main_setting():
    main, measured = (read_yaml(CONFIGS / file) for file in ("method/mjp.yaml", "eval/mjp_cost.yaml"))

    assert {"name": "mjp", **measured["method"]["mjp"]} == main["method"]
    assert measured["model"] == read_yaml(CONFIGS / "model/deit_s.yaml")["model"]
