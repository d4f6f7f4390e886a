"""Two processes that prepare one set at the same time: the second waits, and finds the work of the first.

Threads stand for processes: a lock is held by an open file, not by a process.
"""

import logging
import shutil
import threading
from contextlib import contextmanager

import pytest
from layouts import config, write_fashion_mnist, write_imagenet, write_jpeg
from patience import PATIENCE_S, wait_until
from test_filtered import WRONG_TWICE, Reference, filtered

from pipeline.core.errors import DataError
from pipeline.core.files import held, lock_of
from pipeline.data.images.classified import ClassifiedImages
from pipeline.data.kind import kind_of
from pipeline.data.store.manifest import write_manifest
from pipeline.data.store.prepare import prepare


class Other(threading.Thread):
    """Prepares a set; `found` is its manifest, or the error."""

    def __init__(self, *arguments, **options):
        super().__init__(daemon=True)
        self.call, self.found = (arguments, {"progress": False, **options}), None

    def run(self):
        try:
            self.found = prepare(*self.call[0], **self.call[1])
        except DataError as error:
            self.found = error


@pytest.fixture
def waits(caplog):
    """Whether somebody has said that it waits for the holder of a lock."""
    caplog.set_level(logging.INFO)
    return lambda: any("waiting for it" in line for line in caplog.messages)


@contextmanager
def while_another_prepares(out, waits, *arguments, **options):
    """The block runs while the lock of a set is held and this thread waits for it."""
    with held(lock_of(out), "a test"):
        other = Other(*arguments, **options)
        other.start()
        wait_until(waits, every_s=0.01)
        yield other
    other.join(PATIENCE_S)


def test_prepare__done_by_another_meanwhile__takes_its_manifest_and_verifies_nothing(tmp_path, waits, monkeypatch):
    cfg, out = config("imagenet"), tmp_path / "data" / "set"
    folder = write_imagenet(tmp_path / "images")
    first = prepare(cfg, folder, tmp_path / "elsewhere", progress=False)
    monkeypatch.setattr(ClassifiedImages, "inspect", lambda *_: pytest.fail("verified again"))
    with while_another_prepares(out, waits, cfg, folder, out) as other:
        shutil.copytree(tmp_path / "elsewhere", out)
    assert other.found == first


def test_prepare__manifest_from_before_counts_were_kept__is_taken_as_freshness_takes_it(tmp_path, waits, monkeypatch):
    cfg, out = config("imagenet"), tmp_path / "data" / "set"
    folder = write_imagenet(tmp_path / "images")
    old = prepare(cfg, folder, tmp_path / "elsewhere", progress=False).model_copy(update={"counted": None})
    write_manifest(tmp_path / "elsewhere" / "manifest.json", old)
    monkeypatch.setattr(ClassifiedImages, "inspect", lambda *_: pytest.fail("verified again"))
    with while_another_prepares(out, waits, cfg, folder, out) as other:
        shutil.copytree(tmp_path / "elsewhere", out)
    assert other.found == old


@pytest.mark.parametrize("left", ["nothing", "another config's"])
def test_prepare__another_left_no_manifest_that_fits__does_it_itself(tmp_path, waits, left):
    cfg, out = config("imagenet"), tmp_path / "data" / "set"
    folder = write_imagenet(tmp_path / "images")
    if left != "nothing":
        larger = write_imagenet(tmp_path / "larger")
        (larger / "train" / "n01440764" / "more.JPEG").write_bytes(
            next((larger / "train" / "n01440764").iterdir()).read_bytes()
        )
        prepare(config("imagenet", num_train=7), larger, tmp_path / "elsewhere", progress=False)
    with while_another_prepares(out, waits, cfg, folder, out) as other:
        if left != "nothing":
            shutil.copytree(tmp_path / "elsewhere", out)
    assert other.found.splits["train"].count == 6


def test_prepare__asked_again_without_a_wait__verifies_again(tmp_path):
    cfg, folder = config("imagenet"), write_imagenet(tmp_path / "images")
    prepare(cfg, folder, tmp_path / "out", progress=False)
    next((folder / "train").glob("*/*")).write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be decoded"):
        prepare(cfg, folder, tmp_path / "out", progress=False)


def test_made_set__asked_for_by_two_scales_at_once__is_made_once_and_whole_for_both(tmp_path, waits):
    images, folder = write_fashion_mnist(tmp_path / "set"), tmp_path / "made" / "small_a"
    sources = Reference(images, WRONG_TWICE)
    second = Other(filtered(), folder, tmp_path / "two" / "small_a", sources=sources)

    class Slow(Reference):
        def predict(self, run):
            """While the first scale makes the set, the second one asks for it."""
            second.start()
            wait_until(waits, every_s=0.01)
            return super().predict(run)

    slow = Slow(images, WRONG_TWICE)
    first = prepare(filtered(), folder, tmp_path / "one" / "small_a", progress=False, sources=slow)
    second.join(PATIENCE_S)
    assert (slow.asked, sources.asked) == (1, 0)
    assert first == second.found and first.splits["val"].count == 2


def test_cache__of_two_scales_at_once__is_written_by_one_after_the_other(tmp_path, waits):
    cfg, folder, cache = config("imagenet", image_size=28), write_imagenet(tmp_path / "images"), tmp_path / "cache"
    of_one = kind_of(cfg).cache(cache, "train", prepare(cfg, folder, tmp_path / "one", progress=False, cache=cache))
    of_one.record.unlink()
    second = Other(cfg, folder, tmp_path / "two", cache=cache)
    with held(of_one.folder / ".train.lock", "a test"):
        second.start()
        wait_until(waits, every_s=0.01)
    second.join(PATIENCE_S)
    assert second.found and not of_one.problem()


def test_published_set__in_a_folder_that_cannot_be_written_next_to__is_prepared(tmp_path):
    """A set that could be made, but is there as published, needs no lock of its files."""
    images, folder = write_fashion_mnist(tmp_path / "set"), tmp_path / "published" / "small_a"
    write_jpeg(folder / "Coat" / "own.jpg", 3, (28, 28), "L")
    prepare(filtered(), folder, tmp_path / "out", progress=False, sources=Reference(images, WRONG_TWICE))
    assert [path.name for path in folder.parent.iterdir()] == ["small_a"]
