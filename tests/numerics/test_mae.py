"""MAE against a literal reading of its released code: masked patches rebuilt in their own order."""

import math

import pytest
import torch
from tiny_vit import IMAGE_SIZE, tiny_model

from pipeline.methods.base import Batch
from pipeline.methods.mae import MAE
from pipeline.models.encoder import build_encoder
from pipeline.models.patches import Grid
from pipeline.models.position import sincos_positions

N, PATCH, CHANNELS, WIDTH = 49, 4, 3, 24


def mae(pos_embed="sincos", **fields):
    """Three channels, and a decoder narrower than the encoder, so that nothing fits by accident."""
    torch.manual_seed(0)
    encoder = build_encoder(tiny_model(pos_embed=pos_embed), IMAGE_SIZE, CHANNELS, 0)
    config = MAE.Config(decoder_width=WIDTH, decoder_depth=2, decoder_heads=2, **fields)
    method = MAE(config, encoder).eval()
    with torch.no_grad():
        for name, parameter in method.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
        if pos_embed == "learn":
            encoder.pos_embed.normal_(std=0.5)
    return method


def images_and_order(count=3):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, CHANNELS, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    return images, torch.rand(count, N, generator=generator).argsort(dim=1)


def loss_of(method, images, order):
    return method.loss(images, torch.empty(0), {"order": order}).loss


def pixels_of(image, patch):
    row, col = patch // 7 * PATCH, patch % 7 * PATCH
    return image[:, row : row + PATCH, col : col + PATCH].flatten()


def rebuilt(method, image, visible):
    """(N, pixels) of one image: every patch as the decoder gives it, in the order of the image."""
    encoder, decoder = method.encoder, method.decoder
    tokens = encoder.patch_embed(image[None])[0] + encoder.pos_embed[0, 1:]
    seen = [encoder.cls_token[0, 0] + encoder.pos_embed[0, 0]] + [tokens[patch] for patch in visible]
    seen = decoder.embed(encoder.norm(encoder.blocks(torch.stack(seen)[None])))[0]
    full = [seen[0]] + [method.mask_token[0, 0]] * N
    for slot, patch in enumerate(visible):
        full[1 + patch] = seen[1 + slot]
    positions = sincos_positions(Grid(7, 7), WIDTH, num_prefix=1)[0].to(seen.dtype)
    out = decoder.blocks((torch.stack(full) + positions)[None])[0]
    return decoder.head(decoder.norm(out))[1:]


def reference_loss(method, images, order, num_visible, norm_pix=True):
    errors = []
    for image, slots in zip(images, order.tolist(), strict=True):
        out = rebuilt(method, image, slots[:num_visible])
        for patch in slots[num_visible:]:
            wanted = pixels_of(image, patch)
            if norm_pix:
                centred = wanted - wanted.sum() / len(wanted)
                wanted = centred / ((centred**2).sum() / (len(wanted) - 1) + 1e-6).sqrt()
            errors.append(((out[patch] - wanted) ** 2).sum() / len(wanted))
    return sum(errors) / len(errors)


@torch.no_grad()
@pytest.mark.parametrize("norm_pix", [True, False])
@pytest.mark.parametrize("pos_embed", ["sincos", "learn"])
def test_loss__visible_patches_first__matches_the_decoder_in_original_order(pos_embed, norm_pix):
    method, (images, order) = mae(pos_embed, norm_pix=norm_pix).double(), images_and_order()

    found = loss_of(method, images.double(), order)

    expected = reference_loss(method, images.double(), order, num_visible=12, norm_pix=norm_pix)
    # The errors are taken in fp32.
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(("mask_ratio", "num_masked"), [(0.75, 37), (0.5, 25), (0.9, 45)])
def test_pixel_errors__any_mask_ratio__has_one_of_each_removed_patch(mask_ratio, num_masked):
    method, (images, order) = mae(mask_ratio=mask_ratio), images_and_order()
    assert method.pixel_errors(images, order).shape == (3, num_masked)
    assert method.num_visible == N - num_masked


