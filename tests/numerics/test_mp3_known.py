"""MP3 on frames, some of whose positions are told (MP3 Sec. 4.3): which, how, and what then counts."""

import math

import pytest
import torch
from tiny_vit import FRAMES_SIZE, build_tiny, frame_model, tiny_batch, tiny_encoder
from torch.nn.functional import cross_entropy

from pipeline.core.errors import ConfigError
from pipeline.methods.base import Batch
from pipeline.methods.mp3 import MP3

N, WIDTH, NUM_KNOWN = 12, 32, 4  # 12 * 0.3 is 3.6


def mp3(known_ratio=0.3, mask_ratio=0.0, model=None, seed=0):
    """Weights large enough for what is told to matter."""
    encoder = build_tiny(model or frame_model(pos_embed="none"), seed, num_classes=0)
    method = MP3(MP3.Config(mask_ratio=mask_ratio, known_ratio=known_ratio), encoder)
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)
    return method.eval()


def frames(count=3, seed=0):
    return tiny_batch(count, seed, FRAMES_SIZE)


def seeded(batch, seed=5):
    return Batch(batch.images, batch.targets, torch.Generator().manual_seed(seed))


def told(place):
    """The row of a place, by hand (Vaswani et al. 2017)."""
    angles = [place / 10000 ** (2 * k / WIDTH) for k in range(WIDTH // 2)]
    return torch.tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])


def reference(method, images, known_patches):
    """Logits (B, N, N) by patch, in the order of the images: all patches are context."""
    encoder, found = method.encoder, []
    for image, known in zip(images, known_patches, strict=True):
        tokens = encoder.patch_embed(image[None])[0].clone()
        for patch in known:
            tokens[patch] += told(patch)
        tokens = encoder.norm(encoder.blocks(torch.cat([encoder.cls_token[0], tokens])[None]))
        found.append(method.head(tokens[0, 1:]))
    return torch.stack(found)


def patches_of(order, known):
    """For each image the patches whose positions are told."""
    return [slots[is_known].tolist() for slots, is_known in zip(order, known, strict=True)]


# Nothing told


def test_ratio_0__draw_loss_and_measure__are_those_of_the_plain_method():
    method, batch = mp3(known_ratio=0.0, mask_ratio=0.5), frames()
    drawn, plain = seeded(batch), torch.Generator().manual_seed(5)
    draw = method.draw(drawn, 0.5)
    order = torch.rand(3, N, generator=plain).argsort(dim=1)
    assert draw.keys() == {"order"} and torch.equal(draw["order"], order)
    assert torch.equal(drawn.generator.get_state(), plain.get_state())

    out = method.loss(batch.images, batch.targets, draw)
    logits = method.position_logits(batch.images, order, 6)
    assert torch.equal(out.loss, cross_entropy(logits.flatten(0, 1), order.flatten()))
    assert out.scalars.keys() == {"position_top1"}
    assert [*method.measure(seeded(batch))] == ["position_top1", "loss"]
    assert [name for name, _ in method.named_buffers()] == []


@torch.no_grad()
def test_nothing_told__frames_in_another_order__have_the_same_logits():
    method, batch = mp3(known_ratio=0.0), frames()
    place = torch.arange(N).expand(3, N)
    moved = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    plain, found = (method.position_logits(images, place, N) for images in (batch.images, batch.images[..., moved]))
    torch.testing.assert_close(found, plain[:, moved], atol=1e-5, rtol=1e-5)


# Which are told, and how


@pytest.mark.parametrize(("ratio", "count"), [(0.05, 1), (0.3, 4), (0.5, 6), (0.9, 11)])
def test_draw__any_ratio__tells_the_rounded_share_of_every_image(ratio, count):
    method = mp3(known_ratio=ratio)
    known = method.draw(seeded(frames(7)), 0.5)["known"]
    assert known.dtype == torch.bool and known.sum(dim=1).tolist() == [count] * 7
    assert torch.equal(method.measure_at(seeded(frames(7)), N)["loss"].values.isfinite(), torch.ones(7).bool())


def test_num_known__98_frames_of_the_paper__are_five():
    encoder = build_tiny(frame_model(pos_embed="none", depth=1), num_classes=0, image_size=(8, 98))
    assert MP3(MP3.Config(known_ratio=0.05), encoder).num_known == 5


def test_draw__many_images__every_slot_and_every_patch_is_told_equally_often():
    batch = Batch(torch.empty(20000, 0), torch.empty(0), torch.Generator().manual_seed(0))
    draw = mp3().draw(batch, 0.5)
    by_patch = draw["known"].gather(1, draw["order"].argsort(dim=1))
    share = NUM_KNOWN / N
    deviation = math.sqrt(share * (1 - share) / 20000)
    for known in (draw["known"], by_patch):
        assert (known.float().mean(dim=0) - share).abs().max() < 5 * deviation
    assert len(draw["known"].unique(dim=0)) == math.comb(N, NUM_KNOWN)


