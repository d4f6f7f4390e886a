"""The site file: what is wrong with one is said, and folders are found from anywhere."""

import os
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.core.config import CONFIGS, names
from pipeline.core.errors import ConfigError
from pipeline.site import load_site


def test_site__mistyped_key__names_file_key_and_nearest(project, capsys):
    project.edit("site/local.yaml", "checkpoint_s", "checkpoints_s")

    assert main(["train", "--run", "any"]) == 1
    assert capsys.readouterr().err.startswith(
        "ConfigError: configs/site/local.yaml: checkpoints_s: unknown key; did you mean 'checkpoint_s'?"
    )


def test_site__named_by_the_environment_but_not_there__names_the_nearest(project, monkeypatch):
    monkeypatch.setenv("PATCHWORK_SITE", "slrum")

    with pytest.raises(ConfigError, match=r"configs/site/slrum\.yaml: no such file; did you mean 'slurm'\?") as caught:
        load_site()
    assert "PATCHWORK_SITE" in str(caught.value)


def test_site__path_of_a_file_that_is_not_there__says_how_a_site_is_named_and_lists_no_others(monkeypatch, tmp_path):
    monkeypatch.setenv("PATCHWORK_SITE", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file; the site is named by --site, ") as caught:
        load_site()
    assert "valid:" not in str(caught.value)


@pytest.mark.parametrize("site", names(CONFIGS / "site"))
def test_site__every_one_we_ship__is_sound(site, monkeypatch):
    monkeypatch.setenv("PATCHWORK_SITE", site)

    assert load_site().processes >= 1


def test_site__relative_and_home_folders__become_absolute(project, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("SCRATCH", "/scratch")
    project.edit("site/local.yaml", "data: {}", "data: {a: images, b: ~/images, c: $SCRATCH/images}")

    assert load_site().data == {
        "a": project.root / "images",
        "b": Path("/home/someone/images"),
        "c": Path("/scratch/images"),
    }


def test_site__that_names_a_folder_for_locks__has_it_used_in_this_process_and_those_it_starts(project, monkeypatch):
    monkeypatch.setenv("PATCHWORK_LOCKS", "/restored/afterwards")
    project.edit("site/local.yaml", "data: {}", "data: {}\nlocks: $HOME/locks")
    monkeypatch.setenv("HOME", "/home/someone")
    assert load_site().locks == Path("/home/someone/locks")
    assert os.environ["PATCHWORK_LOCKS"] == "/home/someone/locks"
