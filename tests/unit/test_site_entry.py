"""Adding the folder of a data set to a site file: everything else in it stays as it is written."""

from pathlib import Path

import pytest
import yaml

from pipeline.core.config import CONFIGS
from pipeline.core.errors import ConfigError
from pipeline.data.describe import site_entry
from pipeline.data.describe.site_entry import add_data_folder, is_named

FOLDER = Path("/data/my photos, 2024")
QUOTED = "mine: '/data/my photos, 2024'"


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site.yaml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("data: {}\n# a: /b\nthreads: 2\n", f"data: {{{QUOTED}}}\n# a: /b\nthreads: 2\n"),
        ("data: {a: /b} # here\ndevice: cpu\n", f"data: {{a: /b, {QUOTED}}} # here\ndevice: cpu\n"),
        (
            "# mine\ndata:\n  a: /b  # disk\n\nthreads: 2\n",
            f"# mine\ndata:\n  a: /b  # disk\n  {QUOTED}\n\nthreads: 2\n",
        ),
        ("data:\n    a: /b", f"data:\n    a: /b\n    {QUOTED}"),
        ("data:\nthreads: 2\n", f"data: {{{QUOTED}}}\nthreads: 2\n"),
        ("slurm: {options: {time: 24:00:00}}\ndata: {}", f"slurm: {{options: {{time: 24:00:00}}}}\ndata: {{{QUOTED}}}"),
        ("threads: 2 # of many\n", f"threads: 2 # of many\ndata: {{{QUOTED}}}\n"),
    ],
)
def test_add__any_way_to_write_data__changes_nothing_else(site, before, after):
    site.write_text(before)
    assert add_data_folder(site, "mine", FOLDER, force=False)
    assert site.read_text() == after
    assert is_named(site, "mine", FOLDER) and not is_named(site, "other", FOLDER)
    assert not add_data_folder(site, "mine", FOLDER, force=False)


def test_add__new_file__is_a_copy_of_local_with_its_comments(site):
    assert add_data_folder(site, "mine", FOLDER, force=False)
    local = (CONFIGS / site_entry.TEMPLATE).read_text()
    assert site.read_text() == local.replace("data: {}", f"data: {{{QUOTED}}}")


def test_add__other_folder_under_this_name__is_replaced_with_force_only(site):
    site.write_text("data: {a: /b, mine: /old, c: /d} # all\n")
    with pytest.raises(ConfigError, match=r"data\.mine is /old, and the folder is /data/my photos, 2024; use --force"):
        add_data_folder(site, "mine", FOLDER, force=False)
    assert "/old" in site.read_text()
    assert add_data_folder(site, "mine", FOLDER, force=True)
    assert site.read_text() == f"data: {{a: /b, {QUOTED}, c: /d}} # all\n"


def test_add__folder_written_with_a_tilde__is_the_same(site, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    site.write_text("data: {mine: ~/photos}\n")
    assert not add_data_folder(site, "mine", Path("/home/someone/photos"), force=False)


@pytest.mark.parametrize("text", ["data: [a]\n", "data: &x {a: /b}\nother: *x\n", "data: {a: /b,}\n"])
def test_add__data_that_cannot_be_edited__is_refused_or_edited_rightly(site, text):
    site.write_text(text)
    try:
        add_data_folder(site, "mine", FOLDER, force=False)
    except ConfigError as error:
        assert "data" in str(error) and site.read_text() == text
    else:
        assert yaml.safe_load(site.read_text())["data"] == {"a": "/b", "mine": str(FOLDER)}