@torch.no_grad()
def test_position_logits__known_slots__get_the_row_of_their_true_position_and_others_nothing():
    method, batch = mp3(), frames()
    draw, seen = method.draw(seeded(batch), 0.5), []
    method.encoder.pos_drop.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for known in (None, draw["known"]):
        method.position_logits(batch.images, draw["order"], N, known)
    plain, given = seen
    assert torch.equal(plain[:, 0], given[:, 0])  # CLS
    for image in range(3):
        for slot in range(N):
            row = told(draw["order"][image, slot].item()) if draw["known"][image, slot] else torch.zeros(WIDTH)
            torch.testing.assert_close(given[image, 1 + slot], plain[image, 1 + slot] + row)


# What counts


@torch.no_grad()
def test_loss__some_told__is_the_cross_entropy_of_the_others():
    method, batch = mp3(), frames()
    draw = method.draw(seeded(batch), 0.5)
    known = patches_of(draw["order"], draw["known"])
    shares = reference(method, batch.images, known).softmax(dim=2)
    counted = [(i, p) for i in range(3) for p in range(N) if p not in known[i]]
    assert len(counted) == 3 * (N - NUM_KNOWN)

    out = method.loss(batch.images, batch.targets, draw)

    expected = -sum(math.log(shares[i, p, p]) for i, p in counted) / len(counted)
    assert out.loss.item() == pytest.approx(expected, rel=1e-4)
    right = shares.argmax(dim=2) == torch.arange(N)
    assert out.scalars["position_top1"].item() == pytest.approx(100 * sum(right[at].item() for at in counted) / 24)
    assert out.scalars["position_top1_all"].item() == pytest.approx(100 * right.float().mean().item())


def test_loss__what_is_told__has_no_say_in_the_gradient_of_the_head():
    """A told slot is a query of its own: only through the keys of the others does it count."""
    method, batch = mp3(), frames()
    draw, gradients = method.draw(seeded(batch), 0.5), []
    method.head.register_full_backward_hook(lambda _, __, given: gradients.append(given[0]))
    method.loss(batch.images, batch.targets, draw).loss.backward()
    assert torch.equal(gradients[0].abs().sum(dim=2) > 0, ~draw["known"])


@torch.no_grad()
def test_measure_at__some_told__is_that_of_the_others_image_by_image():
    method, batch = mp3(), frames(6)
    generator = torch.Generator().manual_seed(5)
    order = torch.rand(6, N, generator=generator).argsort(dim=1)
    known = torch.rand(6, N, generator=generator).argsort(dim=1) < NUM_KNOWN
    told_patches = patches_of(order, known)
    logits = reference(method, batch.images, told_patches)

    found = {name: value.values for name, value in method.measure_at(seeded(batch), N).items()}

    for image in range(6):
        others = [patch for patch in range(N) if patch not in told_patches[image]]
        ranks = [int((logits[image, p] > logits[image, p, p]).sum()) for p in range(N)]
        assert found["position_top1"][image].item() == pytest.approx(100 * sum(ranks[p] < 1 for p in others) / 8)
        assert found["position_top5"][image].item() == pytest.approx(100 * sum(ranks[p] < 5 for p in others) / 8)
        assert found["position_top1_all"][image].item() == pytest.approx(100 * sum(r < 1 for r in ranks) / N)
        expected = cross_entropy(logits[image][others], torch.tensor(others))
        torch.testing.assert_close(found["loss"][image], expected, atol=1e-4, rtol=1e-4)
    assert found["position_top5"].sum() > found["position_top1"].sum()


def test_measure__some_told__reports_no_top5():
    found = mp3().measure(seeded(frames()))
    assert [*found] == ["position_top1", "loss", "position_top1_all"]


# Refused


@pytest.mark.parametrize(("ratio", "count"), [(0.01, 0), (0.99, 12)])
def test_ratio__that_tells_none_or_all__is_refused(ratio, count):
    with pytest.raises(ConfigError, match=f"known_ratio {ratio} reveals {count} of 12 positions; reveal some, not all"):
        mp3(known_ratio=ratio)


def test_ratio__width_that_the_table_cannot_fill__is_refused():
    with pytest.raises(ConfigError, match=r"known_ratio 0.3: .*width that 4 divides, found 30; change model.embed_dim"):
        MP3(MP3.Config(known_ratio=0.3), tiny_encoder(num_classes=0, pos_embed="none", embed_dim=30))
