"""Where every parameter starts and whether it decays, against the rules of the released codes, written down again here.

DeiT, MJP and MP3 (which has no code and follows DeiT): N(0, 0.02) for linear layers, positions and CLS; torch's own
start for the patches' convolution. MAE and DropPos: Xavier for linear layers and patches, N(0, 0.02) for tokens.
Never decayed: vectors, biases and the names that a model's skip list has.
"""

import math
from typing import Any, NamedTuple

import pytest
import torch
from tiny_vit import tiny_model, tiny_swin

from pipeline.core.config import CONFIGS, names, parse, read_yaml
from pipeline.core.config import Layers as ConfigLayers
from pipeline.engine.optim import OptimConfig, parameter_groups
from pipeline.methods.base import METHODS
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.patches import Grid
from pipeline.models.position import sincos_positions

WIDTH, DECAY = 96, 0.07
DECODER = {"decoder_width": 64, "decoder_depth": 1, "decoder_heads": 2}
VIT = tiny_model(embed_dim=WIDTH, cls_std=0.02)
SINCOS = tiny_model(embed_dim=WIDTH, pos_embed="sincos")
SWIN = tiny_swin(pos_embed="learn", depths=(1, 1))
FINETUNED = tiny_model(embed_dim=WIDTH, pos_embed="sincos", pool="avg", head_std=2e-5, cls_std=0.02)


class Start(NamedTuple):
    """The spread of a parameter's first values around 0; uniform ones also have a bound."""

    std: float
    is_uniform: bool = False


def of_torch(parameter_in: int) -> Start:
    """torch's convolutions and linear layers: uniform within 1 / sqrt(fan in)."""
    return Start(1 / math.sqrt(3 * parameter_in), is_uniform=True)


def xavier(out: int, fan_in: int) -> Start:
    return Start(math.sqrt(2 / (out + fan_in)), is_uniform=True)


def deit_rule(name: str, weight: torch.Tensor) -> Start | float:
    if name.startswith("encoder.patch_embed.proj"):
        return of_torch(3 * 4 * 4)
    if "norm" in name and name.endswith("weight"):
        return 1.0
    return 0.0 if name.endswith("bias") else Start(0.02)


def mae_rule(name: str, weight: torch.Tensor) -> Start | float:
    if name == "encoder.patch_embed.proj.weight":
        return xavier(len(weight), 3 * 4 * 4)
    if name.endswith(("cls_token", "mask_token", "patch_embed.proj.bias")) or weight.ndim == 1:
        return deit_rule(name, weight)
    return xavier(*weight.shape)


class Case(NamedTuple):
    """A method and a model, the rule of its start, exceptions to it, and the names of its skip list."""

    method: str
    fields: dict[str, Any]
    model: ModelConfig
    rule: Any
    skipped: set[str]
    other_starts: dict[str, Any] = {}


TOKENS = {"encoder.cls_token", "encoder.pos_embed"}
TABLES = {f"encoder.layers.{stage}.blocks.0.attn.relative_position_bias_table" for stage in range(2)}
UNKNOWN = {"encoder.pos_embed": Start(1.0), "unknown": Start(1.0)}
IDX = {"index": "slots", "unknown": False, "dal": "none"}
CASES = {
    "deit": Case("supervised", {}, VIT, deit_rule, TOKENS),
    "mae finetuned": Case(
        "supervised", {}, FINETUNED, deit_rule, TOKENS, {"encoder.head.weight": Start(2e-5), "encoder.pos_embed": None}
    ),
    "mp3": Case("mp3", {}, tiny_model(embed_dim=WIDTH, cls_std=0.02, pos_embed="none"), deit_rule, TOKENS),
    "mjp, row J": Case("mjp", {}, VIT, deit_rule, TOKENS | {"unknown"}),
    "mjp, row I": Case("mjp", {"dal": "linear"}, VIT, deit_rule, TOKENS | {"unknown"}),
    "mjp of the paper": Case("mjp", {"fidelity": "paper"}, VIT, deit_rule, TOKENS | {"unknown"}),
    "mjp released, row D": Case("mjp", {"fidelity": "released", "unknown": False}, VIT, deit_rule, TOKENS),
    # With the unknown embedding the table has another name, which no list spares, and torch's start of an embedding.
    "mjp released, row J": Case("mjp", {"fidelity": "released"}, VIT, deit_rule, {"encoder.cls_token"}, UNKNOWN),
    "mjp, row F": Case("mjp", IDX, VIT, deit_rule, TOKENS | {"index"}, {"index": 0.0}),
    "mjp released, row F": Case("mjp", {**IDX, "fidelity": "released"}, VIT, deit_rule, TOKENS, {"index": 0.0}),
    "mjp on a Swin": Case("mjp", {}, SWIN, deit_rule, TOKENS | TABLES | {"unknown"}),
    "mae": Case("mae", DECODER, SINCOS, mae_rule, set(), {"encoder.pos_embed": None}),
    "droppos": Case("droppos", DECODER, SINCOS, mae_rule, set(), {"encoder.pos_embed": None}),
}


