"""Evaluations on a small set in Fashion-MNIST's published layout, against one image at a time."""

import gzip
import math
import random
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_vit import tiny_encoder, tiny_model

from pipeline.data.jigsaw import block_mask, jigsaw_order, shuffle_patches
from pipeline.data.prepare import prepare
from pipeline.data.sources import DataConfig
from pipeline.engine.distributed import World
from pipeline.engine.folders import RunFolder
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS
from pipeline.evals.shuffling import Shuffler
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.models.position import Grid, encode
from pipeline.site import Site

pytestmark = pytest.mark.slow

GRID, BATCH = Grid(7, 7), 128
# More than one batch, and the last one is smaller: a mean of batch means would differ.
COUNTS = {"train": 40, "t10k": 150}
MEAN, STD = 0.286, 0.353
METHODS = {
    "baseline": (Supervised, {}, {}),
    "no positions": (Supervised, {}, {"pos_embed": "none"}),
    "mjp": (MJP, {"fidelity": "released"}, {}),
}


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


def build(kind):
    """A method whose weights are large enough for patches, positions and classes to matter."""
    method, fields, changes = METHODS[kind]
    built = method(method.Config(**fields), tiny_encoder(**changes)).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.ndim > 1 and "token" not in name:
                parameter.normal_(std=0.4)
    return built


def evaluate(world, name, method, **fields):
    kind = EVALS.get(name)
    optim = OptimConfig(epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3)
    run = RunConfig(method=method.cfg, model=tiny_model(), data=world.data, optim=optim)
    paths = RunFolder(world.results, run.name)
    evaluation = kind(kind.Config(name=name, **fields), run, paths, world.site, World(0, 1, torch.device("cpu")))
    return evaluation.compute(method)


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


@pytest.mark.parametrize("kind", METHODS)
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


@pytest.mark.parametrize("name", EVALS.names())
def test_compute__every_evaluation__returns_its_metrics_and_nothing_else(world, name):
    found = evaluate(world, name, build("mjp"))
    assert sorted(found) == sorted(EVALS.get(name).metrics)
    assert all(isinstance(value, float) and math.isfinite(value) for value in found.values())


@pytest.mark.parametrize("name", EVALS.names())
def test_compute__twice__gives_the_same_numbers_and_leaves_the_mode(world, name):
    method = build("mjp").train()
    assert evaluate(world, name, method, seed=5) == evaluate(world, name, method, seed=5)
    assert method.training


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
