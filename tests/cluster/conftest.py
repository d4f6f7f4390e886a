"""Real SLURM clusters, started when the first test asks for one, and a project to try on them."""

import os
import shutil

import pytest
from bench import Trial, copy_for, tiny_project
from project import Project

from slurm import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Two nodes without accounting, as many small clusters are."""
    yield from started(tmp_path_factory, has_accounting=False)


@pytest.fixture(scope="session")
def cluster_with_accounting(tmp_path_factory):
    """The same with slurmdbd and its database."""
    yield from started(tmp_path_factory, has_accounting=True)


def started(tmp_path_factory, has_accounting: bool):
    """A cluster for as long as it is needed; where there is no SLURM, tests skip on a laptop and fail in CI."""
    if reason := why_not(has_accounting):
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), has_accounting)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Project:
    """The tiny project with its data prepared and its graph made; to be copied."""
    project = tiny_project(tmp_path_factory.mktemp("tiny") / "template")
    for command in (["prepare", "--data", "fashion_mnist"], ["check"]):
        result = project.run("python", "-m", "pipeline", *command, "--scale", "demo")
        assert result.returncode == 0, result.stderr
    return project


@pytest.fixture(scope="session")
def undisturbed(template, tmp_path_factory) -> Project:
    """A copy in which everything has run on this machine, as `make demo` does it."""
    project = Project(shutil.copytree(template.root, tmp_path_factory.mktemp("local") / "clone", symlinks=True))
    result = project.snakemake("demo", "--no-hooks")
    assert result.returncode == 0, result.stdout + result.stderr
    return project


@pytest.fixture(scope="session")
def new_trial(template, cluster, tmp_path_factory):
    """Makes a trial of the study's first run, each in a copy of its own."""

    name = next(iter(template.read("results/demo/graph.json")["graph"]["runs"]))
    trials = []

    def make(on: Cluster = cluster, is_cold: bool = False) -> Trial:
        trials.append(Trial(copy_for(on, template, tmp_path_factory.mktemp("trial") / "clone"), on, name))
        if is_cold:
            trials[-1].cool()
        return trials[-1]

    yield make
    for trial in trials:
        trial.end()
