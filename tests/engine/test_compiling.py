"""Where compiled code is kept between runs, asked of torch itself."""

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from pipeline.engine.compute.compiling import KEPT_IN, prepare_to_compile
from pipeline.results import compiled_folder
from pipeline.site import Site


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.setenv(KEPT_IN, "")  # so that it is restored, whatever a test sets
    monkeypatch.delenv(KEPT_IN)


def test_compiled__folder_of_the_site__is_where_torch_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    prepare_to_compile(Site(compile=True, compiled="$SCRATCH/compiled"))
    assert cache_dir() == str(tmp_path / "compiled")


def test_compiled__no_folder_named__is_in_the_results(monkeypatch, tmp_path):
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    prepare_to_compile(Site(compile=True))
    assert cache_dir() == str(compiled_folder()) == str(tmp_path / "compiled")


def test_compiled__variable_of_torch__wins(tmp_path, monkeypatch):
    monkeypatch.setenv(KEPT_IN, str(tmp_path / "given"))
    prepare_to_compile(Site(compile=True, compiled=str(tmp_path / "other")))
    assert cache_dir() == str(tmp_path / "given")


def test_compiled__site_that_compiles_nothing__is_unchanged(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    prepare_to_compile(Site(compiled=str(tmp_path / "other")))
    assert cache_dir() != str(tmp_path / "other")
