"""DropPos on a Swin: which cells reach the encoder, with which positions, and whose logits come back.

3 stages with patches of 2 px on images of 32 px: 8x8 cells of 4 px, 2x2 patches each, of which 4x4 are visible; one
token of the last stage has 2x2 cells.
"""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.core.errors import ConfigError
from pipeline.methods.base import Batch
from pipeline.methods.droppos_swin import DropPosSwin
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.patches import Grid
from pipeline.models.position import sincos_positions
from pipeline.models.weights import load_encoder

torch.set_num_threads(1)

IMAGE_SIZE, CELLS, SIDE, CELL = 32, 8, 4, 4
SMALL = {"cells": CELLS, "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}


def swin_model(**changes):
    values = {"patch_size": 2, "embed_dim": 8, "depths": (2, 2, 1), "num_heads": (1, 2, 2), "window_size": 2}
    return ModelConfig(name="tiny_swin", arch="swin_tiny_patch4_window7_224", **values | changes)


def droppos_swin(model=None, image_size=IMAGE_SIZE, **fields):
    torch.manual_seed(0)
    cfg = DropPosSwin.Config(**{**SMALL, **fields})
    encoder = build_encoder(swin_model(**model or {}), cfg.encoder_size(image_size), 1, 0)
    return DropPosSwin(cfg, encoder).eval()


def batch_of(count=3, image_size=IMAGE_SIZE):
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.randn(count, 1, image_size, image_size, generator=generator), torch.zeros(count), generator)


def numbered_images(count=3):
    """Every cell has its own number, the same in all its pixels."""
    numbers = torch.arange(float(CELLS**2)).reshape(1, 1, CELLS, CELLS)
    return numbers.repeat_interleave(CELL, 2).repeat_interleave(CELL, 3).expand(count, -1, -1, -1)


def cell(image, index, side, size):
    """The part of a map (..., H, W) that belongs to a cell."""
    row, col = size * (index // side), size * (index % side)
    return image[..., row : row + size, col : col + size]


def logits_of(method, images, order):
    return method.position_logits(images, order, method.num_visible, method.num_anchors)


@pytest.mark.parametrize(("mask_ratio", "side"), [(0.75, 4), (0.0, 8), (0.4, 6)])
def test_visible__any_ratio__are_the_largest_square_within_it(mask_ratio, side):
    method = droppos_swin(mask_ratio=mask_ratio)
    assert (method.cfg.side, method.num_visible) == (side, side**2)
    assert method.encoder.patch_embed.img_size == (side * CELL, side * CELL)
    assert logits_of(method, batch_of().images, method.draw(batch_of(), 0.0)["order"]).shape[2] == CELLS**2


def test_visible__of_the_paper__are_128_px_of_256():
    cfg = DropPosSwin.Config()
    assert (cfg.cells, cfg.side, cfg.encoder_size(256)) == (16, 8, 128)


def test_compact_image__numbered_cells__holds_exactly_the_chosen_ones_whole():
    method, seen = droppos_swin(), []
    method.encoder.patch_embed.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    order = method.draw(batch_of(), 0.0)["order"]

    logits_of(method, numbered_images(), order)

    assert seen[0].shape == (3, 1, SIDE * CELL, SIDE * CELL)
    for image in range(3):
        found = [cell(seen[0][image, 0], place, SIDE, CELL).unique().tolist() for place in range(SIDE**2)]
        assert sorted(found) == sorted([number] for number in order[image, :16].tolist())
        assert [number for [number] in found] == order[image, method.layout].tolist()


def test_compact_image__layout__mixes_anchors_with_the_others_and_never_changes():
    method, other = droppos_swin(), droppos_swin(model={"embed_dim": 16})
    assert sorted(method.layout.tolist()) == list(range(16)) != method.layout.tolist()
    assert torch.equal(method.layout, other.layout)
    rows = (method.layout < method.num_anchors).reshape(SIDE, SIDE).any(dim=1)
    assert rows.sum() > 1


def test_positions__anchors_and_dropped__are_those_of_true_places_and_the_mask_token():
    method, batch, embedded, entered = droppos_swin(position_ratio=0.5), batch_of(), [], []
    method.encoder.patch_embed.register_forward_hook(lambda module, args, output: embedded.append(output))
    method.encoder.layers.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    order = method.draw(batch, 0.0)["order"]
    assert (method.num_anchors, method.num_visible) == (8, 16)

    logits_of(method, batch.images, order)

    added = (entered[0] - embedded[0]).permute(0, 3, 1, 2)  # (B, D, 8, 8)
    table = sincos_positions(Grid(16, 16), 8)[0].T.reshape(8, 16, 16)
    mask = method.mask_token.reshape(8, 1, 1).expand(8, 2, 2)
    for image in range(3):
        for place, slot in enumerate(method.layout.tolist()):
            expected = cell(table, int(order[image, slot]), CELLS, 2) if slot < 8 else mask
            torch.testing.assert_close(cell(added[image], place, SIDE, 2), expected, atol=1e-5, rtol=0)


class MeanOfCells(nn.Module):
    """In the place of the Swin's stages: the last stage's token lists the means of its 2x2 cells."""

    def forward(self, tokens):
        means = tokens[..., 0].unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).mean(dim=(2, 4))  # (B, 4, 4): cells
        blocks = means.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 1, 3, 2, 4).flatten(3)  # (B, 2, 2, 4)
        return nn.functional.pad(blocks, (0, 28))


