"""MJP against its equations: the unknown embedding, the localisation loss, its schedule, and when patches move."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from tiny_vit import tiny_batch, tiny_encoder

from pipeline.methods.base import Batch
from pipeline.methods.mjp import MJP, dal_weight
from pipeline.methods.supervised import Supervised
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.models.patches import Grid
from pipeline.models.position import with_unknown

GRID = Grid(7, 7)


def mjp(model=None, **fields):
    encoder = tiny_encoder(**model or {})
    return MJP(MJP.Config(**fields), encoder).eval()


def masks(count=3, ratio=0.5, seed=0):
    """Different numbers of patches in each, so that weighting by image and by patch differ."""
    rng = random.Random(seed)
    return torch.stack([block_mask(GRID, ratio / (1 + number), rng) for number in range(count)])


def draw_of(shuffled, weight=0.01):
    rng = random.Random(1)
    order = torch.stack([jigsaw_order(mask, rng) for mask in shuffled])
    return {"order": order, "shuffled": shuffled, "dal_weight": torch.tensor(weight)}


def test_with_unknown__some_patches_shuffled__matches_a_loop_and_leaves_cls():
    generator = torch.Generator().manual_seed(0)
    positions = torch.randn(1, 50, 8, generator=generator)
    unknown, shuffled = torch.randn(1, 8, generator=generator), masks()

    found = with_unknown(positions, unknown, shuffled)

    assert found.shape == (3, 50, 8)
    for image in range(3):
        assert torch.equal(found[image, 0], positions[0, 0])
        for patch in range(49):
            expected = unknown[0] if shuffled[image, patch] else positions[0, 1 + patch]
            assert torch.equal(found[image, 1 + patch], expected)


def test_predict__nothing_shuffled__equals_plain_timm():
    method, images = mjp(), tiny_batch().images
    with torch.no_grad():
        features, logits = method.predict(images, torch.zeros(1, 49, dtype=torch.bool))
        expected = method.encoder.forward_features(images)[:, 0]
        torch.testing.assert_close(logits, method.encoder(images), atol=1e-6, rtol=0)
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=0)


def test_predict__not_told_of_a_shuffle__equals_plain_timm():
    method, images = mjp(), tiny_batch().images
    with torch.no_grad():
        assert torch.equal(method.predict(images).logits, method.encoder(images))


def test_predict__shuffled_patches__equals_timm_with_rows_of_its_table_overwritten():
    method, images, shuffled = mjp(position_std=1.0), tiny_batch(3).images, masks()
    with torch.no_grad():
        found = method.predict(images, shuffled).logits
        for number in range(3):
            plain = copy.deepcopy(method.encoder)
            for patch in shuffled[number].nonzero().flatten().tolist():
                plain.pos_embed[0, 1 + patch] = method.unknown[0]
            expected = plain(images[number : number + 1])[0]
            torch.testing.assert_close(found[number], expected, atol=1e-5, rtol=0)


def test_predict__position_of_a_shuffled_patch_changed__does_not_matter_but_cls_does():
    method, images, shuffled = mjp(), tiny_batch(2).images, masks(1)
    noise = torch.randn(1, 50, 32, generator=torch.Generator().manual_seed(0))
    is_hidden = torch.cat([torch.tensor([False]), shuffled[0]]).view(1, 50, 1)
    with torch.no_grad():
        before = method.predict(images, shuffled).logits
        method.encoder.pos_embed += noise * is_hidden
        torch.testing.assert_close(method.predict(images, shuffled).logits, before, atol=1e-6, rtol=0)
        method.encoder.pos_embed[:, 0] += noise[:, 0]
        assert (method.predict(images, shuffled).logits - before).abs().max() > 1e-3


def test_predict__without_unknown__ignores_which_patches_were_shuffled():
    method, images = mjp(unknown=False), tiny_batch(3).images
    with torch.no_grad():
        assert torch.equal(method.predict(images, masks()).logits, method.encoder(images))


def test_predict__no_position_embeddings__is_invariant_to_any_order_of_patches():
    method, images = Supervised(Supervised.Config(), tiny_encoder(pos_embed="none")).eval(), tiny_batch(16).images
    generator = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(49, generator=generator) for _ in images])
    with torch.no_grad():
        clean, moved = method.predict(images), method.predict(shuffle_patches(images, order, GRID))
    torch.testing.assert_close(moved.features, clean.features, atol=1e-5, rtol=0)
    assert torch.equal(moved.logits.argmax(1), clean.logits.argmax(1))


def test_coordinates__patch_27_of_14x14__is_row_1_column_13():
    method = mjp(model={"patch_size": 2})
    assert method.grid == (14, 14)
    assert method.coordinates[27].tolist() == [1, 13]


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "norm"])
@pytest.mark.parametrize("dal", ["linear", "nonlinear"])
def test_dal_loss__masks_per_image__matches_a_loop_over_visible_patches(dal, reduction, unknown):
    method, batch = mjp(dal=dal, dal_reduction=reduction, unknown=unknown), tiny_batch(3)
    shuffled = masks()

    found = method.loss(batch.images, batch.targets, draw_of(shuffled)).scalars["dal_loss"]

    errors = []
    for image in range(3):
        for patch in range(49):
            if unknown and shuffled[image, patch]:
                continue
            row, col = method.regressor(method.encoder.pos_embed[0, 1 + patch]).tolist()
            errors.append(abs(row - patch // 7) + abs(col - patch % 7))
    expected = sum(errors) / len(errors) / (2 if reduction == "mean" else 1)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_dal_loss__all_patches_shuffled__is_zero_not_nan():
    method, batch = mjp(), tiny_batch(3)
    out = method.loss(batch.images, batch.targets, draw_of(torch.ones(1, 49, dtype=torch.bool)))
    assert out.scalars["dal_loss"] == 0
    assert torch.isfinite(out.loss)


def test_dal_loss__positions_that_spell_row_and_column__is_zero():
    method = mjp(dal="linear")
    with torch.no_grad():
        method.encoder.pos_embed[0, 1:, :2] = torch.tensor([[i // 7, i % 7] for i in range(49)]).float()
        method.regressor.weight.copy_(torch.eye(2, 32))
        method.regressor.bias.zero_()
    assert method.localisation_loss(~masks()).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("layers", "num_linear"), [(2, 2), (3, 3)])
def test_regressor__nonlinear__has_the_stated_number_of_layers(layers, num_linear):
    regressor = mjp(dal="nonlinear", dal_layers=layers).regressor
    shapes = [tuple(layer.weight.shape) for layer in regressor if isinstance(layer, torch.nn.Linear)]
    assert shapes == [(32, 32)] * (num_linear - 1) + [(2, 32)]
    assert sum(isinstance(layer, torch.nn.ReLU) for layer in regressor) == num_linear - 1


def with_two_main_directions(method, shuffled):
    """Positions far from centred, with two clear main directions; those of shuffled patches are wild."""
    generator = np.random.default_rng(0)
    rows, cols = np.arange(49) // 7, np.arange(49) % 7
    directions = np.linalg.qr(generator.normal(size=(32, 3)))[0].T
    table = 2.0 * rows[:, None] * directions[0] + 1.0 * cols[:, None] * directions[1] + 3.0 * directions[2]
    table = table + 0.02 * generator.normal(size=table.shape)
    table[shuffled.numpy()] *= -50
    with torch.no_grad():
        method.encoder.pos_embed[0, 1:] = torch.tensor(table)
    return table


def test_dal_loss__pca__is_that_of_a_numpy_svd_of_the_visible_rows_up_to_sign():
    method, shuffled = mjp(dal="pca"), masks(1)[0]
    table = with_two_main_directions(method, shuffled)

    found = method.localisation_loss(~shuffled[None]).item()

    visible = table[~shuffled.numpy()]
    main = np.linalg.svd(visible - visible.mean(0), full_matrices=False)[2][:2]
    projected = visible @ main.T  # un-centred, as released
    target = np.array([[i // 7, i % 7] for i in range(49)])[~shuffled.numpy()]
    candidates = [np.abs(projected * (a, b) - target).mean() for a in (1, -1) for b in (1, -1)]
    assert np.ptp(candidates) > 0.5
    assert min(abs(found - candidate) for candidate in candidates) < 1e-3


def test_dal_loss__pca__gradient_matches_finite_differences_and_spares_shuffled_rows():
    method, shuffled = mjp(dal="pca"), masks(1)[0]
    with_two_main_directions(method, shuffled)
    positions = method.encoder.pos_embed

    def loss_at(offset):
        torch.manual_seed(0)
        with torch.no_grad():
            positions.add_(offset)
            value = method.localisation_loss(~shuffled[None]).item()
            positions.sub_(offset)
        return value

    torch.manual_seed(0)
    method.localisation_loss(~shuffled[None]).backward()
    gradient = positions.grad[0]
    assert gradient[0].abs().max() == 0
    assert gradient[1:][shuffled].abs().max() == 0
    assert (gradient[1:][~shuffled].abs().max(dim=1).values > 0).all()
    step = torch.randn(positions.shape, generator=torch.Generator().manual_seed(2)) * 1e-2
    slope = (loss_at(step) - loss_at(-step)) / 2
    assert slope == pytest.approx((gradient * step[0]).sum().item(), rel=0.05, abs=1e-5)


@pytest.mark.parametrize("dal", ["pca", "linear", "nonlinear"])
def test_dal_loss__bf16_autocast__is_computed_in_fp32(dal):
    """Coordinates up to 13 have a resolution of 1/16 in bf16, and CUDA has no bf16 QR for the PCA."""
    method, shuffled = mjp(dal=dal), masks(1)[0]
    with_two_main_directions(method, shuffled)

    def loss():
        torch.manual_seed(0)
        return method.localisation_loss(~shuffled[None]).item()

    plain = loss()
    with torch.autocast("cpu", torch.bfloat16):
        assert loss() == plain


def released_weights(top, epochs, warmup):
    """One number an epoch: a rise whose ends both count, then half a cosine to half of the top."""
    rise = np.linspace(0, top, warmup)
    fall = top * 0.5 + 0.5 * (top - top * 0.5) * (1 + np.cos(np.pi * np.arange(epochs - warmup) / (epochs - warmup)))
    return [*rise, *fall]


@pytest.mark.parametrize("fidelity", ["released", "corrected"])
@pytest.mark.parametrize(("epochs", "warmup"), [(300, 20), (300, 0), (300, 1), (50, 10)])
def test_dal_weight__every_step__is_that_of_its_epoch_in_the_released_code(fidelity, epochs, warmup):
    expected = released_weights(0.01, epochs, warmup)
    cfg = MJP.Config(fidelity=fidelity, warmup_ratio=warmup / epochs, dal_updates=epochs, dal_weight=0.01)
    for steps_per_epoch in (1, 7, 1251):
        for epoch in range(epochs):
            for step in {0, steps_per_epoch // 2, steps_per_epoch - 1}:
                progress = (epoch * steps_per_epoch + step) / (epochs * steps_per_epoch)
                assert dal_weight(cfg, progress) == pytest.approx(expected[epoch], abs=1e-12), (epoch, step)


def test_dal_weight__default_of_300_updates__is_at_its_top_in_the_last_epoch_of_the_warm_up():
    weights = [dal_weight(MJP.Config(), epoch / 300) for epoch in range(300)]
    assert weights[18] < weights[19] == weights[20] == 0.01 > weights[21]


@pytest.mark.parametrize("progress", [0, 0.03, 0.5, 1])
def test_dal_weight__paper__is_constant(progress):
    assert dal_weight(MJP.Config(fidelity="paper", dal_weight=0.02), progress) == 0.02


def test_loss__shuffle_and_dal__is_cross_entropy_plus_lambda_times_dal():
    method, batch = mjp(unknown=False, dal="linear"), tiny_batch(3)
    draw = draw_of(masks(), weight=0.3)
    with torch.no_grad():
        out = method.loss(batch.images, batch.targets, draw)
        probabilities = method.encoder(shuffle_patches(batch.images, draw["order"], GRID)).softmax(dim=1)
        regressed = method.regressor(method.encoder.pos_embed[0, 1:])
    cross_entropy = -sum(probabilities[i, batch.targets[i].argmax()].log().item() for i in range(3)) / 3
    dal = np.mean([abs(regressed[i, k].item() - (i // 7, i % 7)[k]) for i in range(49) for k in range(2)])
    assert out.scalars["class_loss"].item() == pytest.approx(cross_entropy, rel=1e-5)
    assert out.loss.item() == pytest.approx(cross_entropy + 0.3 * dal, rel=1e-5)


def test_loss__dal_none__is_cross_entropy_only():
    method, batch = mjp(dal="none"), tiny_batch(3)
    out = method.loss(batch.images, batch.targets, draw_of(masks(), weight=100.0))
    assert torch.equal(out.loss, out.scalars["class_loss"])


def share_of_shuffled_draws(method, progress, draws=400):
    batch = tiny_batch(2)
    return np.mean([bool(method.draw(batch, progress)["shuffled"].any()) for _ in range(draws)])


@pytest.mark.slow
def test_draw__before_the_end_of_warmup__never_shuffles():
    method = mjp(shuffle_ratio=0.5, shuffle_prob=1.0, warmup_ratio=0.25)
    assert share_of_shuffled_draws(method, 0.0) == 0
    assert share_of_shuffled_draws(method, 0.2499) == 0
    assert share_of_shuffled_draws(method, 0.25) == 1


@pytest.mark.slow
@pytest.mark.parametrize("prob", [0.0, 0.2, 0.5, 1.0])
def test_draw__after_warmup__shuffles_with_the_given_probability(prob):
    found = share_of_shuffled_draws(mjp(shuffle_ratio=0.5, shuffle_prob=prob), 0.5)
    # Five standard errors of 400 draws.
    assert abs(found - prob) <= 5 * math.sqrt(prob * (1 - prob) / 400)


def test_draw__shuffle_off__never_shuffles():
    assert share_of_shuffled_draws(mjp(shuffle="none", shuffle_ratio=0.5, shuffle_prob=1.0), 0.5, 50) == 0


def test_draw__per_image__gives_every_image_its_own_mask_and_order():
    draw = mjp(shuffle_ratio=0.5, fidelity="paper").draw(tiny_batch(8), 0.5)
    assert draw["shuffled"].shape == draw["order"].shape == (8, 49)
    assert len({tuple(mask.tolist()) for mask in draw["shuffled"]}) == 8
    assert set(draw["shuffled"].sum(dim=1).tolist()) == {24}


def test_draw__one_for_all__is_applied_to_every_image():
    method, batch = mjp(shuffle_ratio=0.5, shuffle_prob=1.0), tiny_batch(1)
    draw = method.draw(batch, 0.5)
    assert draw["shuffled"].shape == draw["order"].shape == (1, 49)
    twins = batch.images.expand(4, -1, -1, -1)
    moved = shuffle_patches(twins, draw["order"], GRID)
    assert not torch.equal(moved, twins)
    assert torch.equal(moved, moved[:1].expand_as(moved))


def test_draw__patches_out_of_place__are_among_the_shuffled():
    draw = mjp(shuffle_ratio=0.5, fidelity="paper").draw(tiny_batch(8), 0.5)
    is_moved = draw["order"] != torch.arange(49)
    assert is_moved.any()
    assert not (is_moved & ~draw["shuffled"]).any()


def test_draw__same_seed__is_the_same_and_another_seed_is_not():
    method = mjp(shuffle_ratio=0.5, fidelity="paper")

    def order(seed):
        batch = tiny_batch(4)
        return method.draw(Batch(batch.images, batch.targets, torch.Generator().manual_seed(seed)), 0.5)["order"]

    random.seed(1), torch.manual_seed(1)
    first = order(3)
    random.seed(2), torch.manual_seed(2)
    assert torch.equal(order(3), first)
    assert not torch.equal(order(4), first)
