"""How evaluations are fed: draws and numbers do not depend on the size of batches, nor on where views are completed."""

import numpy as np
import pytest
import torch
from peers import peers
from PIL import Image
from tiny_runs import ALONE, NUM_VAL, PRETRAINING, build_trainer, tiny_run, write_images
from tiny_sounds import sound_config, write_sounds

from pipeline.core.registry import TASKS
from pipeline.data.kind import kind_of
from pipeline.data.loader import eval_loader
from pipeline.data.store.cache import CachedImages, Decoded
from pipeline.data.store.opening import open_for_evaluation, open_split
from pipeline.data.store.prepare import prepare
from pipeline.engine.batches import CachedBatches, Sizes, join_pieces, open_evaluation, pieces_for, sizes_for
from pipeline.engine.loop import build_method
from pipeline.engine.parallel.distributed import World
from pipeline.engine.validate import measure_set
from pipeline.site import Site

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
KINDS = {"supervised": {}, **PRETRAINING}
PHOTOS = {
    **{"name": "photos", "source": "folder", "channels": 3, "num_classes": 2, "num_train": 6, "num_val": 4},
    **{"mean": [0.5] * 3, "std": [0.25] * 3, "eval_crop": 0.875},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


def source(data, samples, task=None, world=ALONE, views="host"):
    task = task or TASKS.get("classify")(data, CPU)
    return open_evaluation(data, samples, task, Site(device="cpu", views=views), world)


def measured(run, method, images, sizes, world=ALONE, measure=None, views="host"):
    task, samples = TASKS.get(run.task)(run.data, CPU), open_split(run.data, images, "val")
    batches = source(run.data, samples, task, world, views).in_order(sizes.batch)
    return measure_set(method, batches, task, world, "fp32", measure or type(method).measure, sizes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("views", ["host", "device"])
@pytest.mark.parametrize("kind", KINDS)
def test_measure_set__several_pieces_at_once__finds_what_each_of_them_would(images, kind, views):
    run = tiny_run(KINDS[kind])
    method = build_method(run)
    one = measured(run, method, images, Sizes(5))
    other = measured(run, method, images, Sizes(5, 3), views=views)
    assert other.metrics == pytest.approx(one.metrics, rel=1e-6) and other.count == one.count == NUM_VAL
    for name, values in one.per_image.items():
        np.testing.assert_allclose(other.per_image[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("draws", [False, True])
def test_measure_set__several_pieces_at_once__what_draws_gets_them_one_by_one(images, draws):
    given = []

    def measure(method, batch):
        given.append(len(batch.images))
        numbers = torch.rand(len(batch.images), generator=batch.generator) if draws else batch.targets.float()
        return {"number": numbers}

    run = tiny_run()
    found = measured(run, build_method(run), images, Sizes(5, 3), measure=measure)
    pieces = [5] * (NUM_VAL // 5) + [NUM_VAL % 5] * (NUM_VAL % 5 > 0)
    rest = [15] * (NUM_VAL // 15 - 1) + [NUM_VAL % 15] * (NUM_VAL % 15 > 0)
    assert given == (pieces if draws else [5, 10, *rest])
    given.clear()
    plain = measured(run, build_method(run), images, Sizes(5), measure=measure)
    assert given == pieces
    assert found.per_image["number"].tolist() == plain.per_image["number"].tolist()


def test_measure_set__random_numbers__differ_between_pieces_and_between_seeds(images):
    run = tiny_run()
    method, task, samples = build_method(run), TASKS.get(run.task)(run.data, CPU), open_split(run.data, images, "val")

    def measure(method, batch):
        assert not torch.is_grad_enabled()
        return {"number": torch.rand(len(batch.images), generator=batch.generator)}

    def numbers(seed):
        loader = eval_loader(samples, kind_of(run.data).eval_view(), 7, 0, 1, 0, task.collate)
        return measure_set(method, loader, task, ALONE, "fp32", measure, seed=seed).per_image["number"].tolist()

    assert numbers(0) == numbers(0)
    assert len({*numbers(0), *numbers(1)}) == 2 * NUM_VAL


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["supervised", "droppos"])
def test_measure_set__pieces_shared_by_processes__gives_the_numbers_of_one(images, kind):
    run = tiny_run(KINDS[kind])
    method = build_method(run)
    alone = measured(run, method, images, Sizes(4, 2))
    together = [measured(run, method, images, Sizes(4, 2), world) for world in peers(3)][-1]
    assert together.metrics == pytest.approx(alone.metrics, rel=1e-6)
    for name, values in alone.per_image.items():
        np.testing.assert_allclose(together.per_image[name], values, rtol=1e-5, atol=1e-6)


def test_sizes__fill_a_gpu_with_whole_pieces_and_are_single_on_a_cpu():
    def sizes(size, device, piece=128):
        return sizes_for(TASKS.get("classify")(tiny_run({"data": {"image_size": size}}).data, CPU), device, piece)

    assert sizes(28, CPU) == sizes(448, GPU) == (128, 1)
    assert (sizes(28, GPU), sizes(28, GPU, 256), sizes(28, GPU, 1000)) == ((128, 8), (256, 4), (1000, 1))
    assert (sizes(224, GPU), sizes(224, GPU, 256)) == ((128, 2), (256, 1))


def test_pieces__are_for_batches_that_fill_a_gpu():
    task = TASKS.get("classify")(tiny_run().data, CPU)
    assert [pieces_for(task, GPU, batch) for batch in (1024, 256, 128, 250)] == [8, 8, 1, 1]
    assert pieces_for(task, CPU, 1024) == 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("views", ["host", "device"])
def test_pieces__of_a_loader__are_joined_to_its_batches(images, views, rank):
    data, world = tiny_run().data, World(rank, 2, CPU)
    opened = source(data, open_split(data, images, "val"), world=world, views=views)
    whole = [*opened.in_order(12)]
    pieces = [*opened._completed(opened._loader(12, pieces=4))]
    assert all(len(targets) <= 3 for _, targets in pieces) and len(pieces) > 3 * (len(whole) - 1)
    for found, expected in zip(join_pieces(pieces, 4, CPU), whole, strict=True):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_pieces__of_sounds__are_joined_to_their_batches(tmp_path):
    data = sound_config()
    opened = source(data, open_split(data, write_sounds(tmp_path), "val"))
    whole, pieces = [*opened.in_order(8)], [*opened.in_order(2)]
    found = [*join_pieces(pieces, 4, CPU)]
    assert [len(targets) for _, targets in found] == [8, 4]
    for (inputs, targets), (expected, labels) in zip(found, whole, strict=True):
        assert torch.equal(inputs["wave"], expected["wave"]) and torch.equal(targets, labels)


@pytest.mark.slow
def test_trainer__set_on_the_device__keeps_what_a_loader_makes_of_validation(images, tmp_path):
    trainer = build_trainer(tiny_run(), tmp_path, images, views="device")
    kept = trainer.batches.validation.batches
    assert isinstance(kept, CachedBatches)
    first, second = (list(kept) for _ in range(2))
    assert [id(inputs) for inputs, _ in first] == [id(inputs) for inputs, _ in second]
    assert not any(len(inputs.pixels) for inputs, _ in first)
    host = build_trainer(tiny_run(), tmp_path / "host", images, views="host")
    expected, found = ([inputs for inputs, _ in each.batches.validation] for each in (host, trainer))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_kept__first_pass_not_finished__begins_again():
    passes = []

    class Loader:
        def __iter__(self):
            passes.append(len(passes))
            yield from (1, 2, 3)

    kept = CachedBatches(Loader())
    assert next(iter(kept)) == 1
    assert [list(kept), list(kept)] == [[1, 2, 3], [1, 2, 3]]
    assert passes == [0, 1]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A config, files of 48 x 60 pixels, of which a cache keeps 32 x 40, the folder of their lists, and the cache."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    data = tiny_run({"data": PHOTOS, "model": {"patch_size": 7}, "optim": {"global_batch": 2, "micro_batch": 2}}).data
    for split in ("train", "val"):
        for number in range(data.count(split)):
            path = folder / "images" / split / f"class{number % 2}" / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (48, 60, 3), dtype=np.uint8)).save(path)
    prepare(data, folder / "images", folder / "lists", progress=False, cache=folder / "cache")
    return data, folder / "images", folder / "lists", folder / "cache"


def seen(data, samples, views):
    return torch.cat([inputs for inputs, _ in source(data, samples, views=views).in_order(2)])


@pytest.mark.slow
@pytest.mark.parametrize("crop", [0.875, 1.0])
@pytest.mark.parametrize("split", ["train", "val"])
def test_open_for_evaluation__with_a_cache__shows_what_the_files_show(photos, split, crop):
    data, *folders, cache = photos
    data = data.model_copy(update={"eval_crop": crop})
    plain, found = (open_for_evaluation(data, folders[0], split, folders[1], c, True) for c in (None, cache))
    # The train split was shrunk for crops of training, and a cache of validation is for one crop.
    assert isinstance(found, CachedImages) == (split == "val" and crop == 0.875)
    expected = seen(data, plain, "host")
    assert torch.equal(seen(data, found, "device"), expected)
    assert torch.equal(seen(data, found, "host"), expected)
    assert not isinstance(found[0][0], Decoded)  # others show them
