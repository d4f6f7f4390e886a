"""Real SLURM clusters, started when the first test asks for one."""

import os

import pytest

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
