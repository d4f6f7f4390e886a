"""Evaluations on a small set in Fashion-MNIST's published layout, against one image at a time."""

import gzip
import math
import random
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers import peers
from tiny_vit import tiny_encoder, tiny_model

from pipeline.data.prepare import prepare
from pipeline.data.sources import DataConfig
from pipeline.engine.distributed import World
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig, resolved_yaml
from pipeline.engine.train import export
from pipeline.errors import CheckpointError, ConfigError
from pipeline.evals.base import EVALS
from pipeline.evals.droppos_positions import DropPosPositions
from pipeline.evals.mp3_positions import MP3Positions
from pipeline.evals.shuffling import Shuffler
from pipeline.files import digest, write_json, write_text
from pipeline.methods.droppos import DropPos
from pipeline.methods.mjp import MJP
from pipeline.methods.mp3 import MP3
from pipeline.methods.supervised import Supervised
from pipeline.models.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.models.patches import Grid
from pipeline.models.position import encode
from pipeline.records import Inputs, TrainRecord
from pipeline.results import RunFolder
from pipeline.seeds import seed_everything
from pipeline.site import Site

pytestmark = pytest.mark.slow

GRID, BATCH = Grid(7, 7), 128
# More than one batch, and the last one is smaller: a mean of batch means would differ.
COUNTS = {"train": 40, "t10k": 150}
ETAS, CELLS = MP3Positions.Config().etas, DropPosPositions.Config().cells
MEAN, STD = 0.286, 0.353
METHODS = {
    "baseline": (Supervised, {}, {}),
    "no positions": (Supervised, {}, {"pos_embed": "none"}),
    "mjp": (MJP, {"fidelity": "released"}, {}),
    "mp3": (MP3, {}, {"pos_embed": "none"}),
    "droppos": (DropPos, {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}, {"pos_embed": "sincos"}),
}
CLASSIFIERS = ("baseline", "no positions", "mjp")
SUITED = {"mp3_positions": "mp3", "droppos_positions": "droppos"}  # evaluations of one method alone


