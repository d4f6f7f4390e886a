"""The optimiser's parts against references written here by hand."""

import math
import re
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_run
from torch import nn

from pipeline.core.errors import ConfigError
from pipeline.engine import optim
from pipeline.engine.loop import build_method
from pipeline.engine.optim import build_optimizer, build_schedule, clip_gradients, parameter_groups, step_if_finite

DECAY = 0.07
MJP = {"method": {"name": "mjp"}}
RELEASED = {"method": {"name": "mjp", "fidelity": "released"}}
METHODS = {
    "supervised": {},
    "mjp": MJP,
    "mjp released": RELEASED,
    "mjp linear": {"method": {"name": "mjp", "dal": "linear"}},
}


def method_and_groups(*changes, **optim):
    run = tiny_run({"optim": {"weight_decay": DECAY, **optim}}, *changes)
    method = build_method(run)
    return method, parameter_groups(method, run.optim)


def by_name(method, groups, key, default=None):
    """Value of a group's key for every parameter's name."""
    names = {parameter: name for name, parameter in method.named_parameters()}
    return {names[parameter]: group.get(key, default) for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("layer_decay", [None, 0.65])
@pytest.mark.parametrize("changes", METHODS.values(), ids=METHODS)
def test_groups__every_trainable_parameter__is_in_exactly_one(changes, layer_decay):
    method, groups = method_and_groups(changes, layer_decay=layer_decay)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in method.parameters())


@pytest.mark.parametrize("layer_decay", [None, 0.65])
def test_groups__frozen_parameter__is_in_none(layer_decay):
    run = tiny_run(MJP, {"optim": {"layer_decay": layer_decay}})
    method = build_method(run)
    for frozen in (method.encoder.pos_embed, method.unknown, method.regressor[0].weight):
        frozen.requires_grad = False
    names = by_name(method, parameter_groups(method, run.optim), "weight_decay")
    assert not names.keys() & {"encoder.pos_embed", "unknown", "regressor.0.weight"}


@pytest.mark.parametrize("layer_decay", [None, 0.65])
def test_weight_decay__only_matrices_decay__not_positions_tokens_norms_or_biases(layer_decay):
    method, groups = method_and_groups(MJP, layer_decay=layer_decay)
    decays = by_name(method, groups, "weight_decay")
    block = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]
    matrices = {f"encoder.blocks.{number}.{layer}.weight" for number in range(2) for layer in block}
    matrices |= {"encoder.patch_embed.proj.weight", "encoder.head.weight"}
    matrices |= {"regressor.0.weight", "regressor.2.weight"}
    assert {name for name, decay in decays.items() if decay == DECAY} == matrices
    assert {decay for name, decay in decays.items() if name not in matrices} == {0.0}
    spared = {"encoder.cls_token", "encoder.pos_embed", "unknown", "encoder.norm.weight", "encoder.blocks.0.norm1.bias"}
    assert spared <= decays.keys() - matrices


@pytest.mark.parametrize("layer_decay", [None, 0.65])
def test_weight_decay__released_mjp__decays_positions_as_its_code_does(layer_decay):
    method, groups = method_and_groups(RELEASED, layer_decay=layer_decay)
    decays = by_name(method, groups, "weight_decay")
    assert decays["encoder.pos_embed"] == DECAY
    assert decays["encoder.cls_token"] == 0.0


def test_optimizer__of_a_recipe__has_its_betas_eps_and_rate():
    run = tiny_run({"optim": {"betas": [0.8, 0.95], "eps": 1e-5, "base_lr": 0.4, "lr_batch": 10}})
    optimizer = build_optimizer(build_method(run), run.optim)
    found = {(group["betas"], group["eps"], group["lr"]) for group in optimizer.param_groups}
    assert found == {((0.8, 0.95), 1e-5, 0.4 * 20 / 10)}


def test_layer_decay__scales_fall_from_head_to_patches__one_power_per_layer():
    method, groups = method_and_groups(MJP, layer_decay=0.5)
    found = by_name(method, groups, "lr_scale", 1.0)
    # Two blocks: patches, positions and CLS are layer 0, block i is layer i + 1, the head is layer 3. The last norm
    # goes with the last block in timm, with the head in MAE.
    layer = {"patch_embed": 0, "cls_token": 0, "pos_embed": 0, "norm": 2, "head": 3}
    for name, scale in found.items():
        parts = name.split(".")
        if parts[0] != "encoder":
            assert scale == 1.0, name
        elif parts[1] == "blocks":
            assert scale == 0.5 ** (3 - (int(parts[2]) + 1)), name
        else:
            assert scale == 0.5 ** (3 - layer[parts[1]]), name


