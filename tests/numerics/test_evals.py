"""Evaluations on a small set in Fashion-MNIST's published layout, against one image at a time."""

import math
import random

import numpy as np
import pytest
import torch
from peers import peers
from small_set import BATCH, GRID, MEAN, STD, SUITED, build, config_of
from tiny_vit import tiny_encoder

from pipeline.core.seeds import random_state, seed_everything
from pipeline.evals.base import EVALS
from pipeline.evals.positions.droppos_positions import DropPosPositions
from pipeline.evals.positions.mp3_positions import MP3Positions
from pipeline.evals.positions.shuffling import Shuffler, drawn_for
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.models.position import encode

pytestmark = pytest.mark.slow

ETAS, CELLS = MP3Positions.Config().etas, DropPosPositions.Config().cells
CLASSIFIERS = ("baseline", "no positions", "mjp")
# Those that name positions, with few of the shares that they measure.
POSITIONS = {"mp3_positions": {"etas": (0, 75)}, "droppos_positions": {"gammas": (0, 75), "position_gammas": (25, 75)}}


def evaluate(world, name, *methods, **options):
    return world.evaluate(name, *methods, **options).metrics


def reference_draws(count, ratio, seed):
    """Masks and orders of all images, drawn one image after the other."""
    rng, masks, orders = random.Random(seed), [], []
    for _ in range(count):
        masks.append(block_mask(GRID, ratio, rng))
        orders.append(jigsaw_order(masks[-1], rng))
    return masks, orders


@torch.no_grad()
def features_of(method, image, mask=None):
    """CLS feature of one image after the last norm; a method with an unknown embedding is told the mask."""
    encoder = method.encoder
    if mask is None or not hasattr(method, "unknown"):
        return encoder.forward_features(image[None])[0, 0]
    positions = encoder.pos_embed.clone()
    for patch in mask.nonzero().flatten().tolist():
        positions[0, 1 + patch] = method.unknown.flatten()
    return encode(encoder, image[None], positions)[0, 0]


def slow_reference(world, method, ratio, seed):
    """Everything that Classify and Consistency report of each image, one at a time."""
    masks, orders = reference_draws(len(world.labels), ratio, seed)
    rows = []
    for pixels, label, mask, order in zip(world.pixels, world.labels, masks, orders, strict=True):
        image = (torch.tensor(pixels).float()[None] / 255 - MEAN) / STD
        moved = shuffle_patches(image[None], order[None], GRID)[0]
        clean, other = features_of(method, image), features_of(method, moved, mask)
        row = {"shuffled_ratio": sum(mask.tolist()) / 49}
        ranks = {}
        for prefix, features in (("", clean), ("shuffled_", other)):
            logits = method.encoder.head(features).tolist()
            ranks[prefix] = sorted(range(10), key=lambda k, logits=logits: -logits[k])
            row[f"{prefix}top1"] = 100.0 * (ranks[prefix][0] == label)
            row[f"{prefix}top5"] = 100.0 * (label in ranks[prefix][:5])
            row[f"{prefix}loss"] = math.log(sum(math.exp(value) for value in logits)) - logits[label]
        squared = sum((a - b) ** 2 for a, b in zip(clean.tolist(), other.tolist(), strict=True))
        row |= {"diff_norm": math.sqrt(squared), "diff_norm_squared": squared}
        row["consistency"] = 100.0 * (ranks[""][0] == ranks["shuffled_"][0])
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classify_and_consistency__small_set__match_one_image_at_a_time(world, kind):
    method = build(kind)
    expected = slow_reference(world, method, ratio=0.5, seed=3)

    outcomes = [world.evaluate(name, method, shuffle_ratio=0.5, seed=3) for name in ("classify", "consistency")]

    found = outcomes[0].metrics | outcomes[1].metrics
    assert found == pytest.approx({name: np.mean(values) for name, values in expected.items()}, rel=1e-4, abs=1e-4)
    for name, values in (outcomes[0].per_image | outcomes[1].per_image).items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=1e-3)
    # Otherwise the comparison could not tell a right evaluation from a wrong one.
    assert 0 < found["top1"] < found["top5"] < 100
    if kind != "no positions":
        assert 0 < found["consistency"] < 100
        assert found["diff_norm"] ** 2 < found["diff_norm_squared"]


def test_classify__error_of_an_accuracy__is_exactly_the_binomial_one(world):
    outcome = world.evaluate("classify", build("mjp"))
    for name in ("top1", "top5", "shuffled_top1"):
        share, count = outcome.metrics[name] / 100, len(world.labels)
        assert 0 < share < 1 and outcome.count == count
        assert outcome.errors[name] == pytest.approx(100 * math.sqrt(share * (1 - share) / count), rel=1e-12)


