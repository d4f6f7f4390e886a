"""Decoded images on disk: what is kept, what is read back, what an interrupted or outdated cache does."""

import os
import platform
import shutil

import numpy as np
import pytest
import torch
from layouts import WNIDS, config, write_imagenet, write_jpeg, write_tiny_imagenet
from PIL import Image

from pipeline.core.errors import PatchworkError
from pipeline.core.files import ROOM
from pipeline.core.registry import TASKS
from pipeline.data.images.gpu.residence import ResidentImages
from pipeline.data.images.transforms import eval_view
from pipeline.data.kind import kind_of
from pipeline.data.loader import BatchPlan, train_loader
from pipeline.data.store import cache as caching
from pipeline.data.store.cache import CachedImages, Decoded, ShrunkImages, eval_side, train_side
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_for_training, open_split, side_for_training
from pipeline.data.store.prepare import fill_cache, prepare
from pipeline.engine.batches import sources_of_run
from pipeline.engine.parallel.distributed import World
from pipeline.site import Site

SEEN = {"image_size": 28, "eval_crop": 0.875}  # evaluated from 32 pixels, trained from as many


@pytest.fixture
def images(tmp_path):
    """Real JPEG files of several sizes, with pictures in them."""
    folder = write_imagenet(tmp_path / "data")
    rng = np.random.default_rng(0)
    sizes = [(60, 40), (40, 60), (32, 32), (33, 90), (20, 50)]
    for number, path in enumerate(sorted(folder.rglob("*.JPEG"))):
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        small.resize(sizes[number % 5]).save(path, quality=95)
    return folder


def written(images, tmp_path, workers=0, **changes):
    cfg = config("imagenet", **{**SEEN, **changes})
    prepare(cfg, images, tmp_path / "out", workers, progress=False, cache=tmp_path / "cache")
    return cfg


def opened(cfg, images, tmp_path, split="train"):
    side = side_for_training(cfg, tmp_path / "out")
    return open_for_training(cfg, images, split, tmp_path / "out", tmp_path / "cache", side)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_cache__every_image__is_the_file_shrunk_to_the_side(images, tmp_path, workers):
    cfg = written(images, tmp_path, workers)
    files, found = open_split(cfg, images, "train"), opened(cfg, images, tmp_path)
    assert isinstance(found, CachedImages)
    assert list(found.labels) == list(files.labels)
    for index in range(len(files)):
        image = files.image(index)
        scale = min(1, 32 / min(image.size))
        size = tuple(int(side * scale) for side in image.size)
        assert found.name(index) == files.name(index)
        assert np.array_equal(found.image(index), image.resize(size, Image.Resampling.BICUBIC))


def test_cache__validation__has_the_same_views_as_the_files(images, tmp_path):
    cfg = written(images, tmp_path)
    view = eval_view(cfg, cfg.eval_crop)
    files, found = open_split(cfg, images, "val"), opened(cfg, images, tmp_path, "val")
    assert isinstance(found, CachedImages)
    assert all(np.array_equal(view(files.image(index)), view(found.image(index))) for index in range(len(files)))


def test_sides__of_the_usual_sizes():
    assert (train_side(224), eval_side(224, 0.875)) == (256, 256)
    assert eval_side(224, 1.0) is None
    assert eval_side((32, 64), 0.875) is None


def test_cache__validation_that_squashes__is_not_kept(images, tmp_path):
    cfg = written(images, tmp_path, eval_crop=1.0)
    assert not isinstance(opened(cfg, images, tmp_path, "val"), CachedImages)
    assert isinstance(opened(cfg, images, tmp_path), CachedImages)


@pytest.mark.slow
def test_cache__interrupted__continues_where_it_was(images, tmp_path, monkeypatch):
    cfg = written(images, tmp_path / "whole")
    decode, seen = ShrunkImages.image, []

    def failing(images, index):
        seen.append(index)
        if len(seen) > caching.TRIED + 3:
            raise KeyboardInterrupt
        return decode(images, index)

    monkeypatch.setattr(caching, "BLOCK", 2)
    monkeypatch.setattr(caching, "TRIED", 1)
    monkeypatch.setattr(ShrunkImages, "image", failing)
    with pytest.raises(KeyboardInterrupt):
        written(images, tmp_path)
    assert not list((tmp_path / "cache").rglob("*.json"))
    seen.clear()
    monkeypatch.setattr(ShrunkImages, "image", lambda *given: (seen.append(given[1]), decode(*given))[1])
    written(images, tmp_path)
    whole, again = (sorted((folder / "cache").rglob("[!.]*")) for folder in (tmp_path / "whole", tmp_path))
    assert [path.read_bytes() for path in whole if path.is_file()] == [
        path.read_bytes() for path in again if path.is_file()
    ]
    train = seen[: seen.index(0, 1)]  # what was tried, then what was missing; the other split begins at 0
    assert train == [0, *range(3, len(opened(cfg, images, tmp_path)))]


