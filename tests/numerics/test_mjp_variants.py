"""Rows C (patches and pixels shuffled) and F (index embeddings) of MJP's Table 4; positions hidden where nothing moves;
MJP on a Swin and on a ResNet.
"""

import random

import pytest
import torch
from pydantic import ValidationError
from tiny_vit import tiny_batch, tiny_encoder
from torch.nn import functional as F

from pipeline.methods.base import Batch
from pipeline.methods.mjp import MJP
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches, shuffle_pixels
from pipeline.models.patches import Grid
from pipeline.models.position import encode

GRID = Grid(7, 7)
SPP = {"shuffle": "pixels", "unknown": False, "dal": "none"}
IDX = {"unknown": False, "dal": "none", "index": "slots"}


def mjp(**fields):
    return MJP(MJP.Config(**fields), tiny_encoder()).eval()


def test_shuffle_pixels__random_order__matches_a_loop_over_pixels():
    images = torch.arange(2 * 3 * 8 * 12.0).reshape(2, 3, 8, 12)
    order = torch.randperm(4 * 6, generator=torch.Generator().manual_seed(0))

    moved = shuffle_pixels(images, order, Grid(2, 2))

    for top in (0, 4):
        for left in (0, 6):
            for place, pixel in enumerate(order.tolist()):
                found = moved[:, :, top + place // 6, left + place % 6]
                assert torch.equal(found, images[:, :, top + pixel // 6, left + pixel % 6])


def test_spp__drawn__moves_all_patches_and_all_pixels_whatever_the_ratio():
    draw = mjp(**SPP, shuffle_ratio=0.0, shuffle_prob=1.0).draw(tiny_batch(), 0.5)

    assert draw["shuffled"].all()
    assert sorted(draw["order"][0].tolist()) == list(range(49)) != draw["order"][0].tolist()
    assert sorted(draw["pixel_order"].tolist()) == list(range(16)) != draw["pixel_order"].tolist()


def test_spp__before_warmup_is_over__moves_nothing():
    method, batch = mjp(**SPP, shuffle_prob=1.0, warmup_ratio=0.2), tiny_batch()
    draw = method.draw(batch, 0.1)

    assert not draw["shuffled"].any()
    assert torch.equal(draw["pixel_order"], torch.arange(16))
    plain = torch.nn.functional.cross_entropy(method.encoder(batch.images), batch.targets)
    torch.testing.assert_close(method.loss(batch.images, batch.targets, draw).loss, plain)


def test_spp__with_the_unknown_embedding__is_refused():
    with pytest.raises(ValidationError, match="no position would be left; set unknown: false"):
        MJP.Config(shuffle="pixels")


def test_index__at_the_start__is_zero_and_changes_nothing():
    method, images = mjp(**IDX), tiny_batch().images

    assert method.index.shape == method.encoder.pos_embed.shape and not method.index.any()
    torch.testing.assert_close(method.predict(images).logits, method.encoder(images), atol=1e-6, rtol=1e-6)


def test_index__learned__is_added_in_slot_order_to_every_token():
    method, images = mjp(**IDX), tiny_batch().images
    with torch.no_grad():
        method.index.normal_(generator=torch.Generator().manual_seed(0))
        found = method.predict(images).logits
        method.encoder.pos_embed += method.index

    torch.testing.assert_close(found, method.encoder(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("fidelity", "is_decayed"), [("corrected", False), ("released", True)])
def test_index__weight_decay__follows_fidelity(fidelity, is_decayed):
    assert ("index" not in mjp(**IDX, fidelity=fidelity).no_weight_decay()) == is_decayed


@pytest.mark.parametrize("index", ["slots", "patches"])
def test_index__exported__is_in_the_positions_and_predictions_stay(index):
    method, images = mjp(**{**IDX, "index": index}), tiny_batch().images
    with torch.no_grad():
        method.index.normal_(generator=torch.Generator().manual_seed(0))
        before = method.predict(images).logits
        encoder = method.export()

    torch.testing.assert_close(encoder(images), before, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(method.predict(images).logits, before, atol=1e-5, rtol=1e-5)
    assert not method.index.any()


def draw_of(count, grid, ratio=0.5):
    """A jigsaw of its own for every image."""
    rng = random.Random(0)
    masks = [block_mask(grid, ratio, rng) for _ in range(count)]
    orders = [jigsaw_order(mask, rng) for mask in masks]
    return {"order": torch.stack(orders), "shuffled": torch.stack(masks), "dal_weight": torch.tensor(0.01)}


def entered(method, part, batch, draw):
    """The tokens that reach this part of the encoder when the loss is computed."""
    seen = []
    handle = part.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        method.loss(batch.images, batch.targets, draw)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("index", ["slots", "patches"])
@pytest.mark.parametrize("unknown", [False, True])
@torch.no_grad()
def test_index__shuffled__stays_with_its_slot_or_travels_with_its_patch(index, unknown):
    method, batch, draw = mjp(**{**IDX, "index": index, "unknown": unknown}), tiny_batch(3), draw_of(3, GRID)
    encoder = method.encoder
    method.index.normal_(generator=torch.Generator().manual_seed(0))

    found = entered(method, encoder.blocks, batch, draw)

    patches = encoder.patch_embed(batch.images)
    for image, (order, mask) in enumerate(zip(draw["order"].tolist(), draw["shuffled"].tolist(), strict=True)):
        rows = [encoder.cls_token[0, 0] + encoder.pos_embed[0, 0] + method.index[0, 0]]
        for slot, patch in enumerate(order):
            position = method.unknown[0] if unknown and mask[slot] else encoder.pos_embed[0, 1 + slot]
            row = patch if index == "patches" else slot
            rows.append(patches[image, patch] + position + method.index[0, 1 + row])
        torch.testing.assert_close(found[image], torch.stack(rows), atol=1e-5, rtol=1e-5)


def test_index__patches_not_shuffled__is_that_of_slots():
    method, images = mjp(**{**IDX, "index": "patches"}), tiny_batch().images
    with torch.no_grad():
        method.index.normal_(generator=torch.Generator().manual_seed(0))
        in_place = method.classify(
            encode(method.encoder, images, method.slot_positions(order=torch.arange(49).expand(len(images), -1)))
        ).logits
    torch.testing.assert_close(in_place, method.predict(images).logits, atol=1e-6, rtol=0)


HIDDEN = {"shuffle": "positions", "shuffle_ratio": 0.5, "shuffle_prob": 1.0}


def hiding(**fields):
    """A method, a batch and a draw that hides some positions and keeps others."""
    method, batch = mjp(**HIDDEN | fields), tiny_batch(3)
    draw = method.draw(batch, 0.5)
    assert 0 < draw["shuffled"].float().mean() < 1
    return method, batch, draw


@pytest.mark.parametrize("fidelity", ["corrected", "paper"])
def test_positions__drawn__are_those_of_the_patches_that_would_have_moved_and_none_moves(fidelity):
    *_, hidden = hiding(fidelity=fidelity)
    moved = mjp(**HIDDEN | {"shuffle": "patches", "fidelity": fidelity}).draw(tiny_batch(3), 0.5)

    assert torch.equal(hidden["shuffled"], moved["shuffled"])
    assert torch.equal(hidden["order"], torch.arange(49).expand_as(moved["order"]))
    assert not torch.equal(moved["order"], hidden["order"])


@torch.no_grad()
def test_positions__hidden__are_the_unknown_one_at_patches_in_their_places():
    method, batch, draw = hiding(fidelity="paper")
    encoder = method.encoder

    found = entered(method, encoder.blocks, batch, draw)

    patches = encoder.patch_embed(batch.images)
    for image, mask in enumerate(draw["shuffled"].tolist()):
        for slot, is_hidden in enumerate(mask):
            position = method.unknown[0] if is_hidden else encoder.pos_embed[0, 1 + slot]
            torch.testing.assert_close(found[image, 1 + slot], patches[image, slot] + position, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dal", ["none", "nonlinear"])
def test_positions__hidden_in_a_step__get_no_gradient_and_the_unknown_one_does(dal):
    method, batch, draw = hiding(dal=dal)

    method.loss(batch.images, batch.targets, draw).loss.backward()

    rows, (mask,) = method.encoder.pos_embed.grad[0, 1:], draw["shuffled"]
    assert not rows[mask].any() and rows[~mask].any(dim=1).all()
    assert method.unknown.grad.any()


def test_positions__hidden__localisation_is_that_of_the_kept_ones():
    method, batch, draw = hiding()
    expected = method.localisation_loss(~draw["shuffled"])
    assert torch.equal(method.loss(batch.images, batch.targets, draw).scalars["dal_loss"], expected)


def test_positions__before_warmup_is_over__are_all_there():
    method = mjp(**HIDDEN, warmup_ratio=0.2)
    assert not method.draw(tiny_batch(), 0.1)["shuffled"].any()


def test_positions__without_the_unknown_embedding__is_refused():
    with pytest.raises(ValidationError, match="positions moves no patch and hides only positions; set unknown: true"):
        MJP.Config(shuffle="positions", unknown=False)


SWIN_GRID = Grid(8, 8)


def swin_mjp(**fields):
    """MJP on a Swin of two stages with learned absolute positions: 32 px, 8x8 patches."""
    torch.manual_seed(0)
    values = {"patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "window_size": 4}
    cfg = ModelConfig(name="swin", arch="swin_tiny_patch4_window7_224", pos_embed="learn", **values)
    return MJP(MJP.Config(**fields), build_encoder(cfg, 32, 1, 10)).eval()


def images_of_32_px(count=3):
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.randn(count, 1, 32, 32, generator=generator), torch.eye(10)[:count], generator)


@pytest.mark.parametrize("fidelity", ["released", "corrected", "paper"])
def test_swin__localisation__pairs_a_patch_with_the_next_position_only_as_released(fidelity):
    method, kept = swin_mjp(fidelity=fidelity), ~draw_of(1, SWIN_GRID)["shuffled"]
    errors = []
    for patch in kept[0].nonzero().flatten().tolist():
        position = method.encoder.pos_embed[0, patch]
        if fidelity == "released":
            position = method.encoder.pos_embed[0, patch + 1] if patch < 63 else method.unknown[0]
        row, col = method.regressor(position)
        error = (row - patch // 8).abs() + (col - patch % 8).abs()
        errors.append(error if fidelity == "paper" else error / 2)
    assert kept[0, 63]  # the patch that the unknown embedding is paired with
    torch.testing.assert_close(method.localisation_loss(kept), torch.stack(errors).mean(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("unknown", [False, True])
@torch.no_grad()
def test_swin__shuffled__adds_positions_with_the_unknown_one_to_the_patches(unknown):
    method, batch, draw = swin_mjp(unknown=unknown, dal="none"), images_of_32_px(), draw_of(3, SWIN_GRID)
    encoder = method.encoder

    found = entered(method, encoder.layers, batch, draw)

    patches = encoder.patch_embed(batch.images)
    for image, (order, mask) in enumerate(zip(draw["order"].tolist(), draw["shuffled"].tolist(), strict=True)):
        for slot, patch in enumerate(order):
            position = method.unknown[0] if unknown and mask[slot] else encoder.pos_embed[0, slot]
            expected = patches[image, patch // 8, patch % 8] + position
            torch.testing.assert_close(found[image, slot // 8, slot % 8], expected, atol=1e-5, rtol=1e-5)


def test_swin__predict__is_head_and_norm_of_its_stages_with_positions():
    method, images = swin_mjp(), images_of_32_px().images
    encoder = method.encoder
    with torch.no_grad():
        tokens = encoder.patch_embed(images) + encoder.pos_embed.reshape(1, 8, 8, 16)
        expected = encoder.forward_head(encoder.norm(encoder.layers(tokens)))
        torch.testing.assert_close(method.predict(images).logits, expected, atol=1e-6, rtol=1e-5)


def test_swin__drawn_and_trained_a_step__reaches_positions_and_the_unknown_one():
    method, batch = swin_mjp(shuffle_ratio=0.3, shuffle_prob=1.0), images_of_32_px()
    method.loss(batch.images, batch.targets, method.draw(batch, 0.5)).loss.backward()
    missing = [name for name, parameter in method.named_parameters() if parameter.grad is None]
    assert missing == []
    assert method.unknown.grad.any() and method.encoder.pos_embed.grad.any()


RESNET = ModelConfig(name="resnet", arch="resnet10t", patch_size=8)
PIXELS_ALONE = {"unknown": False, "dal": "none"}


@pytest.mark.slow
def test_resnet__mjp__is_the_shuffle_of_pixels_and_nothing_else():
    torch.manual_seed(0)
    method = MJP(MJP.Config(**PIXELS_ALONE), build_encoder(RESNET, 32, 1, 10)).eval()
    batch, grid = images_of_32_px(), Grid(4, 4)
    draw = draw_of(3, grid, 1.0)
    with torch.no_grad():
        moved = shuffle_patches(batch.images, draw["order"], grid)
        assert not torch.equal(moved, batch.images)
        expected = F.cross_entropy(method.encoder(moved), batch.targets)
        torch.testing.assert_close(method.loss(batch.images, batch.targets, draw).loss, expected)
        assert torch.equal(method.predict(moved, draw["shuffled"]).logits, method.encoder(moved))
    assert [name for name, _ in method.named_parameters() if not name.startswith("encoder.")] == []
    assert method.draw(batch, 0.5)["order"].shape == (1, 16)


def test_resnet__with_parts_that_need_positions__is_refused():
    MJP.Config(**PIXELS_ALONE).check(RESNET, 32)
    for fields in ({"unknown": True}, {"dal": "linear"}, {"index": "slots"}):
        with pytest.raises(ValueError, match="method mjp works on learned positions, model resnet has none"):
            MJP.Config(**PIXELS_ALONE | fields).check(RESNET, 32)
