"""`python -m pipeline download`, from a server on this machine."""

import shutil

import pytest
import yaml
from file_server import file_server
from published_archives import served_tiny

from pipeline.cli import main
from pipeline.core.config import CONFIGS, read_yaml
from pipeline.site import load_site

pytestmark = pytest.mark.slow


@pytest.fixture
def server():
    with file_server() as found:
        yield found


@pytest.fixture
def command(server, tmp_path, monkeypatch):
    """The command, with a small Tiny ImageNet in the configs; the site's data root is tmp_path/sets."""
    configs = tmp_path / "configs"
    shutil.copytree(CONFIGS / "data", configs / "data")
    sets, tiny = read_yaml(CONFIGS / "published_sets.yaml"), served_tiny(server, tmp_path / "published")
    write_yaml(configs / "published_sets.yaml", sets | {"tiny_imagenet": tiny.model_dump(mode="json")})
    data = read_yaml(CONFIGS / "data/tiny_imagenet.yaml")["data"]
    write_yaml(configs / "data/tiny_imagenet.yaml", {"data": data | {"num_classes": 3, "num_train": 6, "num_val": 3}})
    write_yaml(tmp_path / "mine.yaml", {"data_root": str(tmp_path / "sets")})
    for module in ("pipeline.published_sets.sets", "pipeline.download.obtain"):
        monkeypatch.setattr(f"{module}.CONFIGS", configs)
    monkeypatch.setenv("PATCHWORK_SITE", "restored afterwards")
    site = ["--site", str(tmp_path / "mine.yaml")]
    return lambda *arguments: main(["download", *arguments, *site])


def write_yaml(path, content):
    path.write_text(yaml.safe_dump(content))


def test_download__to_the_data_root__is_found_by_its_name_from_then_on(command, server, tmp_path, capsys):
    assert command("tiny_imagenet", "--mirror", server.address) == 0
    out = capsys.readouterr().out
    assert "licence: cut from ImageNet" in out and f"to: {tmp_path}/sets/tiny-imagenet-200" in out
    assert "downloaded and unpacked: it has the expected layout and counts" in out and "next:" not in out
    assert load_site().data == {"tiny_imagenet": tmp_path / "sets/tiny-imagenet-200"}
    server.files.clear()
    assert command("tiny_imagenet") == 0
    assert "already there" in capsys.readouterr().out


def test_download__to_another_folder__names_it_in_the_site_file_that_is_given(command, server, tmp_path, capsys):
    assert command("tiny_imagenet", "--to", str(tmp_path / "else"), "--mirror", server.address) == 0
    assert "site: wrote data.tiny_imagenet" in capsys.readouterr().out
    assert load_site().data["tiny_imagenet"] == tmp_path / "else/tiny-imagenet-200"


def test_download__without_a_site_file__prints_the_line_for_it(command, server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATCHWORK_SITE", str(tmp_path / "mine.yaml"))
    assert main(["download", "tiny_imagenet", "--to", str(tmp_path / "else"), "--mirror", server.address]) == 0
    assert f"`data: {{tiny_imagenet: {tmp_path}/else/tiny-imagenet-200}}`" in capsys.readouterr().out
    assert load_site().data_root == tmp_path / "sets"


def test_download__of_a_set_that_the_site_file_names__goes_there(command, server, tmp_path, capsys):
    write_yaml(tmp_path / "mine.yaml", {"data": {"tiny_imagenet": str(tmp_path / "named/here")}})
    assert command("tiny_imagenet", "--mirror", server.address) == 0
    assert (tmp_path / "named/here/wnids.txt").is_file() and "next:" not in capsys.readouterr().out


def test_download__without_a_name__lists_every_set_with_its_size_and_place(command, server, tmp_path, capsys):
    command("tiny_imagenet", "--mirror", server.address)
    capsys.readouterr()
    assert command() == 0
    header, *others = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "bytes", "unpacked", "on", "this", "site", "licence"]
    tiny, imagenet = (
        next(line for line in others if line.startswith(name)) for name in ("tiny_imagenet ", "imagenet1k")
    )
    assert f"{tmp_path}/sets/tiny-imagenet-200  cut from ImageNet" in tiny
    assert "154,642,401,280" in imagenet and "by hand: https://image-net.org/download.php" in imagenet


def test_download__of_a_set_that_needs_an_account_or_is_not_known__is_one_message(command, capsys):
    assert command("imagenet1k") == 1
    assert "cannot be downloaded for you" in capsys.readouterr().err
    assert command("tiny_imagnet") == 1
    assert "did you mean 'tiny_imagenet'" in capsys.readouterr().err


def test_download__on_a_site_without_a_data_root__asks_for_a_folder(command, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("{}")
    assert command("tiny_imagenet") == 1
    assert "expected --to FOLDER, or `data_root: FOLDER` in the site file" in capsys.readouterr().err
