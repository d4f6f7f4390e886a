"""Which parameters the real optimiser decays, for every method on every kind of model."""

import re

import pytest
from method_cases import CASES, build

from pipeline.engine.optim import OptimConfig, build_optimizer

DECAY = 0.07
POSITIONS = re.compile(r"pos_embed|relative_position_bias_table|rel_pos_[hw]$|position_embeddings|wpe")
# Methods whose released code spares vectors, biases and positions and nothing else, tokens neither.
AS_MAE = ("mae", "droppos")


def decays_of(method, layer_decay):
    optim = OptimConfig(
        epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3, weight_decay=DECAY, layer_decay=layer_decay
    )
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    groups = build_optimizer(method, optim).param_groups
    return {names[id(parameter)]: group["weight_decay"] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("layer_decay", [None, 0.5], ids=["one rate", "layer decay"])
@pytest.mark.parametrize("case", CASES)
def test_weight_decay__of_every_method_and_model__spares_vectors_and_tables_of_positions(case, layer_decay):
    method = build(case)
    decays = decays_of(method, layer_decay)
    trained = {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert decays.keys() == trained.keys()
    print(case, sorted(n for n, d in decays.items() if d == 0 and trained[n].ndim > 1))
