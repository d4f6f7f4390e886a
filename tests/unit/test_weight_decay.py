"""Which parameters the real optimiser decays, of every method on every kind of model."""

import re

import pytest
from method_cases import CASES, build

from pipeline.engine.optim import OptimConfig, build_optimizer

DECAY = 0.07
SPARED = re.compile(r"(^|\.)(pos_embed|relative_position_bias_table|rel_pos_[hw]|freqs|cls_token|unknown|index)$")
# As their released codes do: CLS is decayed, or the positions that have an unknown one next to them.
DECAYED = {"mae": {"encoder.cls_token"}, "droppos": {"encoder.cls_token"}, "mjp": {"encoder.pos_embed", "unknown"}}
# One case for each method, fidelity and model.
KINDS = {
    (name, *map(fields.get, ("fidelity", "index")), repr(model)): case for case, (name, fields, model) in CASES.items()
}


def decays_of(method, layer_decay):
    """By name, from the groups of the optimiser."""
    length = {"epochs": 1, "global_batch": 8, "micro_batch": 8, "base_lr": 1e-3}
    optimizer = build_optimizer(method, OptimConfig(**length, weight_decay=DECAY, layer_decay=layer_decay))
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    groups = optimizer.param_groups
    return {names[id(parameter)]: group["weight_decay"] for group in groups for parameter in group["params"]}


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(KINDS.values()))
def test_weight_decay__of_every_method_and_model__is_that_of_matrices_only_and_not_of_tables_of_positions(case):
    name, fields, _ = CASES[case]
    method = build(case)
    as_released = DECAYED.get(name, set()) if name != "mjp" or fields.get("fidelity") == "released" else set()
    trained = {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}
    expected = {
        name: DECAY if parameter.ndim > 1 and (name in as_released or not SPARED.search(name)) else 0.0
        for name, parameter in trained.items()
    }
    for layer_decay in (None, 0.5):
        assert decays_of(method, layer_decay) == expected