def write_idx(path, magic, array):
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A prepared data set, where it lies, and what its validation images and labels are."""
    folder, results = tmp_path_factory.mktemp("published"), tmp_path_factory.mktemp("results")
    pixels, labels = {}, {}
    for prefix, count in COUNTS.items():
        generator = np.random.default_rng(count)
        pixels[prefix] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels[prefix] = (np.arange(count) % 10).astype(np.uint8)
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 2051, pixels[prefix])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 2049, labels[prefix])
    data = DataConfig(
        name="small_fashion",
        source="fashion_mnist",
        image_size=28,
        channels=1,
        num_classes=10,
        num_train=COUNTS["train"],
        num_val=COUNTS["t10k"],
        mean=(MEAN,),
        std=(STD,),
        eval_crop=1.0,
    )
    prepare(data, folder, RunFolder(results, "any").manifest(data.name).parent, progress=False)
    site = Site(data={data.name: folder}, device="cpu")
    return SimpleNamespace(data=data, site=site, results=results, pixels=pixels["t10k"], labels=labels["t10k"])


def build(kind, seed=0):
    """A method whose weights are large enough for patches, positions and classes to matter."""
    method, fields, changes = METHODS[kind]
    built = method(method.Config(**fields), tiny_encoder(seed, **changes)).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.ndim > 1 and "token" not in name and parameter.requires_grad:
                parameter.normal_(std=0.4)
    return built


def run_of(world, method, seed=0, **data):
    changes = METHODS[method.cfg.name][2] if method.cfg.name in METHODS else {}
    optim = OptimConfig(epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3)
    data = world.data.model_copy(update=data)
    return RunConfig(method=method.cfg, model=tiny_model(**changes), data=data, optim=optim, seed=seed)


def evaluate(world, name, method, peer=None, crop=1.0, **fields):
    kind, run = EVALS.get(name), run_of(world, method, eval_crop=crop)
    paths, place = RunFolder(world.results, run.name), peer or World(0, 1, torch.device("cpu"))
    return kind(kind.Config(name=name, **fields), run, paths, world.site, place).compute(method)


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
    """Everything that Classify and Consistency report, one image at a time."""
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
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classify_and_consistency__small_set__match_one_image_at_a_time(world, kind):
    method = build(kind)
    expected = slow_reference(world, method, ratio=0.5, seed=3)

    found = evaluate(world, "classify", method, shuffle_ratio=0.5, seed=3)
    found |= evaluate(world, "consistency", method, shuffle_ratio=0.5, seed=3)

    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    # Otherwise the comparison could not tell a right evaluation from a wrong one.
    assert 0 < found["top1"] < found["top5"] < 100
    if kind != "no positions":
        assert 0 < found["consistency"] < 100
        assert found["diff_norm"] ** 2 < found["diff_norm_squared"]


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


def finish(world, method, seed=1, **data):
    """The folder of a finished run of this method; returns its name."""
    run = run_of(world, method, seed, **data)
    paths = RunFolder(world.results, run.name)
    export(method, paths)
    write_text(paths.config, resolved_yaml(run))
    files = {path.name: digest(path) for path in (paths.encoder, paths.heads)}
    inputs = Inputs(data="", init=None)
    record = TrainRecord(run=run.name, metrics={}, files=files, inputs=inputs, provenance={})
    write_json(paths.done, record.model_dump())
    return run.name


@pytest.fixture(scope="module")
def partner(world):
    """A finetuned model to ask together with, and the name of its run."""
    method = build("baseline", seed=1)
    return SimpleNamespace(method=method, name=finish(world, method))


def fields_of(name, partner):
    return {"partner": partner.name} if name == "ensemble" else {}


@pytest.mark.parametrize("name", EVALS.names())
def test_compute__every_evaluation__returns_its_metrics_and_nothing_else(world, partner, name):
    found = evaluate(world, name, build(SUITED.get(name, "mjp")), **fields_of(name, partner))
    assert sorted(found) == sorted(EVALS.get(name).Config().metrics)
    assert all(isinstance(value, float) and math.isfinite(value) for value in found.values())


@pytest.mark.parametrize("name", EVALS.names())
def test_compute__twice__gives_the_same_numbers_and_leaves_the_mode(world, partner, name):
    method, fields = build(SUITED.get(name, "mjp")).train(), fields_of(name, partner)
    assert evaluate(world, name, method, seed=5, **fields) == evaluate(world, name, method, seed=5, **fields)
    assert method.training


@pytest.mark.parametrize("name", EVALS.names())
def test_compute__site_in_bf16__runs_the_model_in_it_and_is_close(world, partner, name):
    half = SimpleNamespace(**{**vars(world), "site": world.site.model_copy(update={"precision": "bf16"})})
    method, fields, seen = build(SUITED.get(name, "mjp")), fields_of(name, partner), []
    method.encoder.blocks[0].mlp.fc1.register_forward_hook(lambda module, given, found: seen.append(found.dtype))
    exact = evaluate(world, name, method, **fields)
    in_fp32, seen[:] = set(seen), []
    found = evaluate(half, name, method, **fields)
    assert (in_fp32, set(seen)) == ({torch.float32}, {torch.bfloat16})
    percents = [metric for metric in exact if "loss" not in metric and "norm" not in metric]
    assert {key: found[key] for key in percents} == pytest.approx({key: exact[key] for key in percents}, abs=10)


@pytest.mark.parametrize("name", EVALS.names())
def test_compute__run_with_another_crop__sees_it_and_consistency_sees_whole_images(world, name):
    method = build(SUITED.get(name, "mjp"))
    found = []
    for crop in (1.0, 0.6):
        partner = SimpleNamespace(name=finish(world, build("baseline", seed=1), eval_crop=crop))
        found.append(evaluate(world, name, method, crop=crop, **fields_of(name, partner)))
    assert (found[0] == found[1]) is (name == "consistency")


@pytest.mark.parametrize("name", SUITED)
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
def mp3_hits(method, image, context):
    """How many of 49 patches, left where they are, find their place when only CLS and the context give keys."""
    encoder = method.encoder
    tokens = torch.cat([encoder.cls_token[0], encoder.patch_embed(image[None])[0]])
    hidden = [1 + patch for patch in range(49) if patch not in context]
    for block in encoder.blocks:
        query, key, value = block.attn.qkv(block.norm1(tokens)).reshape(50, 3, 2, 16).permute(1, 2, 0, 3)
        scores = query @ key.transpose(1, 2) / 4
        scores[:, :, hidden] = -torch.inf
        tokens = tokens + block.attn.proj((scores.softmax(2) @ value).transpose(0, 1).reshape(50, 32))
        tokens = tokens + block.mlp(block.norm2(tokens))
    return int((method.head(encoder.norm(tokens)[1:]).argmax(1) == torch.arange(49)).sum())


def test_mp3_positions__small_set__matches_one_image_at_a_time(world):
    method = build("mp3")
    hits = dict.fromkeys(ETAS, 0)
    for images, generator in batches_with_generators(world, 3):
        for eta in ETAS:
            orders = torch.rand(len(images), 49, generator=generator).argsort(1)
            count = int(49 * (1 - eta / 100) + 1e-9)
            contexts = [set(order[:count].tolist()) for order in orders]
            hits[eta] += sum(mp3_hits(method, image, kept) for image, kept in zip(images, contexts, strict=True))

    found = evaluate(world, "mp3_positions", method, seed=3)

    assert found == pytest.approx({f"at_{eta}": 100 * hits[eta] / 49 / len(world.pixels) for eta in ETAS}, abs=0.03)
    assert len(set(found.values())) > 3 and min(found.values()) > 0


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


@pytest.mark.parametrize("name", SUITED)
@pytest.mark.parametrize("size", [2, 3])  # the third of three has no batch
def test_positions__shared_by_processes__are_those_of_one(world, name, size):
    method = build(SUITED[name])
    alone = evaluate(world, name, method)
    together = [evaluate(world, name, method, peer) for peer in peers(size)][-1]
    assert together == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("name", SUITED)
def test_positions__another_seed__draws_other_masks(world, name):
    method = build(SUITED[name])
    assert evaluate(world, name, method, seed=1) != evaluate(world, name, method, seed=2)


@torch.no_grad()
def test_ensemble__two_models__is_the_mean_of_their_probabilities(world, partner):
    method = build("mjp")
    rows = []
    for pixels, label in zip(world.pixels, world.labels, strict=True):
        image = (torch.tensor(pixels).float()[None] / 255 - MEAN) / STD
        logits = [model.encoder(image[None])[0].double() for model in (method, partner.method)]
        probabilities = [(values.exp() / values.exp().sum()).tolist() for values in logits]
        mean = [(a + b) / 2 for a, b in zip(*probabilities, strict=True)]
        ranked = sorted(range(10), key=lambda k, mean=mean: -mean[k])
        both = (logits[0] + logits[1]).argmax()
        singles = [100.0 * (values.argmax() == label) for values in logits]
        rows.append([100.0 * (ranked[0] == label), 100.0 * (label in ranked[:5]), 100.0 * (both == label), *singles])
    top1, top5, logits_top1, *singles = np.mean(rows, axis=0)

    found = evaluate(world, "ensemble", method, partner=partner.name)

    assert found == pytest.approx({"top1": top1, "top5": top5, "logits_top1": logits_top1})
    assert top1 not in singles  # neither model alone


def test_ensemble__with_itself__is_the_model_alone(world):
    method = build("mjp")
    found = evaluate(world, "ensemble", method, partner=finish(world, method, seed=2))
    alone = evaluate(world, "classify", method)
    assert found == pytest.approx({"top1": alone["top1"], "top5": alone["top5"], "logits_top1": alone["top1"]})


def test_ensemble__partner_not_finished__is_refused(world):
    with pytest.raises(CheckpointError, match=r"run supervised-other is not finished .* train it first"):
        evaluate(world, "ensemble", build("mjp"), partner="supervised-other")


def test_ensemble__no_partner__is_refused(world):
    with pytest.raises(ConfigError, match="partner is empty; a column of a table names it"):
        evaluate(world, "ensemble", build("mjp"))


def test_ensemble__partner_saw_other_images__is_refused_with_what_differs(world):
    other = finish(world, build("baseline"), mean=(0.5,), eval_crop=0.875)
    with pytest.raises(ConfigError, match="see other images: mean, eval_crop differ"):
        evaluate(world, "ensemble", build("mjp"), partner=other)


def test_ensemble__partner_was_augmented_otherwise__is_welcome(world):
    augment = world.data.augment.model_copy(update={"mixup": 0.8})
    other = finish(world, build("baseline"), augment=augment)
    assert evaluate(world, "ensemble", build("mjp"), partner=other)["top5"] > 0


def test_shuffler__two_models_with_one_seed__see_the_same_shuffled_images():
    narrow = Supervised(Supervised.Config(), tiny_encoder(seed=0))
    wide = MJP(MJP.Config(), tiny_encoder(seed=1, embed_dim=64))
    images = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def two_batches(method, seed):
        shuffler = Shuffler(0.5, seed)
        return torch.cat([shuffler(method, images)[0], shuffler(method, images)[0]])

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
    moved, shuffled = Shuffler(0.5, 0)(method, twins)
    assert shuffled.shape == (4, 49) and shuffled.dtype == torch.bool
    assert len({tuple(image.flatten().tolist()) for image in moved}) == 4
