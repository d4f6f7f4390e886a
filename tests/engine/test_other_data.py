"""A site that names another folder than the one that was prepared: neither training nor evaluation uses its images."""

import gzip
import shutil

import pytest
from tiny_runs import classify, tiny_run

from pipeline.core.errors import DataError
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow


@pytest.fixture
def other_images(images, tmp_path):
    """The same set, with two labels of each split swapped."""
    folder = shutil.copytree(images, tmp_path / "other")
    for path in folder.glob("*labels*.gz"):
        content = bytearray(gzip.decompress(path.read_bytes()))
        content[8], content[9] = content[9], content[8]
        path.write_bytes(gzip.compress(content))
    return folder


def site(folder):
    return Site(device="cpu", data={"small": folder})


def test_train__site_names_another_folder_than_was_prepared__is_refused(images, other_images, results):
    run = tiny_run()
    paths = RunFolder(results, run.name)
    with pytest.raises(DataError, match="found other pixels or labels than were verified") as caught:
        train_run(run, paths, site(other_images), StopRequest())
    assert str(other_images) in str(caught.value) and str(images) in str(caught.value)
    assert not paths.metrics.exists() and not paths.finished.exists()


def test_evaluate__site_names_another_folder_than_was_prepared__is_refused(images, other_images, results):
    run = tiny_run({"optim": {"epochs": 1, "warmup_epochs": 0}})
    paths = RunFolder(results, run.name)
    train_run(run, paths, site(images), StopRequest())
    paths.publish()
    with pytest.raises(DataError, match="found other pixels or labels than were verified"):
        classify(run, paths, site(other_images))
    assert "top1" in classify(run, paths, site(shutil.copytree(images, results / "moved"))).metrics