def test_layer_decay__rates_in_warm_up_and_after__keep_the_scale_between_layers():
    run = tiny_run({"optim": {"layer_decay": 0.5}})
    method = build_method(run)
    optimizer = build_optimizer(method, run.optim)
    schedule = build_schedule(optimizer, run.optim, run.steps_per_epoch)
    for step in (0, 3, 6, 11, 17):
        schedule.step_update(step)
        rates = by_name(method, optimizer.param_groups, "lr")
        assert rates["encoder.head.weight"] == pytest.approx(reference_rate(run, step))
        assert rates["encoder.blocks.0.mlp.fc1.weight"] == pytest.approx(0.25 * reference_rate(run, step))


def reference_rate(run, step):
    """Linear warm-up, half cosine."""
    optim = run.optim
    peak = optim.base_lr * optim.global_batch / optim.lr_batch
    warmup, total = round(optim.warmup_epochs * run.steps_per_epoch), optim.epochs * run.steps_per_epoch
    if step < warmup:
        return optim.warmup_lr + (peak - optim.warmup_lr) * step / warmup
    done = (step - warmup) / (total - warmup)
    return optim.min_lr + (peak - optim.min_lr) * (1 + math.cos(math.pi * done)) / 2


@pytest.mark.parametrize("warmup_epochs", [0, 0.5, 2])
def test_schedule__every_step__matches_formula(warmup_epochs):
    run = tiny_run({"optim": {"epochs": 10, "warmup_epochs": warmup_epochs, "min_lr": 1e-4, "warmup_lr": 1e-5}})
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=run.optim.lr)
    schedule = build_schedule(optimizer, run.optim, run.steps_per_epoch)
    for step in range(run.total_steps):
        schedule.step_update(step)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(reference_rate(run, step), rel=1e-9), step


@pytest.mark.parametrize(("epochs", "steps"), [(0.29, 29), (0.014, 1), (0.016, 2), (3, 300)])
def test_warmup__part_of_an_epoch__is_rounded_to_the_nearest_step(epochs, steps):
    assert tiny_run({"optim": {"epochs": 10, "warmup_epochs": epochs}}).optim.warmup_steps(100) == steps


@pytest.mark.parametrize("curve", [{"lr_curve": "poly"}, {"lr_curve": "steps", "milestones": [0.5]}], ids=str)
def test_layer_decay__curve_of_detection_or_segmentation__keeps_the_scale_between_layers(curve):
    run = tiny_run({"optim": {"layer_decay": 0.5, **curve}})
    method = build_method(run)
    optimizer = build_optimizer(method, run.optim)
    for step in (2, 8):
        build_schedule(optimizer, run.optim, run.steps_per_epoch).step_update(step)
        rates = by_name(method, optimizer.param_groups, "lr")
        assert rates["encoder.blocks.0.mlp.fc1.weight"] == pytest.approx(0.25 * rates["encoder.head.weight"])


def test_rate__global_batch_twice_as_large__is_twice_as_large():
    optim = tiny_run({"optim": {"base_lr": 1e-3, "lr_batch": 512, "global_batch": 40}}).optim
    assert optim.lr == pytest.approx(1e-3 * 40 / 512)
    assert optim.model_copy(update={"global_batch": 80}).lr == pytest.approx(2 * optim.lr)


def layers_with_gradients(scale):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3), nn.Linear(3, 1))
    layers[2].bias.requires_grad = False  # no gradient: must be left out
    for number, parameter in enumerate(p for p in layers.parameters() if p.requires_grad):
        parameter.grad = torch.randn_like(parameter) * scale * 10.0**-number
    return layers


@pytest.mark.parametrize("scale", [0.01, 100.0], ids=["below the limit", "above the limit"])
def test_clip__global__matches_torch(scale):
    optim = tiny_run({"optim": {"clip_norm": 1.5}}).optim
    ours, theirs = layers_with_gradients(scale), layers_with_gradients(scale)
    norm = clip_gradients(ours, optim)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), 1.5)
    torch.testing.assert_close(norm, expected)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_clip__tensor__clips_each_gradient_by_its_own_norm():
    optim = tiny_run({"optim": {"clip_norm": 0.5, "clip_mode": "tensor"}}).optim
    layers, before = layers_with_gradients(10.0), layers_with_gradients(10.0)
    norm = clip_gradients(layers, optim)
    torch.testing.assert_close(
        norm, torch.cat([p.grad.flatten() for p in before.parameters() if p.requires_grad]).norm()
    )
    num_clipped = 0
    for parameter, old in zip(layers.parameters(), before.parameters(), strict=True):
        if old.grad is not None:
            num_clipped += bool(old.grad.norm() > 0.5)
            torch.testing.assert_close(parameter.grad, old.grad * min(1.0, 0.5 / (float(old.grad.norm()) + 1e-6)))
    assert 0 < num_clipped < 5


