"""Rows C (patches and pixels shuffled) and F (index embeddings) of MJP's Table 4."""

import pytest
import torch
from pydantic import ValidationError
from tiny_vit import tiny_batch, tiny_encoder

from pipeline.data.jigsaw import shuffle_pixels
from pipeline.methods.mjp import MJP
from pipeline.models.position import Grid

GRID = Grid(7, 7)
SPP = {"shuffle": "pixels", "unknown": False, "dal": "none"}
IDX = {"unknown": False, "dal": "none", "index": True}


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


def test_index__exported__is_in_the_positions_and_predictions_stay():
    method, images = mjp(**IDX), tiny_batch().images
    with torch.no_grad():
        method.index.normal_(generator=torch.Generator().manual_seed(0))
        before = method.predict(images).logits
        encoder = method.export()

    torch.testing.assert_close(encoder(images), before, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(method.predict(images).logits, before, atol=1e-5, rtol=1e-5)
    assert not method.index.any()
