"""The small data set, written and prepared once."""

import shutil

import pytest
from tiny_runs import prepare_in, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Folder of a small set in the published Fashion-MNIST layout."""
    return write_images(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="session")
def prepared(images, tmp_path_factory):
    """Results folder in which the small set is prepared; not to be written to."""
    results = tmp_path_factory.mktemp("prepared")
    prepare_in(results, images)
    return results


@pytest.fixture
def results(prepared, tmp_path):
    """A results folder of the test's own in which the small set is prepared."""
    return shutil.copytree(prepared, tmp_path / "results")