def build(case):
    name, fields, model, *_ = CASES[case]
    method = METHODS.get(name)
    cfg = method.Config(name=name, **fields)
    torch.manual_seed(0)
    size = 32 if model.family == "swin" else 28
    return method(cfg, build_encoder(model, size, 3, 0 if cfg.task == "pretrain" else 50))


def differs(weight, expected):
    """Why a parameter's values are not what they should start from; nothing if they are."""
    if isinstance(expected, float):
        return "" if (weight == expected).all() else f"not all {expected}"
    # Five standard errors of a spread that is estimated from so many numbers, taken around 0.
    spread, error = weight.square().mean().sqrt().item(), 5 / math.sqrt(2 * weight.numel())
    if abs(spread / expected.std - 1) > error:
        return f"spread {spread:.4g}, expected {expected.std:.4g} within {100 * error:.0f} %"
    bound = math.sqrt(3) * expected.std * (1 + 1e-6)
    is_bounded = weight.abs().max().item() <= bound
    # A normal one of 200 numbers or more almost surely has some beyond.
    return "" if is_bounded == expected.is_uniform or weight.numel() < 200 else f"uniform: {is_bounded}"


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_start__every_parameter__is_that_of_the_released_code(case):
    method, (*_, rule, _, others) = build(case), CASES[case]
    wrong = {}
    for name, weight in method.named_parameters():
        expected = others[name] if name in others else rule(name, weight)
        reason = differs(weight, expected) if expected is not None else ""
        wrong |= {name: reason} if reason else {}
    assert wrong == {}


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case].model.positions == "sincos"])
def test_start__fixed_positions__are_the_table_and_stay(case):
    table = build(case).encoder.pos_embed
    assert torch.equal(table, sincos_positions(Grid(7, 7), WIDTH, num_prefix=1))
    assert not table.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("layer_decay", [None, 0.75])
@pytest.mark.parametrize("case", CASES)
def test_decay__every_trained_parameter__follows_the_skip_list_of_the_released_code(case, layer_decay):
    method = build(case)
    optim = OptimConfig(
        epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3, weight_decay=DECAY, layer_decay=layer_decay
    )
    name_of = {parameter: name for name, parameter in method.named_parameters()}
    found = {name_of[p]: group["weight_decay"] for group in parameter_groups(method, optim) for p in group["params"]}

    trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
    is_spared = {
        name: p.ndim == 1 or name.endswith(".bias") or name in CASES[case].skipped for name, p in trained.items()
    }
    assert found == {name: 0.0 if spared else DECAY for name, spared in is_spared.items()}


def test_start__cls_of_a_method_that_starts_it_itself__obeys_the_model():
    model = tiny_model(embed_dim=WIDTH, pos_embed="sincos", cls_std=0.5)
    for name in ("mae", "droppos"):
        cfg = METHODS.get(name).Config(name=name, **DECODER)
        cls = METHODS.get(name)(cfg, build_encoder(model, 28, 3, 0)).encoder.cls_token
        assert cls.std().item() == pytest.approx(0.5, rel=0.4)


@pytest.mark.parametrize("name", [name for name in names(CONFIGS / "model") if "demo" not in name])
def test_model__vit_of_a_paper__starts_cls_as_its_code_does(name):
    path = CONFIGS / "model" / f"{name}.yaml"
    model = parse(ModelConfig, ConfigLayers((str(path), read_yaml(path)["model"])))
    assert model.cls_std == (0.02 if model.family == "vit" else None)
