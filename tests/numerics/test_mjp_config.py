"""MJP as configured: what a fidelity stands for, how its parameters start, and which of them decay."""

import pytest
import torch
from pydantic import ValidationError
from tiny_vit import tiny_encoder

from pipeline.engine.optim import OptimConfig, parameter_groups
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.models.patches import Grid

GRID = Grid(7, 7)


def mjp(model=None, **fields):
    encoder = tiny_encoder(**model or {})
    return MJP(MJP.Config(**fields), encoder).eval()


RELEASED = {
    "shuffle_prob": 0.5,
    "warmup_ratio": 20 / 300,
    "per_image": False,
    "exact_count": False,
    "dal_schedule": "cosine",
    "dal_reduction": "mean",
    "dal_layers": 2,
    "position_std": 1.0,
}
PAPER = {
    "shuffle_prob": 1.0,
    "warmup_ratio": 0.0,
    "per_image": True,
    "exact_count": True,
    "dal_schedule": "constant",
    "dal_reduction": "norm",
    "dal_layers": 3,
    "position_std": 0.02,
}


@pytest.mark.parametrize(
    ("fidelity", "expected"),
    [("released", RELEASED), ("corrected", {**RELEASED, "position_std": 0.02}), ("paper", PAPER)],
)
def test_config__fidelity__sets_the_documented_values_and_shared_ones(fidelity, expected):
    cfg = MJP.Config(fidelity=fidelity)
    assert {name: getattr(cfg, name) for name in expected} == expected
    assert (cfg.dal_weight, cfg.shuffle_ratio, cfg.dal) == (0.01, 0.03, "nonlinear")


def test_config__no_fidelity__is_corrected():
    assert MJP.Config() == MJP.Config(fidelity="corrected")


@pytest.mark.parametrize("fidelity", ["paper", "released", "corrected"])
def test_config__explicit_field__wins_over_fidelity(fidelity):
    cfg = MJP.Config(fidelity=fidelity, shuffle_prob=0.25, dal_layers=3, per_image=True)
    assert (cfg.shuffle_prob, cfg.dal_layers, cfg.per_image) == (0.25, 3, True)


def test_config__unknown_fidelity__is_the_only_problem_reported():
    with pytest.raises(ValidationError) as refused:
        MJP.Config(fidelity="papr")
    assert [problem["loc"] for problem in refused.value.errors()] == [("fidelity",)]


@pytest.mark.parametrize(
    ("fields", "std"),
    [
        ({"fidelity": "released"}, 1.0),
        ({"fidelity": "released", "unknown": False}, 0.02),
        ({"fidelity": "corrected"}, 0.02),
        ({"fidelity": "paper"}, 0.02),
        ({"fidelity": "corrected", "position_std": 0.5}, 0.5),
    ],
)
def test_init__position_embeddings__start_with_the_stated_spread(fields, std):
    method = mjp(**fields)
    # 50 x 32 numbers: the spread is known to 2 %.
    assert method.encoder.pos_embed.std().item() == pytest.approx(std, rel=0.1)
    if method.cfg.unknown:
        assert method.unknown.std().item() == pytest.approx(std, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["paper", "released", "corrected"])
@pytest.mark.parametrize("dal", ["linear", "nonlinear"])
def test_init__regressor_and_cls__start_with_a_spread_of_002_and_zero_biases(fidelity, dal):
    method = mjp({"embed_dim": 192}, fidelity=fidelity, dal=dal)
    layers = [part for part in method.regressor.modules() if isinstance(part, torch.nn.Linear)]
    for weight in [method.encoder.cls_token, *[layer.weight for layer in layers]]:
        # 192 numbers or more: the spread is known to 5 %.
        assert weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not any(layer.bias.any() for layer in layers)


def test_init__model_that_says_how_cls_starts__is_obeyed():
    assert mjp({"cls_std": 0.5, "embed_dim": 192}).encoder.cls_token.std().item() == pytest.approx(0.5, rel=0.2)


def test_init__start_of_the_regressor_and_cls__draws_nothing_that_others_start_from():
    method, plain = mjp(), Supervised(Supervised.Config(), tiny_encoder())
    own = method.encoder.state_dict()
    assert [name for name, value in plain.encoder.state_dict().items() if not torch.equal(own[name], value)] == [
        "cls_token"
    ]


@pytest.mark.parametrize(
    ("fields", "is_decayed"),
    [
        ({"fidelity": "released"}, True),
        ({"fidelity": "released", "unknown": False}, False),
        ({"fidelity": "corrected"}, False),
        ({"fidelity": "paper"}, False),
    ],
)
def test_weight_decay__positions_and_unknown__only_as_released_and_with_unknown(fields, is_decayed):
    method = mjp(**fields)
    optim = OptimConfig(epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3, weight_decay=0.05)
    decay = {id(p): group["weight_decay"] for group in parameter_groups(method, optim) for p in group["params"]}
    expected = 0.05 if is_decayed else 0
    assert decay[id(method.encoder.pos_embed)] == expected
    assert decay[id(method.encoder.cls_token)] == 0
    assert decay[id(method.encoder.head.weight)] == 0.05
    if method.cfg.unknown:
        assert decay[id(method.unknown)] == expected


def test_config__pca_with_one_mask_per_image__is_refused_with_what_to_do():
    with pytest.raises(ValidationError, match=r"pca projects one set of positions.* per_image: false"):
        MJP.Config(dal="pca", per_image=True)
