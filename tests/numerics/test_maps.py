"""Attention and correlations, against loops over images, heads and patches."""

import io
import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import entropy as scipy_entropy
from small_set import MEAN, STD, build, config_of
from test_pictures import EMPTY, cells, inputs, outline, patch, place, shown
from tiny_vit import build_tiny, tiny_encoder, tiny_model, tiny_resnet, tiny_swin

from pipeline.core.errors import ConfigError
from pipeline.evals.attention import attention_maps
from pipeline.evals.attention.attention import attention_of, entropies, look_at_attention, over_patches
from pipeline.evals.attention.attention_maps import HeadSums, lowest, offsets_of
from pipeline.evals.attention.cls_attention import head_diversity
from pipeline.evals.attention.correlation_maps import CorrelationSums, across_means, neighbours
from pipeline.evals.base import EVALS
from pipeline.evals.heat import coloured, limit_of, of_multiples
from pipeline.evals.positions.mixed_pictures import mixed
from pipeline.models.patches import Grid, to_images, to_patches
from pipeline.models.position import encode

POSITIONS = ("learn", "none", "relative", "sincos")


def large(encoder):
    """Weights so large that attention is far from uniform; relative biases too."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if parameter.ndim > 1 and "token" not in name:
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return encoder.eval()


def images(count=3, size=(28, 28)):
    return torch.randn(count, 1, *size, generator=torch.Generator().manual_seed(9))


# The attention itself


@torch.no_grad()
def plain_attention(encoder, tokens, block):
    """(B, heads, P+N, P+N) of one block from its input, written out."""
    attn = encoder.blocks[block].attn
    query, key, _ = attn.qkv(encoder.blocks[block].norm1(tokens)).unflatten(2, (3, attn.num_heads, -1)).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    bias = attn.rel_pos.get_bias() if hasattr(attn, "rel_pos") else 0
    return (scores + bias).softmax(dim=3)


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_attention__each_block__is_the_softmax_written_out_and_changes_no_output(positions):
    encoder = large(tiny_encoder(pos_embed=positions))
    into, seen = [], {}
    for block in encoder.blocks:
        block.register_forward_pre_hook(lambda module, given: into.append(given[0]))
    expected = encode(encoder, images())
    given, into[:] = [*into], []
    was = [block.attn.fused_attn for block in encoder.blocks]

    found = look_at_attention(encoder, images(), seen.__setitem__)

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert sorted(seen) == [0, 1]
    for number, attention in seen.items():
        torch.testing.assert_close(into[number], given[number], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(attention, plain_attention(encoder, given[number], number), rtol=1e-4, atol=1e-6)
    assert seen[0].amax() > 0.5  # far from uniform, or little was compared
    assert [block.attn.fused_attn for block in encoder.blocks] == was
    assert not any(block.attn.attn_drop._forward_hooks for block in encoder.blocks)


def test_attention__of_a_model_that_fails_inside__is_left_as_it_was():
    encoder = tiny_encoder()
    was = [block.attn.fused_attn for block in encoder.blocks]
    with pytest.raises(RuntimeError):
        look_at_attention(encoder, torch.zeros(1, 3, 5, 5), lambda block, found: None)
    assert [block.attn.fused_attn for block in encoder.blocks] == was
    assert not any(block.attn.attn_drop._forward_hooks for block in encoder.blocks)


def test_attention__of_another_kind_of_block__is_refused_in_words():
    with pytest.raises(ConfigError, match="BasicBlock does not expose its attention"):
        attention_of(build_tiny(tiny_resnet()).layer1[0])


@pytest.mark.parametrize("name", ["attention_maps", "cls_attention", "correlation_maps"])
def test_reason__of_what_is_not_a_vit(world, name):
    run, kind = world.run_of(build("mp3")), EVALS.get(name)
    assert kind.reason_against(config_of(name), {"model": run}) == ""  # pretraining is welcome
    for model in (tiny_swin(), tiny_resnet()):
        assert "is not a ViT" in kind.reason_against(
            config_of(name), {"model": run.model_copy(update={"model": model})}
        )


# Relative maps


def sums_of(attention, grid_size=(28, 28)):
    """HeadSums of patch-to-patch attention (B, heads, N, N); CLS takes half of every row."""
    encoder = build_tiny(tiny_model(), image_size=grid_size)
    padded = torch.nn.functional.pad(attention / 2, (1, 0, 1, 0), value=0.5)
    sums = HeadSums(encoder, attention.shape[1])
    for part in padded.split(2):
        sums.add(part)
    return sums


@pytest.mark.parametrize("size", [(28, 28), (12, 20)])
def test_maps__uniform_attention__are_flat(size):
    count = size[0] * size[1] // 16
    sums = sums_of(torch.full((3, 2, count, count), 1 / count), size)
    assert sums.maps.shape == (2, 2 * (size[0] // 4) - 1, 2 * (size[1] // 4) - 1)
    np.testing.assert_allclose(sums.maps, 1 / count, rtol=1e-6)
    assert sums.entropies == pytest.approx([math.log(count)] * 2)


def test_maps__every_patch_looks_at_its_left_neighbour__have_one_pixel():
    attention = torch.zeros(1, 1, 49, 49)
    for index in range(49):
        if index % 7:
            attention[0, 0, index, index - 1] = 1
    (found,) = sums_of(attention).maps
    expected = np.zeros((13, 13))
    expected[6, 5] = 1
    np.testing.assert_allclose(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(28, 28), (8, 20)])
def test_maps__random_attention__are_means_over_pairs_at_each_offset(size):
    rows, cols = size[0] // 4, size[1] // 4
    attention = torch.rand(3, 2, rows * cols, rows * cols, generator=torch.Generator().manual_seed(0)).softmax(dim=3)
    found = sums_of(attention, size).maps
    for head, down, right in itertools.product(range(2), range(1 - rows, rows), range(1 - cols, cols)):
        pairs = [
            (r * cols + c, (r + down) * cols + c + right)
            for r, c in itertools.product(range(rows), range(cols))
            if 0 <= r + down < rows and 0 <= c + right < cols
        ]
        expected = np.mean([[float(image[head, a, b]) for a, b in pairs] for image in attention])
        assert found[head, down + rows - 1, right + cols - 1] == pytest.approx(expected, rel=1e-5)


def test_offsets__of_a_patch_to_itself__are_the_middle():
    assert offsets_of(Grid(3, 5)).diagonal().unique().tolist() == [2 * 9 + 4]


def test_entropy__random_rows__is_that_of_scipy():
    rows = torch.rand(4, 3, 6, 9, generator=torch.Generator().manual_seed(1)).softmax(dim=3)
    rows[0, 0, 0] = torch.nn.functional.one_hot(torch.tensor(2), 9)
    np.testing.assert_allclose(entropies(rows), scipy_entropy(rows.numpy(), axis=3), rtol=1e-5, atol=1e-6)


def test_over_patches__rows__sum_to_one_without_cls():
    encoder = tiny_encoder()
    attention = torch.rand(2, 2, 50, 50, generator=torch.Generator().manual_seed(2)).softmax(dim=3)
    found = over_patches(attention, encoder)
    torch.testing.assert_close(found[1, 0, 3], attention[1, 0, 4, 1:] / (1 - attention[1, 0, 4, 0]))


def test_lowest__of_three_heads__come_by_rising_entropy():
    assert lowest([3.0, 1.0, 2.0], 2) == [1, 2]


@pytest.mark.slow
def test_local_heads__of_a_finetuned_model__are_those_of_the_model_it_started_from(world, monkeypatch):
    drawn = []
    monkeypatch.setattr(attention_maps, "draw_maps", lambda *given: drawn.append(given) or b"")
    finetuned, pretrained = build("mjp"), build("mp3")
    with torch.no_grad():  # the second head of the pretrained model looks at few places, the first of the finetuned one
        for method, sharp in ((pretrained, 1), (finetuned, 0)):
            rows = method.encoder.blocks[1].attn.qkv.weight.unflatten(0, (3, 2, -1))
            rows[:2, sharp] *= 30
    own = world.evaluate("attention_maps", finetuned, layers=(2,), limit=20)

    found = world.evaluate("local_heads", finetuned, pretrained, layers=(2,), limit=20, lowest_entropy=1)

    (_, none, _), (seen, heads, _) = drawn
    assert none is None and heads == {2: [1]}
    assert lowest(seen[2].entropies, 1) == [0]
    assert found.metrics == own.metrics and found.count == 20


def test_local_heads__of_a_model_with_other_heads__does_not_apply(world):
    run = world.run_of(build("mp3"))
    other = run.model_copy(update={"model": run.model.model_copy(update={"name": "wide", "num_heads": 8})})
    reason = EVALS.get("local_heads").reason_against(config_of("local_heads"), {"model": other, "chooser": run})
    assert reason == f"wide does not have the heads of {run.model.name}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mjp", "mp3", "droppos"])
@torch.no_grad()
def test_attention_maps__small_set__are_those_of_one_image_at_a_time(world, kind):
    method, each = build(kind), []
    found = world.evaluate("attention_maps", method, layers=(2, 5))
    for pixels in world.pixels:
        image, into = (torch.tensor(pixels).float()[None, None] / 255 - MEAN) / STD, []
        hook = method.encoder.blocks[1].register_forward_pre_hook(lambda m, given, into=into: into.append(given[0]))
        method.encoder.forward_features(image)
        hook.remove()
        rows = plain_attention(method.encoder, into[0], 1)[0, :, 1:, 1:].double()
        each.append(scipy_entropy(rows.numpy(), axis=2).mean())
    assert found.metrics == pytest.approx({"entropy_layer_02": np.mean(each)}, rel=1e-4)
    assert found.errors["entropy_layer_02"] == pytest.approx(np.std(each, ddof=1) / math.sqrt(150), rel=1e-3)
    assert found.count == 150 and found.reasons == {"entropy_layer_05": "the model has 2 layers"}


@pytest.mark.slow
def test_attention_maps__no_such_layer__says_how_many_there_are(world):
    with pytest.raises(ConfigError, match="the model has 2"):
        world.evaluate("attention_maps", build("mjp"), layers=(7,))


# CLS


def test_head_diversity__equal_maps_and_maps_that_do_not_meet__are_0_and_1():
    maps = torch.zeros(3, 3, 8)
    maps[0, :, 1] = 1
    maps[1, [0, 1, 2], [0, 1, 2]] = 1
    maps[2, :2, 1], maps[2, 2, 3] = 1, 1
    assert head_diversity(maps).tolist() == pytest.approx([0, 1, 2 / 3])


@pytest.mark.slow
@torch.no_grad()
def test_cls_attention__small_set__matches_one_image_at_a_time(world):
    method, diversity, entropy = build("mjp"), [], []
    found = world.evaluate("cls_attention", method, images=2)
    for pixels in world.pixels:
        image, into = (torch.tensor(pixels).float()[None, None] / 255 - MEAN) / STD, []
        hook = method.encoder.blocks[1].register_forward_pre_hook(lambda m, given, into=into: into.append(given[0]))
        method.encoder.forward_features(image)
        hook.remove()
        one, other = plain_attention(method.encoder, into[0], 1)[0, :, 0, 1:].double().numpy()
        one, other = one / one.sum(), other / other.sum()
        diversity.append(np.abs(one - other).sum() / 2)
        entropy.append((scipy_entropy(one) + scipy_entropy(other)) / 2)
    expected = {"head_diversity": np.mean(diversity), "cls_entropy": np.mean(entropy)}
    assert found.metrics == pytest.approx(expected, rel=1e-4) and found.count == 150
    assert found.errors["head_diversity"] == pytest.approx(np.std(diversity, ddof=1) / math.sqrt(150), rel=1e-3)
    with Image.open(io.BytesIO(found.files["attention.png"])) as picture:
        assert picture.width > 3 * 112 and picture.height > 2 * 112


# Correlations


@pytest.mark.parametrize("grid", [Grid(7, 7), Grid(3, 5)])
def test_correlations__within_and_across__equal_numpy_over_all_pairs(grid):
    vectors = np.random.default_rng(0).normal(size=(5, grid.size, 6)) + np.arange(grid.size)[:, None] % 3 * np.arange(6)
    sums = CorrelationSums(grid)
    for part in torch.tensor(vectors).float().split(2):
        sums.add(part)

    within = np.mean([np.corrcoef(image) for image in vectors], axis=0)
    pairs = [(one, other) for one in range(5) for other in range(5) if one != other]
    across = np.mean([np.corrcoef(vectors[a], vectors[b])[: grid.size, grid.size :] for a, b in pairs], axis=0)

    np.testing.assert_allclose(sums.within(), within, atol=1e-5)
    np.testing.assert_allclose(sums.across(), across, atol=1e-5)
    off = [np.corrcoef(image)[~np.eye(grid.size, dtype=bool)].mean() for image in vectors]
    assert sums.error("within_mean") == pytest.approx(np.std(off, ddof=1) / math.sqrt(5), rel=1e-3)


def test_neighbours__touch_in_a_row_or_a_column():
    pairs = neighbours(Grid(2, 3))
    assert [np.flatnonzero(row).tolist() for row in pairs] == [[1, 3], [0, 2, 4], [1, 5], [0, 4], [1, 3, 5], [2, 4]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mjp", "mp3"])
@torch.no_grad()
def test_correlation_maps__small_set__are_the_means_of_the_matrices(world, kind):
    method = build(kind)
    found = world.evaluate("correlation_maps", method)
    batch = (torch.tensor(world.pixels).float()[:, None] / 255 - MEAN) / STD
    tokens = method.encoder.forward_features(batch)[:, 1:].double().numpy()
    others, near = ~np.eye(49, dtype=bool), neighbours(Grid(7, 7))
    within = np.mean([np.corrcoef(image) for image in tokens], axis=0)
    assert found.metrics["within_mean"] == pytest.approx(within[others].mean(), abs=1e-5)
    assert found.metrics["within_near"] == pytest.approx(within[near].mean(), abs=1e-5)
    pairs = ~np.eye(150, dtype=bool)
    same = [np.corrcoef(tokens[:, position])[pairs].mean() for position in range(49)]
    assert found.metrics["across_same"] == pytest.approx(np.mean(same), abs=1e-5)
    assert -1 < found.metrics["across_mean"] < found.metrics["within_mean"]


# Colours


def test_colours__of_multiples__are_white_at_one_and_dark_at_both_ends():
    low, middle, high = of_multiples(np.array([[1 / 8, 1.0, 8.0]]), 4).permute(1, 2, 0)[0].tolist()
    assert min(middle) > 245 and low[2] > 2 * low[0] and high[0] > 2 * high[2]
    assert coloured(np.array([[0.5]]), [(0, 0, 0), (100, 200, 50)]).flatten().tolist() == [50, 100, 25]


@pytest.mark.parametrize(
    ("times", "limit"), [([1.0, 1.1], 2), ([1, 2.5], 4), ([1, 1 / 7], 8), ([1, 0], 16), ([500], 16)]
)
def test_limit__holds_what_is_shown(times, limit):
    assert limit_of(np.array(times)) == limit


# Mixed images


def test_mixed__patches_of_both__are_all_there_once():
    patches = torch.arange(98.0).view(2, 49, 1, 1).expand(2, 49, 1, 16)
    pool = torch.rand(98, generator=torch.Generator().manual_seed(0)).argsort()
    found = to_patches(mixed(to_images(patches, (28, 28), Grid(7, 7)), pool, Grid(7, 7)), Grid(7, 7))
    assert found[..., 0].flatten().long().tolist() == pool.tolist()


@pytest.mark.slow
@torch.no_grad()
def test_mixed_pictures__every_cell__is_the_mixed_patches_at_the_positions_that_the_model_names(world):
    method, etas = build("mp3"), (0, 50)
    found = world.evaluate("mixed_pictures", method, etas=etas, pairs=1, seed=6).files["mixed.png"]
    page = Image.open(io.BytesIO(found)).convert("RGB")
    generator = torch.Generator().manual_seed(6)
    pool = torch.rand(98, generator=generator).argsort().tolist()
    orders = torch.rand(2, 49, generator=generator).argsort(dim=1)
    foot = page.height - (14 + 16) - 2 * (112 + 6)
    rows = cells(_png(page.crop((0, 0, page.width, page.height - foot))), 2, 6)

    originals, seen = [shown(world, 0), shown(world, 1)], inputs(world, 2)
    np.testing.assert_array_equal(rows[0][0], originals[0])
    np.testing.assert_array_equal(rows[0][1], originals[1])
    assert (rows[1][0] == 255).all()
    for number in range(2):
        picture, image = np.empty((112, 112, 3), dtype=int), torch.empty(1, 28, 28)
        for slot, source in enumerate(pool[49 * number : 49 * number + 49]):
            patch(picture, slot)[:] = patch(originals[source // 49], source % 49)
            to, origin = pixels_of(slot), pixels_of(source % 49)
            image[:, *to] = seen[source // 49][:, *origin]
        for line, eta in enumerate(etas):
            kept, order = int(49 * (1 - eta / 100)), orders[number].tolist()
            named = method.position_logits(image[None], orders[number : number + 1], kept)[0].argmax(dim=1).tolist()
            expected = picture.copy()
            for slot in order[:kept]:
                outline(expected, slot)
            np.testing.assert_array_equal(rows[line][2 + 2 * number], expected)
            np.testing.assert_array_equal(rows[line][3 + 2 * number], place(picture, order, named))
    assert (rows[0][3] == EMPTY).all(axis=2).any()


def pixels_of(slot):
    """Where a patch of 4 px lies in an image."""
    return tuple(slice(4 * place, 4 * place + 4) for place in divmod(slot, 7))


def _png(page):
    buffer = io.BytesIO()
    page.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.slow
def test_across_errors__of_many_sets__are_the_spread_of_their_means():
    """Images share a common part, so that pairs of them are not independent."""
    grid, found = Grid(2, 2), []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        common = torch.linspace(-1, 1, 32).reshape(4, 8).flip(0)
        sums = CorrelationSums(grid)
        for _ in range(3):
            sums.add(common + torch.randn(30, 4, 8, generator=generator))
        found.append((across_means(sums.across(), grid), sums.across_errors()))
    for name in ("across_mean", "across_near", "across_same"):
        spread = np.std([means[name] for means, _ in found], ddof=1)
        assert np.mean([errors[name] for _, errors in found]) == pytest.approx(spread, rel=0.3), name