def test_clip__none__leaves_gradients_and_returns_their_norm():
    layers, before = layers_with_gradients(10.0), layers_with_gradients(10.0)
    norm = clip_gradients(layers, tiny_run().optim)
    expected = torch.cat([p.grad.flatten() for p in before.parameters() if p.grad is not None]).norm()
    torch.testing.assert_close(norm, expected)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(layers[:2].parameters(), before.parameters(), strict=False))


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 1.0}, {"clip_norm": 1.0, "clip_mode": "tensor"}], ids=str)
def test_clip__any_mode__waits_for_no_value(clip, monkeypatch):
    layers, cfg = layers_with_gradients(10.0), tiny_run({"optim": clip}).optim
    for reading in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, reading, lambda *_, name=reading: pytest.fail(f"the host reads: {name}"))
    clip_gradients(layers, cfg)


def test_optim__functions_of_torch__are_public_ones_and_one_that_has_no_public_name():
    assert {*re.findall(r"torch\._\w+", Path(optim.__file__).read_text())} == {"torch._foreach_norm"}


def snapshot(method, optimizer):
    state = [value.clone() for entry in optimizer.state.values() for value in entry.values()]
    return [parameter.detach().clone() for parameter in method.parameters()] + state


def take_gradients(method, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in method.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("num_before", [0, 2], ids=["first step", "later step"])
@pytest.mark.parametrize("bad", ["nan loss", "inf loss", "nan gradient", "inf gradient"])
def test_step_if_finite__not_finite__changes_neither_weights_nor_state(bad, num_before):
    run = tiny_run({"optim": {"clip_norm": 1.0}})
    method = build_method(run)
    optimizer = build_optimizer(method, run.optim)
    for seed in range(num_before):
        take_gradients(method, seed)
        assert step_if_finite(optimizer, torch.tensor(1.0), clip_gradients(method, run.optim)) == 0
    before = snapshot(method, optimizer)
    take_gradients(method, 9)
    value, where = bad.split()
    if where == "gradient":
        method.encoder.head.weight.grad[0, 0] = float(value)
    loss = torch.tensor(float(value) if where == "loss" else 1.0)
    assert step_if_finite(optimizer, loss, clip_gradients(method, run.optim)) == 1
    after = snapshot(method, optimizer)
    # The first step makes the state; a skipped one must leave it as if nothing had happened.
    after, fresh = after[: len(before)], after[len(before) :]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert not any(value.any() for value in fresh)


def test_step_if_finite__skips_in_between__updates_like_plain_adamw_without_them():
    run = tiny_run()
    ours, theirs = build_method(run), build_method(run)
    optimizer = build_optimizer(ours, run.optim)
    plain = torch.optim.AdamW(parameter_groups(theirs, run.optim), lr=run.optim.lr, fused=False, foreach=False)
    for seed in range(6):
        take_gradients(ours, seed)
        is_bad = seed in (0, 3)
        skipped = step_if_finite(optimizer, torch.tensor(float("nan") if is_bad else 1.0), torch.tensor(1.0))
        assert skipped == is_bad
        if not is_bad:
            take_gradients(theirs, seed)
            plain.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


def test_rates__of_the_longest_beginning__multiply_those_of_layers():
    rates = {"encoder.": 0.5, "encoder.blocks.1": 0.1}
    method, groups = method_and_groups({}, layer_decay=0.5, rates=rates)
    _, plain = method_and_groups({}, layer_decay=0.5)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    scales = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    before = [group["lr_scale"] for group in plain for _ in group["params"]]
    assert len(scales) == len(before)
    assert scales["encoder.blocks.1.attn.qkv.weight"] == pytest.approx(0.1 * 0.5)
    assert scales["encoder.blocks.0.attn.qkv.weight"] == pytest.approx(0.5 * 0.25)
    assert scales["encoder.head.weight"] == pytest.approx(0.5)


def test_rates__beginning_that_no_parameter_has__is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'backbone\.'; they begin with encoder\."):
        method_and_groups({}, rates={"backbone.": 0.1})