def test_cache__torn_last_image__is_written_again(images, tmp_path):
    cfg = written(images, tmp_path)
    split = kind_of(cfg).cache(tmp_path / "cache", "train", read_manifest(tmp_path / "out" / "manifest.json"))
    whole = split.pixels.read_bytes()
    split.record.unlink()
    os.replace(split.places, split.places_part)
    split.pixels_part.write_bytes(whole[:-5])
    split.pixels.unlink()
    written(images, tmp_path)
    assert split.problem() == ""
    assert split.pixels.read_bytes() == whole


def test_cache__written_twice__decodes_nothing_again(images, tmp_path, monkeypatch):
    written(images, tmp_path)
    monkeypatch.setattr(ShrunkImages, "image", None)
    written(images, tmp_path)


def test_cache__of_other_images__is_not_used_and_the_message_says_what_to_do(images, tmp_path, caplog):
    cfg = written(images, tmp_path)
    write_jpeg(images / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG", (1, 2, 3))
    prepare(cfg, images, tmp_path / "out", progress=False)  # without a cache
    assert not isinstance(opened(cfg, images, tmp_path), CachedImages)
    assert "made from other images" in caplog.text
    assert "python -m pipeline prepare" in caplog.text
    begun = tmp_path / "cache" / cfg.name / ".train-32-bicubic-0123456789abcdef.pixels"
    begun.write_bytes(b"of images that are there no more")
    written(images, tmp_path)
    assert isinstance(opened(cfg, images, tmp_path), CachedImages)
    assert not begun.exists()


@pytest.mark.parametrize("file", ["pixels", "places"])
def test_cache__file_cut_short__is_not_used(images, tmp_path, caplog, file):
    cfg = written(images, tmp_path)
    path = next((tmp_path / "cache").rglob(f"train*.{file}"))
    os.truncate(path, path.stat().st_size - 24)
    assert not isinstance(opened(cfg, images, tmp_path), CachedImages)
    assert "incomplete" in caplog.text


def test_cache__no_room__is_refused_before_it_begins(images, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1e6}))
    with pytest.raises(PatchworkError, match=r"the cache of .* train images needs"):
        written(images, tmp_path)


@pytest.mark.parametrize("missing", [0, 1], ids=["room for the rest", "a byte too little"])
def test_cache__almost_complete_on_an_almost_full_disk__needs_room_for_the_rest_only(
    images, tmp_path, monkeypatch, missing
):
    cfg = written(images, tmp_path)
    split = kind_of(cfg).cache(tmp_path / "cache", "train", read_manifest(tmp_path / "out" / "manifest.json"))
    whole, last = split.pixels.read_bytes(), opened(cfg, images, tmp_path).decoded(-1).pixels.size
    split.record.unlink()
    os.replace(split.places, split.places_part)
    split.pixels.unlink()
    split.pixels_part.write_bytes(whole[:-1])  # torn, so that the last image is decoded again
    free = ROOM + last - missing
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    if missing:
        with pytest.raises(PatchworkError, match=rf"needs {(ROOM + last) / 1e6:.1f} MB"):
            written(images, tmp_path)
    else:
        written(images, tmp_path)
        assert split.pixels.read_bytes() == whole


def test_cache__announced__with_its_size_and_time(images, tmp_path, caplog):
    with caplog.at_level("INFO"):
        written(images, tmp_path)
    assert "train images in" in caplog.text
    assert "MB" in caplog.text
    assert "about 1 min" in caplog.text


def test_open_split__without_a_cache_or_with_none_written__reads_the_files(images, tmp_path, caplog):
    cfg = config("imagenet", **SEEN)
    prepare(cfg, images, tmp_path / "out", progress=False)
    assert not isinstance(open_split(cfg, images, "train", tmp_path / "out"), CachedImages)
    assert caplog.text == ""
    assert not isinstance(opened(cfg, images, tmp_path), CachedImages)
    assert "not found" in caplog.text


def batches(samples, view, views=None):
    plan = BatchPlan(0, len(samples), 1, 6, len(samples), 2)
    found = train_loader(plan, samples, view, 0, 0, 1, 0, view.collate if views else None)
    return [(views.complete(inputs) if views else inputs, labels) for inputs, labels in found]


