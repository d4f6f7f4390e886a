"""The small data set, short runs and a trained run on it, and a launcher with the cluster that it talks to."""

import shutil
from dataclasses import replace

import bases
import pytest
from every_key import Recorder, short_run
from fake_cluster import NEW, Cluster
from lab import Lab, recorded, train_in
from locked_models import lock, make_key, write_checkpoints
from safetensors.torch import save_file
from tiny_runs import prepare_in, write_images

from pipeline.core.config import merge
from pipeline.engine.loop import build_method
from pipeline.engine.signals import StopRequest
from pipeline.evals.accuracy.classify import Classify
from pipeline.evals.positions.consistency import Consistency
from pipeline.evals.positions.jigsaw_pictures import JigsawPictures
from pipeline.launch import slurm
from pipeline.launch.resources import Shape
from pipeline.launch.slurm import Launcher
from pipeline.results import RunFolder, ScaleFolder
from pipeline.site import Site, Slurm


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


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Records a run; next to it lie the files that some of them start from."""
    recorder = Recorder(tmp_path_factory.mktemp("every_key"))
    finer = {"data": {"image_size": 56}}
    files = {"other": {}, "finer": finer, "finer_swin": merge(bases.SWIN, finer, {"model": {"pos_embed": "learn"}})}
    for name, changes in files.items():
        encoder = build_method(short_run({"seed": 5}, changes)).export()
        save_file(encoder.state_dict(), recorder.folder / f"{name}.safetensors")
    return recorder


@pytest.fixture
def cluster(monkeypatch):
    """Instead of SLURM: jobs are in the states that the test gives them."""
    cluster = Cluster()
    monkeypatch.setattr(slurm, "scancel", cluster.cancel)
    monkeypatch.setattr(slurm, "LOOK_S", 0.001)
    return cluster


@pytest.fixture
def launcher(cluster, tmp_path, monkeypatch):
    """The launcher of one run, which submits to that cluster."""
    site = Site(slurm=Slurm(poll_s=0.001))
    paths = RunFolder(tmp_path / "demo", "run")
    launcher = Launcher("job", paths, site, Shape(1, 1), "local", NEW, StopRequest(), cluster)
    monkeypatch.setattr(launcher, "_submit", cluster.submit)
    return launcher


@pytest.fixture
def cpu_site(tmp_path, monkeypatch):
    path = tmp_path / "site.yaml"
    path.write_text("device: cpu\nthreads: 1\n")
    monkeypatch.setenv("PATCHWORK_SITE", str(path))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Files as they are published, by family; not to be written to."""
    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def ready(cpu_site, checkpoints, tmp_path):
    """A model, its key and its locked file."""
    key = make_key(checkpoints["vit"], tmp_path / "mine.key")
    assert lock(checkpoints["vit"], key, tmp_path / "locked.safetensors") == 0
    return checkpoints["vit"], key, tmp_path / "locked.safetensors"


@pytest.fixture(scope="module")
def trained(images, prepared, tmp_path_factory) -> Lab:
    """The results of one training; not to be written to."""
    return train_in(shutil.copytree(prepared, tmp_path_factory.mktemp("trained") / "results"), images)


@pytest.fixture
def lab(trained, tmp_path) -> Lab:
    """A copy of these results for evaluations of a test's own."""
    results = shutil.copytree(trained.results.folder, tmp_path / "results")
    return replace(trained, results=ScaleFolder(results))


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """Names of the evaluations that were computed, one after the other."""
    names: list[str] = []
    for kind in (Classify, Consistency, JigsawPictures):
        monkeypatch.setattr(kind, "compute", recorded(kind.compute, names))
    return names
