"""DropPos against its paper (Eq. 1-9, Alg. 1) and against what its released code does."""

import math
from collections import Counter
from functools import cache

import pytest
import torch
from tiny_vit import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.core.errors import ConfigError
from pipeline.methods.base import Batch
from pipeline.methods.droppos import DropPos, smoothed_targets, smoothing_distances
from pipeline.models.encoder import build_encoder
from pipeline.models.patches import Grid
from pipeline.models.position import sincos_positions

GRID = Grid(14, 14)
SMALL = {"decoder_width": 24, "decoder_depth": 1, "decoder_heads": 2}


def droppos(image_size=24, model=None, **fields):
    """A DropPos on 6x6 patches whose weights are large enough for patches and positions to matter."""
    torch.manual_seed(0)
    cfg = tiny_model(**{"pos_embed": "sincos", **(model or {})})
    method = DropPos(DropPos.Config(**{**SMALL, **fields}), build_encoder(cfg, image_size, 1, 0)).eval()
    with torch.no_grad():
        for name, parameter in method.named_parameters():
            if "blocks" in name and parameter.ndim > 1:
                parameter.mul_(3)
        method.mask_token.normal_()
        method.encoder.cls_token.normal_()
        method.decoder.head.weight.normal_()
    return method


def batch_of(count=3, image_size=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(count, 1, image_size, image_size, generator=generator), torch.zeros(count), generator)


def loss_of(method, batch, draw):
    return method.loss(batch.images, batch.targets, draw).loss


def encoder_input(method, images, order, visible, anchors):
    """The tokens that reach the first block."""
    seen = []
    handle = method.encoder.blocks.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    method.position_logits(images, order, visible, anchors)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(("tau", "is_equal"), [(None, True), (0.1, False)])
def test_loss__batch_in_two_micro_batches__is_their_mean_only_without_attention_weights(tau, is_equal):
    """The loss is divided by the weights of the images that pass together, so their number matters, slightly."""
    method, batch = droppos(tau=tau).double(), batch_of(8)
    images, draw = batch.images.double(), method.draw(batch, 0.0)
    with torch.no_grad():
        whole = method.loss(images, batch.targets, draw).loss.item()
        parts = [
            method.loss(images[half], batch.targets[half], {**draw, "order": draw["order"][half]}).loss.item()
            for half in (slice(4), slice(4, 8))
        ]
    assert (abs(sum(parts) / 2 / whole - 1) < 1e-12) is is_equal
    assert sum(parts) / 2 == pytest.approx(whole, rel=0.02)


# gamma: visible patches, then anchors at gamma_pos 0.25, 0.5, 0.75, 0.95, 1.
COUNTS = {
    0: (196, 147, 98, 49, 9, 0),
    0.25: (147, 110, 73, 36, 7, 0),
    0.5: (98, 73, 49, 24, 4, 0),
    0.75: (49, 36, 24, 12, 2, 0),
}


@pytest.fixture(scope="module")
def on_14x14():
    return droppos(image_size=56, model={"depth": 1})


@pytest.mark.parametrize("mask_ratio", COUNTS)
@pytest.mark.parametrize(("column", "position_ratio"), [*enumerate([0.25, 0.5, 0.75, 0.95, 1.0], start=1)])
def test_counts__196_patches__are_the_floors_of_the_released_code(on_14x14, mask_ratio, column, position_ratio):
    on_14x14.cfg = DropPos.Config(mask_ratio=mask_ratio, position_ratio=position_ratio)
    on_14x14._count_patches()
    assert (on_14x14.num_visible, on_14x14.num_anchors) == (COUNTS[mask_ratio][0], COUNTS[mask_ratio][column])


def test_counts__nine_tenths_removed__leave_19_of_196():
    assert droppos(image_size=56, model={"depth": 1}, mask_ratio=0.9).num_visible == 19