@torch.no_grad()
def test_loss__order_changed_within_visible_and_within_removed__is_the_same():
    method, (images, order) = mae(), images_and_order()
    mixed = torch.cat([order[:, :12].flip(1), order[:, 12:].roll(5, dims=1)], dim=1)
    torch.testing.assert_close(loss_of(method, images, mixed), loss_of(method, images, order), atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_loss__perfect_reconstruction__is_0(monkeypatch):
    method, (images, order) = mae(), images_and_order()
    wanted = torch.stack(
        [
            torch.stack([pixels_of(image, patch) for patch in slots[12:]])
            for image, slots in zip(images, order.tolist(), strict=True)
        ]
    )
    wanted = (wanted - wanted.mean(dim=-1, keepdim=True)) / wanted.std(dim=-1, keepdim=True)
    monkeypatch.setattr(method, "rebuild", lambda visible, order: wanted)
    assert loss_of(method, images, order).item() < 1e-9


@torch.no_grad()
def test_loss__visible_patches_changed__is_changed_through_the_encoder_only(monkeypatch):
    method, (images, order) = mae(), images_and_order(1)
    other = images.clone()
    for patch in order[0, :12].tolist():
        pixels_of_other = other[0, :, patch // 7 * PATCH :, patch % 7 * PATCH :][:, :PATCH, :PATCH]
        pixels_of_other += 1.0
    assert loss_of(method, other, order).item() != pytest.approx(loss_of(method, images, order).item(), rel=1e-4)

    monkeypatch.setattr(method, "rebuild", lambda visible, order: torch.ones(1, N - 12, CHANNELS * PATCH**2))
    assert torch.equal(loss_of(method, other, order), loss_of(method, images, order))


@torch.no_grad()
@pytest.mark.parametrize(("slots", "matters"), [(slice(0, 13), False), (slice(13, None), True)])
def test_loss__decoder_output_disturbed__counts_removed_patches_only(slots, matters):
    method, (images, order) = mae(), images_and_order()
    plain = loss_of(method, images, order)

    def disturb(_, __, tokens):
        tokens = tokens.clone()
        tokens[:, slots] += torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
        return tokens

    method.decoder.blocks.register_forward_hook(disturb)
    assert torch.equal(loss_of(method, images, order), plain) != matters


@torch.no_grad()
def test_pixel_targets__plain_pixels__are_left_as_they_are():
    patches = torch.randn(2, 5, CHANNELS, PATCH**2)
    assert torch.equal(mae(norm_pix=False).pixel_targets(patches), patches.flatten(2))


@torch.no_grad()
def test_pixel_targets__patch_of_one_colour__stay_finite():
    assert torch.equal(
        mae().pixel_targets(torch.ones(1, 1, CHANNELS, PATCH**2)), torch.zeros(1, 1, CHANNELS * PATCH**2)
    )


@torch.no_grad()
def test_measure__batch__has_a_value_for_each_image():
    method, (images, order) = mae(), images_and_order(4)
    found = method.measure(Batch(images, torch.empty(0), torch.Generator().manual_seed(5)))["loss"]
    order = method.draw(Batch(images, torch.empty(0), torch.Generator().manual_seed(5)), 1.0)["order"]
    assert found.shape == (4,)
    torch.testing.assert_close(found.mean(), loss_of(method, images, order))


def test_start__linear_layers_and_patch_projection__are_xavier_uniform():
    torch.manual_seed(0)
    encoder = build_encoder(tiny_model(pos_embed="sincos"), IMAGE_SIZE, CHANNELS, 0)
    method = MAE(MAE.Config(decoder_width=WIDTH, decoder_depth=2, decoder_heads=2), encoder)
    for name, part in method.named_modules():
        if not isinstance(part, (torch.nn.Linear, torch.nn.Conv2d)):
            continue
        weight = part.weight.flatten(1)
        bound = math.sqrt(6 / sum(weight.shape))
        assert weight.abs().max() <= bound, name
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
        assert isinstance(part, torch.nn.Conv2d) or not part.bias.any(), name
    for token in (encoder.cls_token, method.mask_token):
        assert token.std().item() == pytest.approx(0.02, rel=0.5)
    assert torch.equal(encoder.pos_embed, sincos_positions(Grid(7, 7), 32, num_prefix=1))
