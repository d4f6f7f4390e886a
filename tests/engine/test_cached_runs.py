"""Runs that train from a cache of decoded images: what they see is decided once, wherever the cache is."""

import shutil

import pytest
from tiny_runs import ALONE, PHOTOS, StopAfter, differing, tiny_run, weights_of, write_photos

from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import Trainer
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"))


def train(photos, results, stop=None, has_cache=True, **site):
    data, cache = tiny_run(PHOTOS).data, results / "cache" if has_cache else None
    prepare(data, photos, RunFolder(results, "").manifest("photos").parent, progress=False, cache=cache)
    return go_on(photos, results, has_cache, stop, **site)


def go_on(photos, results, has_cache, stop=None, **site):
    run = tiny_run(PHOTOS)
    paths, cache = RunFolder(results, run.name), results / "cache" if has_cache else None
    trainer = Trainer(run, paths, photos, Site(device="cpu", cache=cache, **site), ALONE, stop or StopRequest())
    first = trainer.step
    try:
        trainer.fit()
    except Requeue:
        assert stop is not None
    return trainer, first


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """A run that was never stopped."""
    return train(photos, tmp_path_factory.mktemp("whole"), views="device")[0]


def test_cached_run__stopped_and_resumed_with_views_elsewhere__ends_bit_identical(photos, whole, tmp_path):
    train(photos, tmp_path / "parts", StopAfter(2), views="host")
    resumed, first = train(photos, tmp_path / "parts", views="device", workers=1)
    assert (whole.shrunk_to, first) == (32, 2)
    assert differing(weights_of(whole), weights_of(resumed)) == []


@pytest.mark.parametrize("has_cache", [True, False])
def test_cached_run__goes_on_where_the_cache_is_missing__ends_bit_identical(photos, whole, tmp_path, caplog, has_cache):
    """On the disk of another node, or because the site file no longer names one."""
    train(photos, tmp_path / "parts", StopAfter(2), views="host")
    shutil.rmtree(tmp_path / "parts" / "cache")
    resumed, first = go_on(photos, tmp_path / "parts", has_cache, views="device")
    assert (resumed.shrunk_to, first) == (32, 2)
    assert differing(weights_of(whole), weights_of(resumed)) == []
    assert ("so train images are decoded from their files: the same pixels, more slowly" in caplog.text) == has_cache


def test_cached_run__begun_without_a_cache__sees_the_files_to_its_end(photos, tmp_path):
    whole, _ = train(photos, tmp_path / "whole", has_cache=False)
    train(photos, tmp_path / "parts", StopAfter(2), has_cache=False)
    resumed, first = train(photos, tmp_path / "parts")
    assert (resumed.shrunk_to, first) == (None, 2)
    assert differing(weights_of(whole), weights_of(resumed)) == []
