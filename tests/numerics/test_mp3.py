"""MP3 against its Algorithm 1: attention to the context alone, how the context is drawn, what it costs and counts."""

import math

import pytest
import torch
from timm.models.vision_transformer import Block
from tiny_vit import tiny_batch, tiny_encoder
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from pipeline.methods.base import Batch
from pipeline.methods.mp3 import MP3, masked_attention, masked_block
from pipeline.models.patches import Grid, take, to_images, to_patches

N, WIDTH, DEPTH = 49, 32, 2


def mp3(model=None, **fields):
    """Weights large enough for attention to be far from uniform."""
    method = MP3(MP3.Config(**fields), tiny_encoder(num_classes=0, pos_embed="none", **model or {}))
    with torch.no_grad():
        for name, parameter in method.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return method.eval()


def images_and_order(count=3, seed=0):
    batch = tiny_batch(count, seed)
    return batch.images, torch.rand(count, N, generator=batch.generator).argsort(dim=1)


def attend(attn, tokens, keys):
    """`masked_attention` of Algorithm 1 for one image: tokens (n, D), indices of its context tokens."""
    heads, width = attn.num_heads, tokens.shape[1]
    (query_w, key_w, value_w), (query_b, key_b, value_b) = attn.qkv.weight.chunk(3), attn.qkv.bias.chunk(3)
    query = (tokens @ query_w.T + query_b).view(-1, heads, width // heads)
    key = (tokens[keys] @ key_w.T + key_b).view(-1, heads, width // heads)
    value = (tokens[keys] @ value_w.T + value_b).view(-1, heads, width // heads)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(width // heads)
    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1) @ attn.proj.weight.T + attn.proj.bias


def algorithm_1(method, image, context):
    """Logits (N, N) of one image, its patches in their own order: keys are gathered anew in every block."""
    encoder = method.encoder
    tokens = torch.cat([encoder.cls_token[0], encoder.patch_embed(image[None])[0]])
    keys = torch.tensor([0] + [1 + patch for patch in context])
    for block in encoder.blocks:
        tokens = tokens + attend(block.attn, block.norm1(tokens), keys)
        tokens = tokens + block.mlp(block.norm2(tokens))
    return method.head(encoder.norm(tokens)[1:])


def by_patch(slots, order):
    """What is listed by slot, listed by patch: (B, N, ...)."""
    return take(slots, order.argsort(dim=1))


# Attention


@torch.no_grad()
@pytest.mark.parametrize("num_context", [0, 1, 12, 49])
def test_masked_attention__context_first__matches_explicit_softmax_over_gathered_keys(num_context):
    attn = mp3().double().encoder.blocks[0].attn
    tokens = torch.randn(3, 1 + N, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = images_and_order()[1]
    with_cls = torch.cat([torch.zeros(3, 1, dtype=torch.long), 1 + order], dim=1)

    found = masked_attention(attn, take(tokens, with_cls), 1 + num_context)

    for image in range(3):
        expected = attend(attn, tokens[image], with_cls[image, : 1 + num_context])
        torch.testing.assert_close(found[image], expected[with_cls[image]], atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("is_training", [True, False])
def test_masked_block__every_token_a_key__is_timms_own_block(is_training):
    """With all that a block may have: dropout, drop path, layer scale, norms of queries, keys and outputs."""
    torch.manual_seed(0)
    rates = {"attn_drop": 0.3, "proj_drop": 0.3, "drop_path": 0.3}
    block = Block(WIDTH, 2, qkv_bias=True, qk_norm=True, scale_attn_norm=True, init_values=0.5, **rates)
    for parameter in block.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape))
    tokens, found = torch.randn(4, 1 + N, WIDTH), []
    for call in (block.train(is_training), lambda given: masked_block(block, given, 1 + N)):
        torch.manual_seed(1)
        found.append(call(tokens))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_position_logits__eta_0__equals_plain_timm_blocks():
    method, (images, order) = mp3(mask_ratio=0.0), images_and_order()

    found = by_patch(method.position_logits(images, order, method.num_context), order)

    expected = method.head(method.encoder.forward_features(images)[:, 1:])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("eta", [0.0, 0.5, 0.75, 0.99])
def test_method__any_eta__matches_algorithm_1_in_original_order(eta):
    method, (images, order) = mp3(mask_ratio=eta).double(), images_and_order()
    images = images.double()
    logits = [
        algorithm_1(method, image, slots[: int(N * (1 - eta))].tolist())
        for image, slots in zip(images, order, strict=True)
    ]
    expected = torch.stack(logits)

    found = by_patch(method.position_logits(images, order, method.num_context), order)
    out = method.loss(images, torch.empty(0), {"order": order})

    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    targets = torch.arange(N).repeat(3)
    torch.testing.assert_close(out.loss, cross_entropy(expected.flatten(0, 1), targets), atol=1e-10, rtol=0)
    right = (expected.argmax(dim=2) == torch.arange(N)).double().mean()
    assert out.scalars["position_top1"].item() == pytest.approx(100 * right.item())


@torch.no_grad()
def test_position_logits__later_block__takes_its_keys_from_its_own_tokens():
    """Ports that reuse the first block's tokens as keys everywhere give other logits."""
    method, (images, order) = mp3(), images_and_order(1)
    found = by_patch(method.position_logits(images, order, 12), order)[0]
    encoder = method.encoder
    tokens = first = torch.cat([encoder.cls_token[0], encoder.patch_embed(images)[0]])
    keys = torch.cat([torch.tensor([0]), 1 + order[0, :12]])
    for block in encoder.blocks:
        queries_and_stale_keys = torch.cat([block.norm1(tokens), block.norm1(first)[keys]])
        stale = torch.arange(1 + N, 1 + N + len(keys))
        tokens = tokens + attend(block.attn, queries_and_stale_keys, stale)[: 1 + N]
        tokens = tokens + block.mlp(block.norm2(tokens))
    assert (found - method.head(encoder.norm(tokens)[1:])).abs().max() > 0.1


@torch.no_grad()
def test_position_logits__patches_permuted__are_permuted_with_them():
    """The same patches are context, in another slot; every image is permuted in its own way."""
    method, (images, order) = mp3(), images_and_order()
    generator = torch.Generator().manual_seed(1)
    moved = torch.rand(3, N, generator=generator).argsort(dim=1)  # slot i of the new image is patch moved[i]
    permuted = to_images(take(to_patches(images, Grid(7, 7)), moved), (28, 28), Grid(7, 7))
    mixed = torch.cat([torch.randperm(12, generator=generator), 12 + torch.randperm(N - 12, generator=generator)])
    new_order = moved.argsort(dim=1).gather(1, order)[:, mixed]

    expected = by_patch(method.position_logits(images, order, 12), order)
    found = by_patch(method.position_logits(permuted, new_order, 12), new_order)

    torch.testing.assert_close(found, take(expected, moved), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_position_logits__another_context__changes_them():
    method, (images, order) = mp3(), images_and_order()
    first, second = (by_patch(method.position_logits(images, o, 12), o) for o in (order, order.roll(12, dims=1)))
    assert (first - second).abs().max() > 0.1


# The context


CONTEXT = {
    196: {0: 196, 0.25: 147, 0.5: 98, 0.75: 49, 0.8: 39, 0.9: 19},
    64: {0: 64, 0.25: 48, 0.5: 32, 0.75: 16, 0.8: 12, 0.9: 6},
}


@pytest.mark.parametrize("fidelity", ["corrected", "paper"])
@pytest.mark.parametrize("num_patches", CONTEXT)
def test_num_context__of_the_text__is_the_share_that_is_not_masked(num_patches, fidelity):
    for eta, expected in CONTEXT[num_patches].items():
        assert MP3.Config(mask_ratio=eta, fidelity=fidelity).num_context(num_patches) == expected


@pytest.mark.parametrize("num_patches", CONTEXT)
def test_num_context__of_algorithm_1__is_the_masked_share(num_patches):
    for eta in CONTEXT[num_patches]:
        config = MP3.Config(mask_ratio=eta, fidelity="released")
        assert config.num_context(num_patches) == int(num_patches * eta)


def contexts(fidelity, count=20000):
    """(count, 49) context patches of a 14x14 grid."""
    method = mp3({"patch_size": 2, "depth": 1}, fidelity=fidelity, mask_ratio=0.25 if fidelity == "released" else 0.75)
    order = method.draw(Batch(torch.empty(count, 0), torch.empty(0), torch.Generator().manual_seed(0)), 0.5)["order"]
    assert torch.equal(order.sort(dim=1).values, torch.arange(196).expand(count, 196))
    return order[:, : method.num_context]


@pytest.mark.slow
def test_draw__many_images__every_patch_is_context_equally_often():
    chosen = contexts("corrected")
    often = chosen.flatten().bincount(minlength=196).double()
    expected, variance = len(chosen) / 4, len(chosen) * 0.25 * 0.75
    # Chi-square with 195 degrees of freedom: mean 195, deviation 20.
    assert 195 - 100 < ((often - expected).square() / variance).sum().item() < 195 + 100
    assert chosen.shape == (20000, 49)


@pytest.mark.slow
def test_draw__as_released__favours_low_indices_as_the_double_indexing_does():
    share = contexts("released").flatten().bincount(minlength=196) / 20000
    assert share[:49].mean().item() == pytest.approx(0.2549, abs=0.002)
    assert share[49:].mean().item() == pytest.approx(0.2484, abs=0.001)


def test_draw__as_released__is_the_random_order_indexed_by_itself():
    drawn = {}
    for fidelity in ("corrected", "released"):
        batch = Batch(torch.empty(5, 0), torch.empty(0), torch.Generator().manual_seed(3))
        drawn[fidelity] = mp3(fidelity=fidelity).draw(batch, 0.5)["order"]
    for plain, released in zip(drawn["corrected"].tolist(), drawn["released"].tolist(), strict=True):
        assert released == [plain[index] for index in plain]


# The work


def expected_flops(num_context):
    """Of one image: two for each multiplication of a matrix product."""
    tokens, keys = N + 1, num_context + 1
    projections = tokens * WIDTH**2 + 2 * keys * WIDTH**2 + tokens * WIDTH**2
    block = projections + 2 * tokens * keys * WIDTH + 8 * tokens * WIDTH**2
    return 2 * (N * 16 * WIDTH + DEPTH * block + N * WIDTH * N)


@torch.no_grad()
def test_position_logits__growing_eta__costs_what_the_operation_count_says():
    method, (images, order) = mp3(), images_and_order(2)
    found = []
    for eta in (0, 0.5, 0.75, 0.9):
        num_context = int(N * (1 - eta))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            method.position_logits(images, order, num_context)
        assert counter.get_total_flops() == pytest.approx(2 * expected_flops(num_context), rel=0.01)
        found.append(counter.get_total_flops())
    assert found == sorted(set(found), reverse=True)


@pytest.mark.parametrize("eta", [0.0, 0.5, 0.75, 0.9])
def test_loss__any_eta__never_attends_to_more_than_cls_and_the_context(eta, monkeypatch):
    shapes, plain = [], torch.nn.functional.scaled_dot_product_attention

    def spy(query, key, value, *args, **kwargs):
        shapes.append((query.shape[-2], key.shape[-2], value.shape[-2]))
        return plain(query, key, value, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    method, (images, order) = mp3(mask_ratio=eta), images_and_order()
    method.loss(images, torch.empty(0), {"order": order}).loss.backward()
    keys = 1 + int(N * (1 - eta))
    assert shapes == [(1 + N, keys, keys)] * DEPTH


# Accuracy


def told_by_pixels():
    """A method whose head reads a patch's position from its pixels, and images that carry it there."""
    codes = torch.nn.functional.normalize(torch.randn(N, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    method = mp3()
    method.encoder.blocks, method.encoder.norm = torch.nn.Sequential(), torch.nn.Identity()
    with torch.no_grad():
        method.encoder.patch_embed.proj.weight.copy_(torch.eye(WIDTH, 16).view(WIDTH, 1, 4, 4))
        method.encoder.patch_embed.proj.bias.zero_()
        method.head.weight.copy_(100 * torch.nn.functional.pad(codes, (0, WIDTH - 16)))
        method.head.bias.zero_()
    images = to_images(codes.view(1, N, 1, 16).expand(4, -1, -1, -1), (28, 28), Grid(7, 7))
    return method, images


def always_says(position):
    method, images = told_by_pixels()
    with torch.no_grad():
        method.head.weight.zero_()
        method.head.bias[position] = 1.0
    return method, images


def measured(method, images, num_context):
    batch = Batch(images, torch.zeros(len(images), dtype=torch.long), torch.Generator().manual_seed(0))
    with torch.no_grad():
        return {name: value.values.tolist() for name, value in method.measure_at(batch, num_context).items()}


@pytest.mark.parametrize("num_context", [0, 12, N])
def test_measure_at__head_that_knows__is_100_per_cent_of_every_image(num_context):
    found = measured(*told_by_pixels(), num_context)
    assert found["position_top1"] == pytest.approx([100] * 4)
    assert max(found["loss"]) < 0.1


def test_measure_at__head_that_says_one_position__is_right_once_an_image():
    found = measured(*always_says(17), 12)
    assert found["position_top1"] == pytest.approx([100 / N] * 4)
    assert found["position_top5"] == pytest.approx([500 / N] * 4)  # four more, by chance, each the right one once
    right, wrong = math.log(math.e + N - 1) - 1, math.log(math.e + N - 1)
    assert found["loss"] == pytest.approx([(right + (N - 1) * wrong) / N] * 4, rel=1e-5)


def test_measure__no_number_given__uses_the_context_of_training():
    method, batch = mp3(mask_ratio=0.5), tiny_batch(4)
    with torch.no_grad():
        found = method.measure(Batch(batch.images, batch.targets, torch.Generator().manual_seed(0)))
    expected = measured(method, batch.images, 24)
    expected.pop("position_top5")  # for evaluations alone
    assert {name: value.values.tolist() for name, value in found.items()} == expected


@pytest.mark.parametrize(("build", "expected"), [(told_by_pixels, 100.0), (lambda: always_says(3), 100 / N)])
def test_loss__scalars__hold_top1_of_the_batch_in_per_cent(build, expected):
    method, images = build()
    order = images_and_order(4)[1]
    assert method.loss(images, torch.empty(0), {"order": order}).scalars["position_top1"].item() == pytest.approx(
        expected
    )