def assert_device_equals_host(cfg, folder, tmp_path):
    """What a training sees of a cache, completed on a device and on the host; returns where its samples lie."""
    expected = batches(opened(cfg, folder, tmp_path), kind_of(cfg).train_view())
    train, _ = sources(cfg, folder, tmp_path)
    for (a, a_labels), (b, b_labels) in zip(
        batches(train.samples, train.view, train.completion.views), expected, strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(a_labels, b_labels)
    return train.samples


def sources(cfg, folder, tmp_path):
    """Both splits, with views that are completed on the device."""
    task, site = TASKS.get("classify")(cfg, torch.device("cpu")), Site(device="cpu", views="device", workers=1)
    splits = {split: opened(cfg, folder, tmp_path, split) for split in ("train", "val")}
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    return sources_of_run(cfg, splits, manifest, task, site, World(0, 1, torch.device("cpu")))


@pytest.mark.slow
def test_cache__views_on_a_device__equal_those_of_the_host(images, tmp_path):
    cfg = written(images, tmp_path, augment={"crop": "resized", "hflip": 0.5})
    train = assert_device_equals_host(cfg, images, tmp_path)
    assert isinstance(train[0][0], Decoded)


@pytest.mark.slow
def test_cache__small_images_of_many_sizes__live_on_the_device(images, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.data.images.gpu.device_views.AT_ONCE", 1000)
    cfg = written(images, tmp_path, image_size=48, augment={"crop": "resized", "hflip": 0.5})
    train = assert_device_equals_host(cfg, images, tmp_path)
    assert isinstance(train, ResidentImages)


def test_cache__images_of_one_size__go_to_the_device_from_it(tmp_path, monkeypatch):
    folder = write_tiny_imagenet(tmp_path / "data")
    cfg = config("tiny_imagenet", image_size=64, augment={"crop": "resized"})
    prepare(cfg, folder, tmp_path / "out", progress=False, cache=tmp_path / "cache")
    monkeypatch.setattr(CachedImages, "decoded", None)  # read as a whole, not one by one
    train, val = sources(cfg, folder, tmp_path)
    assert all(isinstance(source.samples, ResidentImages) for source in (train, val))
    assert len(train.completion.views.store) == 9 * 64 * 64


def test_prepare__runs_that_see_a_set_in_two_ways__each_have_a_cache(images, tmp_path):
    small, large = (config("imagenet", **{**SEEN, "image_size": size}) for size in (28, 56))
    prepare(small, images, tmp_path / "out", progress=False, cache=tmp_path / "cache", seen=[small, large])
    assert all(isinstance(opened(cfg, images, tmp_path), CachedImages) for cfg in (small, large))


@pytest.mark.parametrize(("size", "side"), [(28, 32), (70, None)])
def test_side_for_training__larger_images_or_none__is_that_of_the_cache_whether_it_is_there_or_not(
    images, tmp_path, size, side
):
    cfg = config("imagenet", **{**SEEN, "image_size": size})
    prepare(cfg, images, tmp_path / "out", progress=False)
    assert side_for_training(cfg, tmp_path / "out") == side


@pytest.mark.parametrize("split", ["train", "val"])
def test_open_for_training__cache_missing_on_this_machine__shows_the_same_pixels(images, tmp_path, caplog, split):
    cfg = written(images, tmp_path)
    kept = opened(cfg, images, tmp_path, split)
    shutil.move(tmp_path / "cache", tmp_path / "cache of another node")
    found, view = opened(cfg, images, tmp_path, split), eval_view(cfg, cfg.eval_crop)
    assert isinstance(kept, CachedImages) and not isinstance(found, CachedImages)
    assert f"on {platform.node()}, so {split} images are decoded from their files" in caplog.text
    for index in range(len(kept)):
        (one, label), (other, same_label) = kept[index], found[index]
        assert (label, kept.name(index)) == (same_label, found.name(index))
        shown = (np.asarray(each) if split == "train" else view(each) for each in (one, other))
        np.testing.assert_array_equal(*shown)


def test_fill_cache__set_verified_on_another_machine__leaves_its_manifest_and_decodes_once(
    images, tmp_path, monkeypatch
):
    cfg, manifest = config("imagenet", **SEEN), tmp_path / "out" / "manifest.json"
    prepare(cfg, images, tmp_path / "out", progress=False)
    before, inspect = manifest.read_bytes(), kind_of(cfg).inspect
    # Runs may start while it decodes.
    monkeypatch.setattr(type(kind_of(cfg)), "inspect", lambda kind, *given: (manifest.read_bytes(), inspect(*given))[1])
    fill_cache(cfg, images, tmp_path / "out", tmp_path / "cache", progress=False)
    assert all(isinstance(opened(cfg, images, tmp_path, split), CachedImages) for split in ("train", "val"))
    monkeypatch.setattr(type(kind_of(cfg)), "inspect", None)
    fill_cache(cfg, images, tmp_path / "out", tmp_path / "cache", progress=False)
    assert manifest.read_bytes() == before


def test_open_for_training__run_that_began_without_a_cache__sees_the_files(images, tmp_path):
    cfg = written(images, tmp_path)
    found = open_for_training(cfg, images, "train", tmp_path / "out", tmp_path / "cache", None)
    files = open_split(cfg, images, "train")
    assert [image.size for image, _ in found] == [image.size for image, _ in files]
