"""When Snakemake prepares a data set again: when what the site or the config says means other images, and only then."""

import gzip
import shutil

import pytest
from small import LOCAL

pytestmark = pytest.mark.slow

MANIFEST = "results/demo/data/fashion_mnist/manifest.json"
DATA = "configs/data/fashion_mnist.yaml"
IMAGES = "pipeline/data/fashion_mnist"


@pytest.fixture
def jobs_with(done, tmp_path, monkeypatch):
    """The jobs of a dry run on a site that names this folder."""

    def count(folder):
        (tmp_path / "site.yaml").write_text(f"data: {{fashion_mnist: {folder}}}\n")
        monkeypatch.setitem(done.env, "PATCHWORK_SITE", str(tmp_path / "site.yaml"))
        return done.jobs(MANIFEST, *LOCAL)

    return count


def test_prepared_data__moved_or_absent__is_not_prepared_again(done, jobs_with, tmp_path):
    assert jobs_with(shutil.copytree(done.root / IMAGES, tmp_path / "moved")) == {}
    assert jobs_with(tmp_path / "absent") == {}


def test_prepared_data__site_names_a_folder_with_other_images__is_prepared_again(done, jobs_with, tmp_path):
    folder = shutil.copytree(done.root / IMAGES, tmp_path / "other")
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(labels.read_bytes())
    labels.write_bytes(gzip.compress(content[:-2] + bytes([content[-1], content[-2]])))
    assert jobs_with(folder) == {"prepare_data": 1}


def test_prepared_data__other_count_in_its_config__is_prepared_again(done):
    with done.changed(DATA, "num_train: 400", "num_train: 500"):
        assert done.jobs(MANIFEST, *LOCAL) == {"prepare_data": 1}
