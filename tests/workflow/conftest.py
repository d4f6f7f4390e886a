"""Copies of the whole project that a test may change: as cloned, and with everything run on a few hundred images."""

from pathlib import Path

import pytest
from project import Project, copy_project, made_once
from small import finish_small_project
from warm_python import with_executable


@pytest.fixture
def clean_project(tmp_path) -> Project:
    """As cloned: no data, nothing run."""
    return copy_project(tmp_path / "clone")


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """`clone`: the small project after `snakemake demo`; `interrupted.json`: the runs that were cut short in it."""
    return made_once(tmp_path_factory, "finished", finish_small_project)


@pytest.fixture(scope="module")
def done(finished, tmp_path_factory) -> Project:
    """A copy of the finished small project for the tests of one file, which may change it."""
    project = Project(finished / "clone").copy_to(tmp_path_factory.mktemp("done") / "clone")
    project.env = with_executable(project.env)
    return project