@pytest.mark.parametrize("positions", ["sincos", "learn"])
def test_encoder_input__anchors_and_dropped__is_equation_3(positions):
    method, batch = droppos(model={"pos_embed": positions}, mask_ratio=0.5, position_ratio=0.6), batch_of()
    order = method.draw(batch, 0.0)["order"]
    visible, anchors, encoder = method.num_visible, method.num_anchors, method.encoder
    assert (visible, anchors) == (18, 7)

    found = encoder_input(method, batch.images, order, visible, anchors)

    patches = encoder.patch_embed(batch.images)
    assert found.shape == (3, 19, 32)
    for image in range(3):
        expected = [encoder.cls_token[0, 0] + encoder.pos_embed[0, 0]]
        for slot in range(visible):
            patch = order[image, slot]
            position = encoder.pos_embed[0, 1 + patch] if slot < anchors else method.mask_token[0, 0]
            expected.append(patches[image, patch] + position)
        torch.testing.assert_close(found[image], torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_encoder_input__sincos__gives_cls_a_position_of_zeros():
    method = droppos()
    assert torch.equal(method.encoder.pos_embed, sincos_positions(Grid(6, 6), 32, 1))
    assert not method.encoder.pos_embed[0, 0].any() and method.encoder.pos_embed[0, 1:].any(dim=1).all()
    assert not method.encoder.pos_embed.requires_grad


def test_encoder_input__every_position_kept__is_that_of_a_plain_vit():
    method, batch = droppos(mask_ratio=0.0), batch_of()
    seen = []
    method.encoder.blocks.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    method.encoder.forward_features(batch.images)
    order = torch.arange(36).expand(3, -1)
    method.position_logits(batch.images, order, 36, 36)
    torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_draw__many_images__has_the_distribution_of_two_independent_maskings():
    """Each of the 4 patches is an anchor, dropped or removed: 12 cases, all alike; the order inside does not matter."""
    method, count = droppos(image_size=8, mask_ratio=0.25, position_ratio=0.5), 12_000
    assert (method.num_visible, method.num_anchors) == (3, 1)
    generator = torch.Generator().manual_seed(0)
    batch = Batch(torch.zeros(count, 1, 8, 8), torch.zeros(count), generator)

    found = Counter((row[0], *sorted(row[1:3]), row[3]) for row in method.draw(batch, 0.0)["order"].tolist())
    expected = Counter()
    for _ in range(count):
        visible = torch.rand(4, generator=generator).argsort()[:3]
        chosen = visible[torch.rand(3, generator=generator).argsort()].tolist()
        expected[(chosen[0], *sorted(chosen[1:]), 6 - sum(chosen))] += 1

    assert found.keys() == expected.keys() and len(found) == 12
    five_sigma = 5 * math.sqrt(count / 12 * (1 - 1 / 12))
    assert all(abs(counts[case] - count / 12) < five_sigma for counts in (found, expected) for case in found)


def test_draw__same_generator__is_the_same_and_another_differs():
    method = droppos()
    first, again, other = (method.draw(batch_of(seed=seed), 0.0)["order"] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_sigma__any_progress__is_equation_7(progress):
    method = droppos(sigma=2.0, sigma_end=0.5)
    assert float(method.draw(batch_of(), progress)["sigma"]) == pytest.approx(progress * (0.5 - 2.0) + 2.0)
    assert float(droppos().draw(batch_of(), progress)["sigma"]) == pytest.approx(1 - progress)


def targets(fidelity, sigma, grid=GRID, image_size=224):
    distances = smoothing_distances(grid, fidelity, image_size)
    return smoothed_targets(distances, torch.tensor(sigma), fidelity, grid.size)


@cache
def squared_distances(side, count):
    """Between the first `count` cells of a square, one pair at a time."""
    pairs = ((i // side - j // side, i % side - j % side) for i in range(count) for j in range(count))
    return torch.tensor([rows**2 + cols**2 for rows, cols in pairs]).reshape(count, count).double()


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("fidelity", ["corrected", "paper"])
def test_smoothing__corrected_and_paper__are_equation_5_row_by_row(fidelity, sigma):
    distances = squared_distances(14, 196) if fidelity == "corrected" else squared_distances(14, 196).sqrt()
    expected = torch.stack([row / row.sum() for row in (-distances / sigma**2).exp()])
    torch.testing.assert_close(targets(fidelity, sigma).double(), expected, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("fidelity", ["corrected", "paper"])
def test_smoothing__corrected_and_paper__have_rows_that_sum_to_1_and_a_symmetric_support(fidelity):
    found = targets(fidelity, 1.0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(196), atol=1e-6, rtol=0)
    assert torch.equal(found > 0, (found > 0).T)
    assert torch.equal(found.argmax(dim=1), torch.arange(196))


def test_smoothing__corrected__is_strongest_at_the_neighbours_on_the_grid():
    assert set(targets("corrected", 1.0)[100].topk(5).indices.tolist()) == {100, 99, 101, 86, 114}


@pytest.mark.parametrize("sigma", [0.0, 1e-7, 1e-3])
@pytest.mark.parametrize("fidelity", ["corrected", "paper", "released"])
def test_smoothing__sigma_0_or_tiny__gives_one_hot_targets(fidelity, sigma):
    assert torch.equal(targets(fidelity, sigma), torch.eye(196))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_smoothing__released__is_the_map_of_16x16_cells_divided_by_columns_and_cut(sigma):
    weight = (-squared_distances(16, (224 // 14) ** 2) / sigma**2).exp()
    weight = weight / weight.sum(-1)
    expected = torch.stack([weight[position][:196] for position in range(196)])
    torch.testing.assert_close(targets("released", sigma).double(), expected, atol=1e-7, rtol=0)


def test_smoothing__released_at_sigma_1__puts_the_mass_next_to_the_true_neighbour():
    found = targets("released", 1.0)
    assert found[105, 121].item() == pytest.approx(0.117, abs=5e-4)
    assert found[105, 119].item() == pytest.approx(0.002, abs=5e-4)
    sums = found.sum(dim=1)
    assert (sums.min().item(), sums.max().item()) == pytest.approx((0.66, 1.11), abs=5e-3)


def test_smoothing__released_map_smaller_than_the_grid__is_refused():
    with pytest.raises(ConfigError, match=r"would have 4x4 cells, too few for 7x7 patches; use corrected"):
        smoothing_distances(Grid(7, 7), "released", 28)


def literal_affinities(method, images, tau):
    """DropPos Eq. 9, one patch at a time."""
    tokens = method.encoder.forward_features(images).detach()
    rows = []
    for cls, *patches in tokens:
        cosines = [torch.dot(cls, patch) / (cls.norm() * patch.norm()) for patch in patches]
        exponentials = [math.exp(float(cosine) / tau) for cosine in cosines]
        rows.append([value / sum(exponentials) for value in exponentials])
    return torch.tensor(rows)


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_affinities__whole_image__are_equation_9(tau):
    method, batch = droppos(tau=tau), batch_of()
    found = method.affinities(batch.images)
    torch.testing.assert_close(found, literal_affinities(method, batch.images, tau), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(3))
    assert found.max() > 1.2 / 36


def test_affinities__in_the_loss__are_constants():
    method, batch = droppos(), batch_of()
    assert not method.affinities(batch.images).requires_grad
    draw = method.draw(batch, 0.0)
    loss_of(method, batch, draw).backward()
    expected = {name: p.grad.clone() for name, p in method.named_parameters() if p.requires_grad}

    method.zero_grad()
    constant = method.affinities(batch.images)
    method.affinities = lambda images: constant
    loss_of(method, batch, draw).backward()

    assert all(torch.equal(method.get_parameter(name).grad, gradient) for name, gradient in expected.items())
    assert any(gradient.any() for name, gradient in expected.items() if name.startswith("encoder.blocks"))


def masking(size, ratio, generator):
    """`masking` of Algorithm 1 for one image: the indices kept, and the restoring order."""
    shuffle = torch.rand(size, generator=generator).argsort()
    return shuffle[: int(size * (1 - ratio))], shuffle.argsort()


def literal_loss(method, images, maskings, sigma):
    """Algorithm 1, then Eq. 5, 6, 8 and 9, image by image and patch by patch.

    As released, the softmax is over all N, A is renormalised over the visible, and the sum is divided by its weights.
    """
    encoder, cfg = method.encoder, method.cfg
    size, side = method.grid.size, method.grid.cols
    tokens, table = encoder.patch_embed(images), encoder.pos_embed[0, 1:]
    affinities = None if cfg.tau is None else literal_affinities(method, images, cfg.tau)
    above, below = 0.0, 0.0
    for image, (ids_vis, ids_keep, ids_res) in enumerate(maskings):
        num_masks = len(ids_vis) - len(ids_keep)
        positions = torch.cat([table[ids_vis][ids_keep], method.mask_token[0].expand(num_masks, -1)])[ids_res]
        x = torch.cat([encoder.cls_token[0] + encoder.pos_embed[0, :1], tokens[image, ids_vis] + positions])
        x = method.decoder.embed(encoder.norm(encoder.blocks(x[None])))
        logits = method.decoder.head(method.decoder.norm(method.decoder.blocks(x)))[0, 1:]
        weight = torch.ones(len(ids_vis)) if affinities is None else affinities[image, ids_vis]
        weight = weight / weight.sum() if affinities is not None else weight
        kept = set(ids_keep.tolist())
        for i, y in enumerate(ids_vis.tolist()):
            if i in kept:
                continue
            smooth = [
                math.exp(-((y // side - j // side) ** 2 + (y % side - j % side) ** 2) / sigma**2) for j in range(size)
            ]
            error = -sum(w / sum(smooth) * p for w, p in zip(smooth, logits[i].log_softmax(0), strict=True))
            above, below = above + weight[i] * error, below + weight[i]
    return above / below


def order_of(maskings, size):
    """Our order of the same maskings: anchors, dropped, removed."""
    rows = []
    for ids_vis, ids_keep, _ in maskings:
        anchors = ids_vis[ids_keep].tolist()
        dropped = [y for y in ids_vis.tolist() if y not in anchors]
        rows.append(anchors + dropped + [y for y in range(size) if y not in anchors + dropped])
    return torch.tensor(rows)


@pytest.mark.parametrize("tau", [0.1, None])
@pytest.mark.parametrize(("gamma", "gamma_pos"), [(0.5, 0.75), (0.75, 1.0), (0.0, 0.4)])
def test_loss__two_independent_maskings__is_algorithm_1_with_equations_5_to_9(gamma, gamma_pos, tau):
    method, batch = droppos(mask_ratio=gamma, position_ratio=gamma_pos, tau=tau), batch_of()
    generator, maskings = torch.Generator().manual_seed(1), []
    for _ in range(3):
        ids_vis, _ = masking(36, gamma, generator)
        maskings.append((ids_vis, *masking(len(ids_vis), gamma_pos, generator)))

    draw = {"order": order_of(maskings, 36), "sigma": torch.tensor(0.8)}

    with torch.no_grad():
        expected = literal_loss(method, batch.images, maskings, 0.8)
        torch.testing.assert_close(loss_of(method, batch, draw), expected, atol=1e-5, rtol=1e-5)
    assert expected > 1  # large enough for a wrong weight or target to show


def test_loss__without_attention__is_the_plain_mean_over_dropped_positions():
    method, batch = droppos(tau=None, sigma=0.0), batch_of()
    draw = method.draw(batch, 0.0)
    logits = method.position_logits(batch.images, draw["order"], method.num_visible, method.num_anchors)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), draw["order"][:, method.num_anchors : method.num_visible].flatten()
    )
    torch.testing.assert_close(loss_of(method, batch, draw), expected)


def test_loss__attention__is_a_mean_over_the_batch_and_not_over_images():
    """An image whose dropped patches have little of its affinity counts less than another."""
    method, batch = droppos(position_ratio=0.5), batch_of(2)
    draw = method.draw(batch, 0.5)
    share = torch.full((2, 36), 1.0)
    share[0].scatter_(0, draw["order"][0, : method.num_anchors], 50.0)
    method.affinities = lambda images: share / share.sum(dim=1, keepdim=True)

    def alone(image):
        only = Batch(batch.images[image : image + 1], batch.targets, batch.generator)
        whole, method.affinities = method.affinities, lambda images: torch.ones(1, 36) / 36
        part = loss_of(method, only, {"order": draw["order"][image : image + 1], "sigma": draw["sigma"]})
        method.affinities = whole
        return part

    visible, anchors = method.num_visible, method.num_anchors
    weight = (visible - anchors) / (visible - anchors + 50 * anchors), (visible - anchors) / visible
    with torch.no_grad():
        expected = (weight[0] * alone(0) + weight[1] * alone(1)) / sum(weight)
        torch.testing.assert_close(loss_of(method, batch, draw), expected, atol=1e-5, rtol=1e-5)


def test_loss__anchors__have_no_logits_that_could_change_it():
    method, batch = droppos(mask_ratio=0.5, position_ratio=0.6), batch_of()
    draw, rows = method.draw(batch, 0.0), []
    method.decoder.head.register_forward_hook(lambda module, args, output: rows.append(output.shape))
    loss_of(method, batch, draw)
    assert rows == [(3, method.num_visible - method.num_anchors, 36)]


def test_loss__anchors_reordered_and_removed_patches_changed__stays():
    method, batch = droppos(mask_ratio=0.5, position_ratio=0.6, tau=None), batch_of()
    draw, anchors, visible = method.draw(batch, 0.0), method.num_anchors, method.num_visible
    order = draw["order"]
    other = torch.cat([order[:, :anchors].flip(1), order[:, anchors:visible].flip(1), order[:, visible:].flip(1)], 1)
    images = batch.images.clone()
    for image in range(3):
        for patch in order[image, visible:].tolist():
            row, col = 4 * (patch // 6), 4 * (patch % 6)
            images[image, :, row : row + 4, col : col + 4] = 99.0
    found = method.loss(images, batch.targets, {**draw, "order": other}).loss
    torch.testing.assert_close(found, loss_of(method, batch, draw), atol=1e-5, rtol=1e-5)


def test_position_top1__logged_and_measured__counts_dropped_positions_plainly():
    method, batch = droppos(mask_ratio=0.5, position_ratio=0.6), batch_of(8)
    draw = method.draw(batch, 1.0)
    dropped = draw["order"][:, method.num_anchors : method.num_visible]

    def perfect(images, order, visible, anchors):
        logits = 50 * torch.eye(36)[order[:, anchors:visible]]
        logits[0] = -logits[0]  # one image of eight all wrong
        return logits

    method.position_logits = perfect
    assert float(method.loss(batch.images, batch.targets, draw).scalars["position_top1"]) == pytest.approx(87.5)
    measured = method.measure(batch)
    assert measured["position_top1"].values.tolist() == [0, *[100] * 7]
    # The right position of the wrong image is 50 below 35 others.
    assert measured["loss"].values.tolist() == pytest.approx([50 + math.log(35), *[0] * 7], abs=1e-3)
    assert dropped.shape == (8, 11)


class Sizes(TorchDispatchMode):
    """The number of elements of every tensor that an operation gives, in the order of operations."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = out if isinstance(out, (tuple, list)) else [out]
        self.found.append((str(func), max((t.numel() for t in tensors if isinstance(t, torch.Tensor)), default=0)))
        return out


def sizes(method, count):
    batch = batch_of(count)
    draw = method.draw(batch, 0.5)
    method.zero_grad()
    with Sizes() as mode:
        loss_of(method, batch, draw).backward()
    return mode.found


def test_memory__batch_twice_as_large__doubles_no_tensor_more_than_once():
    method = droppos()
    small, large = sizes(method, 4), sizes(method, 8)
    assert [name for name, _ in small] == [name for name, _ in large]
    assert max(size for _, size in large) / max(size for _, size in small) <= 2.05
    assert [a[0] for a, b in zip(small, large, strict=True) if b[1] > 2.05 * max(a[1], 1)] == []


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_config__model_without_absolute_positions__is_refused(positions):
    with pytest.raises(ValueError, match=f"needs absolute positions, found model.pos_embed: {positions}"):
        DropPos.Config().check(tiny_model(pos_embed=positions), 28)