def test_classify__error_of_a_mean__is_that_of_its_values_per_image(world):
    outcome = world.evaluate("classify", build("mjp"))
    losses = outcome.per_image["loss"].astype(float)
    deviation = math.sqrt(sum((value - losses.mean()) ** 2 for value in losses) / len(losses))
    assert outcome.errors["loss"] == pytest.approx(deviation / math.sqrt(len(losses)), rel=1e-9)


def test_shuffle_curve__at_a_ratio__is_what_classify_and_consistency_find_at_it(world):
    method, about = build("mjp"), {"seed": 7}
    curve = evaluate(world, "shuffle_curve", method, ratios=(5, 15, 50), **about)
    for percent in (5, 15, 50):
        found = {
            name: evaluate(world, name, method, shuffle_ratio=percent / 100, **about)
            for name in ("classify", "consistency")
        }
        assert curve[f"top1_at_{percent:02d}"] == found["classify"]["shuffled_top1"]
        assert curve[f"consistency_at_{percent:02d}"] == found["consistency"]["consistency"]
    assert len({curve[f"consistency_at_{percent:02d}"] for percent in (5, 15, 50)}) == 3


def test_consistency__no_position_embeddings__is_100_and_features_do_not_move(world):
    found = evaluate(world, "consistency", build("no positions"), shuffle_ratio=0.9)
    assert found["consistency"] == 100
    assert found["diff_norm"] < 1e-4
    assert found["shuffled_ratio"] > 0.5


def test_consistency__ratio_0__is_100_with_no_difference(world):
    found = evaluate(world, "consistency", build("mjp"), shuffle_ratio=0.0)
    assert found == {
        "consistency": 100,
        "diff_norm": pytest.approx(0, abs=1e-5),
        "diff_norm_squared": pytest.approx(0, abs=1e-9),
        "shuffled_ratio": 0,
    }


@pytest.mark.parametrize("name", POSITIONS)
def test_positions__metrics__are_named_after_their_ratios(name):
    expected = {
        "mp3_positions": ["at_0", "at_25", "at_50", "at_55", "at_75", "at_90"],
        "droppos_positions": ["mean", *[f"g{g}_p{p}" for g in (0, 25, 50, 75) for p in (25, 50, 75, 95)]],
    }
    assert list(EVALS.get(name).Config().metrics) == expected[name]


def batches_with_generators(world, seed):
    """Batches of the validation set, each with the generator that belongs to its number."""
    images = (torch.tensor(world.pixels).float()[:, None] / 255 - MEAN) / STD
    for number, batch in enumerate(images.split(BATCH)):
        yield batch, torch.Generator().manual_seed(seed_everything("measure", seed, number))


@torch.no_grad()
def mp3_ranks(method, image, context):
    """(49,) how many places are more likely than the true one of each patch; only CLS and the context give keys."""
    encoder = method.encoder
    tokens = torch.cat([encoder.cls_token[0], encoder.patch_embed(image[None])[0]])
    hidden = [1 + patch for patch in range(49) if patch not in context]
    for block in encoder.blocks:
        query, key, value = block.attn.qkv(block.norm1(tokens)).reshape(50, 3, 2, 16).permute(1, 2, 0, 3)
        scores = query @ key.transpose(1, 2) / 4
        scores[:, :, hidden] = -torch.inf
        tokens = tokens + block.attn.proj((scores.softmax(2) @ value).transpose(0, 1).reshape(50, 32))
        tokens = tokens + block.mlp(block.norm2(tokens))
    logits = method.head(encoder.norm(tokens)[1:])
    return (logits > logits.diag()[:, None]).sum(dim=1)


def test_mp3_positions__small_set__matches_one_image_at_a_time(world):
    method = build("mp3")
    ranks = {eta: [] for eta in ETAS}
    for images, generator in batches_with_generators(world, 3):
        for eta in ETAS:
            orders = torch.rand(len(images), 49, generator=generator).argsort(1)
            count = int(49 * (1 - eta / 100) + 1e-9)
            contexts = [set(order[:count].tolist()) for order in orders]
            ranks[eta] += [mp3_ranks(method, image, kept) for image, kept in zip(images, contexts, strict=True)]
    top1, top5 = ({eta: 100 * (torch.stack(ranks[eta]) < k).float().mean().item() for eta in ETAS} for k in (1, 5))

    found = evaluate(world, "mp3_positions", method, seed=3)
    both = evaluate(world, "mp3_positions", method, seed=3, top5=True)

    assert found == pytest.approx({f"at_{eta}": top1[eta] for eta in ETAS}, abs=0.03)
    assert len(set(found.values())) > 3 and min(found.values()) > 0
    assert both == pytest.approx(found | {f"top5_at_{eta}": top5[eta] for eta in ETAS}, abs=0.03)
    assert {name: both[name] for name in found} == found