def test_logits__tokens_that_carry_their_cell__come_back_in_the_order_of_slots():
    method, images = droppos_swin(position_ratio=1.0), numbered_images()
    encoder, decoder = method.encoder, method.decoder
    encoder.layers, encoder.norm, decoder.blocks, decoder.norm = MeanOfCells(), *[nn.Identity()] * 3
    with torch.no_grad():
        method.mask_token.zero_()
        encoder.patch_embed.norm = nn.Identity()
        encoder.patch_embed.proj.weight.fill_(1 / 4)
        encoder.patch_embed.proj.bias.zero_()
        decoder.embed.weight.zero_()
        decoder.embed.weight[:4, :4] = torch.eye(4)  # the first channel of each of the 2x2 cells
        decoder.head.weight.zero_()
        decoder.head.weight[0, 0] = 1.0
    order = method.draw(batch_of(), 0.0)["order"]
    found = logits_of(method, images, order)[:, :, 0]
    torch.testing.assert_close(found, order[:, :16].float(), atol=1e-4, rtol=0)

    method.num_anchors = 4
    method.positions.zero_()
    torch.testing.assert_close(logits_of(method, images, order)[:, :, 0], order[:, 4:16].float(), atol=1e-4, rtol=0)


def test_logits__removed_cells_changed__stay():
    method, batch = droppos_swin(), batch_of()
    order, other = method.draw(batch, 0.0)["order"], batch.images.clone()
    for image in range(3):
        for index in order[image, 16:].tolist():
            cell(other[image], index, CELLS, CELL).fill_(9.0)
    assert torch.equal(logits_of(method, other, order), logits_of(method, batch.images, order))


def test_affinities__whole_image__are_to_the_mean_of_a_swin_of_its_full_size():
    """With windows of 2 the last stage has no shifted block, so a Swin built for 32 px computes the same."""
    method, batch = droppos_swin(), batch_of()
    whole = build_encoder(swin_model(), IMAGE_SIZE, 1, 0).eval()
    whole.load_state_dict(method.encoder.state_dict())
    table = sincos_positions(Grid(16, 16), 8).reshape(1, 16, 16, 8)
    with torch.no_grad():
        features = whole.norm(whole.layers(whole.patch_embed(batch.images) + table))
    assert features.shape == (3, 4, 4, 32)

    found = method.affinities(batch.images)

    for image in range(3):
        mean = features[image].mean(dim=(0, 1))
        near = [torch.cosine_similarity(features[image, i // 8 // 2, i % 8 // 2], mean, dim=0) for i in range(64)]
        torch.testing.assert_close(found[image], (torch.stack(near) / 0.1).softmax(0), atol=1e-6, rtol=1e-4)
    assert not found.requires_grad


def test_loss__weights_by_hand__is_the_weighted_mean_over_dropped_cells():
    method, batch = droppos_swin(position_ratio=0.5, sigma=0.0), batch_of()
    draw = method.draw(batch, 0.0)
    with torch.no_grad():
        logits, affinities = logits_of(method, batch.images, draw["order"]), method.affinities(batch.images)
        above = below = 0.0
        for image, order in enumerate(draw["order"].tolist()):
            visible = sum(affinities[image, index] for index in order[:16])
            for slot in range(8, 16):
                weight = affinities[image, order[slot]] / visible
                above -= weight * logits[image, slot - 8].log_softmax(0)[order[slot]]
                below += weight
        found = method.loss(batch.images, batch.targets, draw).loss
    torch.testing.assert_close(found, above / below, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        ({"depths": (1, 1), "num_heads": (1, 1)}, {"cells": 4}, r"2x2 visible cells of 8 px .* a last stage of 4 px"),
        ({"patch_size": 4}, {"cells": 16}, r"8x8 visible cells of 2 px do not fit patches of 4 px"),
        ({}, {"mask_ratio": 0.6}, r"5x5 visible cells of 4 px .* a last stage of 8 px"),
    ],
)
def test_refused__cells_that_do_not_fit__says_what_to_change(model, fields, message):
    with pytest.raises(ConfigError, match=f"{message}.*; change method.cells or mask_ratio"):
        droppos_swin(model=model, **fields)


def test_refused__cells_that_do_not_divide_the_image__before_anything_is_built():
    with pytest.raises(ValueError, match=r"method.cells 8 does not divide data.image_size 30"):
        DropPosSwin.Config(cells=8).check(swin_model(), 30)


@pytest.mark.parametrize("changes", [{"pos_embed": "learn"}, {"pos_embed": "sincos"}])
def test_refused__swin_with_positions_of_its_own__says_so(changes):
    with pytest.raises(ValueError, match=r"works on a Swin and adds its own positions, found .* with pos_embed"):
        DropPosSwin.Config().check(swin_model(**changes), 256)


def test_refused__vit__says_so():
    with pytest.raises(ValueError, match=r"works on a Swin .* found model.arch vit_tiny_patch16_224"):
        DropPosSwin.Config().check(ModelConfig(name="vit", arch="vit_tiny_patch16_224"), 256)


def test_export__loaded_into_a_swin_of_another_window__matches_all_but_tables_and_head(tmp_path):
    method = droppos_swin()
    save_file(method.export().state_dict(), tmp_path / "encoder.safetensors")
    finetuned = build_encoder(swin_model(window_size=4), IMAGE_SIZE, 1, 10)

    report = load_encoder(finetuned, tmp_path / "encoder.safetensors")

    tables = [name for name in finetuned.state_dict() if name.endswith("relative_position_bias_table")]
    assert len(tables) == 5
    assert report.resized == [f"{name} 2x2 -> 4x4" for name in tables]
    assert report.fresh == ["head.fc.weight", "head.fc.bias"] and report.dropped == []
    theirs, ours = method.encoder.state_dict(), finetuned.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in report.matched)
    assert set(report.matched) | set(tables) == set(theirs)
    assert torch.isfinite(finetuned(batch_of().images)).all()
