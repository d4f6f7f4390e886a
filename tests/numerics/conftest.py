"""The small data set of the tests of evaluations, written and prepared once."""

import pytest
from small_set import make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("published"), tmp_path_factory.mktemp("results"))