@torch.no_grad()
def droppos_hits(method, image, anchors, dropped):
    """How many dropped positions are named; the patches enter sorted by where they belong."""
    encoder, slots = method.encoder, sorted(anchors + dropped)
    tokens = encoder.patch_embed(image[None])[0]
    rows = [
        tokens[patch] + (encoder.pos_embed[0, 1 + patch] if patch in anchors else method.mask_token[0, 0])
        for patch in slots
    ]
    entered = torch.stack([encoder.cls_token[0, 0] + encoder.pos_embed[0, 0], *rows])
    decoder = method.decoder
    seen = decoder.blocks(decoder.embed(encoder.norm(encoder.blocks(entered[None]))))
    named = decoder.head(decoder.norm(seen))[0, 1:].argmax(1).tolist()
    return sum(patch in dropped and name == patch for patch, name in zip(slots, named, strict=True))


def test_droppos_positions__small_set__matches_one_image_at_a_time(world):
    compared = ("g0_p25", "g25_p50", "g50_p75", "g75_p25", "g75_p95")  # one image at a time takes long
    method, hits, counts = build("droppos"), dict.fromkeys(compared, 0), {}
    for images, generator in batches_with_generators(world, 3):
        for name, (gamma, gamma_pos) in CELLS.items():
            orders = torch.rand(len(images), 49, generator=generator).argsort(1).tolist()
            visible = 49 * (100 - gamma) // 100
            num_anchors = visible * (100 - gamma_pos) // 100
            counts[name] = (visible - num_anchors) * len(world.pixels)
            for image, order in zip(images, orders, strict=True) if name in compared else ():
                hits[name] += droppos_hits(method, image, order[:num_anchors], order[num_anchors:visible])

    found = evaluate(world, "droppos_positions", method, seed=3)

    expected = {name: 100 * hits[name] / counts[name] for name in compared}
    assert {name: found[name] for name in compared} == pytest.approx(expected, abs=0.03)
    assert found["mean"] == pytest.approx(sum(found[name] for name in CELLS) / 16)
    assert len(set(found.values())) > 8 and min(found.values()) > 0


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("size", [2, 3])  # the third of three has no batch
def test_positions__shared_by_processes__are_those_of_one(world, name, size):
    method = build(SUITED[name])
    alone = evaluate(world, name, method, **POSITIONS[name])
    together = [evaluate(world, name, method, peer=peer, **POSITIONS[name]) for peer in peers(size)][-1]
    assert together == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("name", POSITIONS)
def test_positions__another_seed__draws_other_masks(world, name):
    method = build(SUITED[name])
    one, other = (evaluate(world, name, method, seed=seed, **POSITIONS[name]) for seed in (1, 2))
    assert one != other


@torch.no_grad()
def test_ensemble__two_models__is_the_mean_of_their_probabilities(world):
    models, rows = (build("mjp"), build("baseline", seed=1)), []
    for pixels, label in zip(world.pixels, world.labels, strict=True):
        image = (torch.tensor(pixels).float()[None] / 255 - MEAN) / STD
        logits = [model.encoder(image[None])[0].double() for model in models]
        probabilities = [(values.exp() / values.exp().sum()).tolist() for values in logits]
        mean = [(a + b) / 2 for a, b in zip(*probabilities, strict=True)]
        ranked = sorted(range(10), key=lambda k, mean=mean: -mean[k])
        both = (logits[0] + logits[1]).argmax()
        singles = [100.0 * (values.argmax() == label) for values in logits]
        rows.append([100.0 * (ranked[0] == label), 100.0 * (label in ranked[:5]), 100.0 * (both == label), *singles])
    top1, top5, logits_top1, *singles = np.mean(rows, axis=0)

    found = evaluate(world, "ensemble", *models)

    assert found == pytest.approx({"top1": top1, "top5": top5, "logits_top1": logits_top1})
    assert top1 not in singles  # neither model alone


def test_ensemble__with_itself__is_the_model_by_itself(world):
    method = build("mjp")
    found = evaluate(world, "ensemble", method, method)
    alone = evaluate(world, "classify", method)
    assert found == pytest.approx({"top1": alone["top1"], "top5": alone["top5"], "logits_top1": alone["top1"]})


def reason_against_ensemble(world, kind="baseline", **data):
    subjects = {"first": world.run_of(build("mjp")), "second": world.run_of(build(kind), **data)}
    return EVALS.get("ensemble").reason_against(config_of("ensemble"), subjects)


def test_ensemble__of_runs_that_saw_other_images__does_not_apply_and_says_what_differs(world):
    reason = reason_against_ensemble(world, mean=(0.5,), eval_crop=0.875)
    assert reason == "its two runs see other images: mean, eval_crop differ"


def test_ensemble__of_runs_that_were_augmented_otherwise__applies(world):
    augment = world.data.augment.model_copy(update={"mixup": 0.0})
    assert reason_against_ensemble(world, augment=augment) == ""


def test_ensemble__with_a_pretrained_encoder__does_not_apply(world):
    assert reason_against_ensemble(world, "mp3") == "method mp3 does not classify"


def test_shuffler__two_models_with_one_seed__see_the_same_shuffled_images():
    narrow = Supervised(Supervised.Config(), tiny_encoder(seed=0))
    wide = MJP(MJP.Config(), tiny_encoder(seed=1, embed_dim=64))
    images = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def two_batches(method, seed):
        shuffler = Shuffler(method, 0.5, seed)
        return torch.cat([shuffler(images)[0], shuffler(images)[0]])

    random.seed(0), torch.manual_seed(0)
    first = two_batches(narrow, 4)
    random.seed(1), torch.manual_seed(1)
    assert torch.equal(two_batches(wide, 4), first)
    assert not torch.equal(two_batches(wide, 5), first)
    assert not torch.equal(first[:6], first[6:])
    assert not torch.equal(first[:6], images)


def test_shuffler__one_batch__shuffles_every_image_on_its_own():
    method = Supervised(Supervised.Config(), tiny_encoder())
    twins = torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0)).expand(4, -1, -1, -1)
    moved, shuffled = Shuffler(method, 0.5, 0)(twins)
    assert shuffled.shape == (4, 49) and shuffled.dtype == torch.bool
    assert len({tuple(image.flatten().tolist()) for image in moved}) == 4


@torch.no_grad()
def test_perplexity__of_a_locked_model__is_that_of_the_model_with_the_key_and_another_without(world):
    method = build("language")
    outcome = world.evaluate("perplexity", method, keys=2)
    found = outcome.metrics
    assert found["columns_perplexity"] == pytest.approx(found["perplexity"], rel=1e-4)
    assert 0 < found["columns_apart"] < 1e-3
    # Another answer, not a worse one: the model has learnt nothing.
    assert abs(found["without_key_loss"] - found["loss"]) > 0.01 > 1000 * abs(found["columns_loss"] - found["loss"])
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert (found["uniform_perplexity"], outcome.errors["uniform_perplexity"]) == (world.stream.vocab_size, 0)

    # One word after the other, each with what its window has before it.
    samples = EVALS.get("perplexity")(config_of("perplexity"), {}, world.results, world.site, None).open(world.stream)
    total = count = 0
    for ids, scored in map(samples.__getitem__, range(len(samples))):
        tokens = method.encoder.transformer(torch.tensor(ids[None].astype(int))).last_hidden_state[0]
        chances = (tokens @ method.encoder.transformer.wte.weight.T).double().softmax(dim=1)
        total -= sum(math.log(chances[place - 1, ids[place]]) for place in np.flatnonzero(scored))
        count += int(scored.sum())
    assert count == len(samples.ids) - 1 and outcome.count == len(samples) == 239
    assert found["loss"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("name", ["mjp", "mp3"])
def test_perplexity__of_what_names_no_words__does_not_apply(world, name):
    reason = EVALS.get("perplexity").reason_against(config_of("perplexity"), {"model": world.run_of(build(name))})
    assert reason == f"method {name} does not name the next word"


def test_shuffler__drawing_ahead_in_a_process__draws_the_same_and_disturbs_no_generator():
    order, shuffled = (torch.stack(each) for each in reversed(reference_draws(300, 0.3, 2)))
    for is_ahead in (False, True):
        shuffler, state = Shuffler(build("mjp"), 0.3, 2), random_state(torch.Generator())
        shuffler.drawn = drawn_for(GRID, 0.3, 2, is_ahead)
        parts = [shuffler._take(count) for count in (5, 200, 95)]
        for found, expected in zip(zip(*parts, strict=True), (order, shuffled), strict=True):
            assert torch.equal(torch.cat(found).long(), expected.long())
        assert random_state(torch.Generator()) == state  # else whoever shuffles would seem to draw
