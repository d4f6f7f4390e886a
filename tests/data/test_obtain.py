"""Downloading published sets, as small archives in exactly the published layouts, from a server on this machine."""

import io
import os
import stat
import zipfile

import pytest
from file_server import file_server
from layouts import config, message_of
from published_archives import SETS, TOKENIZER, served, served_tiny

from pipeline.core.errors import ConfigError, LaunchError, PatchworkError
from pipeline.data.store import archives
from pipeline.download import obtain as obtaining
from pipeline.download.obtain import obtain, problems_of, refuse_by_hand, staging_of
from pipeline.published_sets.sets import RemoteFile, entry_of

LARGE = ("speech_commands", "imagenet_c")  # more than a fifth of a second


@pytest.fixture
def server():
    with file_server() as found:
        yield found


@pytest.fixture
def tiny(server, tmp_path):
    return served_tiny(server, tmp_path / "published")


def download(server, entry, target, cfg=None):
    obtain(cfg or config("tiny_imagenet"), entry, target, server.address, progress=False, pause_s=0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in SETS]
)
def test_obtain__each_set_in_its_published_archives__is_whole_and_leaves_nothing_else(server, tmp_path, name):
    make, cfg = SETS[name]
    (tmp_path / "published").mkdir()
    entry = served(server, name, make(tmp_path / "published"))
    target = tmp_path / "data" / entry.folder
    download(server, entry, target, cfg())
    assert problems_of(cfg(), target) == []
    assert [path.name for path in target.parent.iterdir()] == [entry.folder]
    assert [(target / file.name).read_bytes() for file in entry.files if not file.is_archive] == [
        TOKENIZER for file in entry.files if not file.is_archive
    ]


class Killed(BaseException):
    """What ends a process at once; no handler of errors sees it."""


class Killer:
    """Ends this process, as it were, at one of its changes of the file system."""

    CHANGES = ("rename", "replace", "mkdir", "unlink")

    def __init__(self, monkeypatch) -> None:
        self.remaining = 0  # 0: nobody is killed
        for name in self.CHANGES:
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, function):
        def call(*arguments, **options):
            self.remaining -= 1
            if self.remaining == 0:
                raise Killed
            return function(*arguments, **options)

        return call


@pytest.mark.slow
def test_obtain__killed_at_any_change_of_the_file_system__the_same_command_continues(
    server, tiny, tmp_path, monkeypatch
):
    killer = Killer(monkeypatch)
    for number in range(1, 200):
        target, killer.remaining = tmp_path / f"data-{number}" / "tiny", number
        try:
            download(server, tiny, target)
        except Killed:
            killer.remaining = 0
            download(server, tiny, target)
        else:
            break
        assert problems_of(config("tiny_imagenet"), target) == []
        assert [path.name for path in target.parent.iterdir()] == ["tiny"]
    assert 20 < number < 199


def test_obtain__interrupted_while_it_receives__continues_where_it_stopped(server, tiny, tmp_path):
    (content,) = server.files.values()
    server.cuts = [len(content) // 2] + [0] * 5
    assert "it continues there" in message_of(download, server, tiny, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()
    download(server, tiny, tmp_path / "tiny")
    assert server.sent == len(content)


def test_obtain__archive_with_another_checksum__keeps_nothing_of_it(server, tiny, tmp_path):
    (name, content), *_ = server.files.items()
    server.files[name] = content[:-1] + b"x"
    message = message_of(download, server, tiny, tmp_path / "tiny")
    assert "expected" in message and "it was deleted" in message and "--mirror" in message
    assert not (tmp_path / "tiny").exists() and not staging_of(tmp_path / "tiny").archive(tiny.files[0]).exists()
    server.files[name] = content
    download(server, tiny, tmp_path / "tiny")


def test_obtain__archive_saved_by_hand__is_verified_and_used_without_a_network(server, tiny, tmp_path):
    staging = staging_of(tmp_path / "tiny")
    (content,) = server.files.values()
    server.files.clear()
    message = message_of(download, server, tiny, tmp_path / "tiny")
    assert "answered 404" in message and str(staging.archive(tiny.files[0])) in message
    staging.archive(tiny.files[0]).write_bytes(content)
    download(server, tiny, tmp_path / "tiny")
    assert problems_of(config("tiny_imagenet"), tmp_path / "tiny") == []


def test_obtain__set_with_other_counts_than_its_config__is_kept_apart_until_the_config_is_right(server, tiny, tmp_path):
    message = message_of(download, server, tiny, tmp_path / "tiny", config("tiny_imagenet", num_val=4))
    assert "val: found 3 images, expected 4" in message and f"delete {staging_of(tmp_path / 'tiny').folder}" in message
    assert not (tmp_path / "tiny").exists()
    server.files.clear()
    download(server, tiny, tmp_path / "tiny")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["published", "tiny"]


def test_staging__space_that_is_needed__shrinks_with_what_is_there(server, tiny, tmp_path):
    (size,) = map(len, server.files.values())
    staging, entry = staging_of(tmp_path / "tiny"), tiny.model_copy(update={"unpacked": 1000})
    assert staging.needed(entry) == size + 1000
    staging.folder.mkdir()
    staging.archive(entry.files[0]).with_name("tiny-imagenet-200.zip.part").write_bytes(b"1234")
    assert staging.needed(entry) == size - 4 + 1000
    staging.placed(entry.files[0]).parent.mkdir()
    staging.placed(entry.files[0]).touch()
    assert staging.needed(entry) == 0


def test_obtain__folder_with_other_content__is_never_touched(server, tiny, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/thesis.txt").write_text("mine")
    assert "name another folder with --to" in message_of(download, server, tiny, tmp_path / "tiny")
    assert (tmp_path / "tiny/thesis.txt").read_text() == "mine" and server.asked == []


def test_obtain__set_that_lacks_a_single_file__gets_just_that_one(server, tmp_path):
    make, cfg = SETS["wikitext2"]
    (tmp_path / "published").mkdir()
    entry, target = served(server, "wikitext2", make(tmp_path / "published")), tmp_path / "wikitext-2"
    download(server, entry, target, cfg())
    single = next(file for file in entry.files if not file.is_archive)
    (target / single.name).unlink()
    server.asked.clear()
    download(server, entry, target, cfg())
    assert (target / single.name).read_bytes() == TOKENIZER and problems_of(cfg(), target) == []
    assert len(server.asked) == 1 and [path.name for path in sorted(tmp_path.iterdir())] == ["published", "wikitext-2"]


def test_obtain__disk_too_small__says_so_before_anything_is_received(server, tiny, tmp_path):
    huge = tiny.model_copy(update={"unpacked": 10**18})
    with pytest.raises(PatchworkError, match=r"free space, Tiny ImageNet \(download and unpacked\) needs"):
        download(server, huge, tmp_path / "tiny")
    assert server.asked == []


def test_obtain__two_at_once__the_second_one_is_refused(server, tiny, tmp_path, monkeypatch):
    def fetch_again(*arguments):
        with pytest.raises(LaunchError, match="another process is working on the download of Tiny ImageNet"):
            download(server, tiny, tmp_path / "tiny")
        return fetch(*arguments)

    fetch = obtaining.fetch
    monkeypatch.setattr(obtaining, "fetch", fetch_again)
    download(server, tiny, tmp_path / "tiny")


def zip_with(name: str, mode: int = 0) -> bytes:
    buffer, member = io.BytesIO(), zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, "data")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [zip_with("../escaped"), zip_with("/escaped"), zip_with("link", stat.S_IFLNK | 0o777), b"no zip at all"],
    ids=["parent", "absolute", "link", "damaged"],
)
def test_obtain__unsafe_or_damaged_archive__is_refused(server, tmp_path, content):
    entry = served(server, "tiny_imagenet", {"tiny-imagenet-200.zip": content})
    message = message_of(download, server, entry, tmp_path / "data/tiny")
    assert "damaged or unsafe archive" in message
    assert not [*tmp_path.rglob("escaped"), *tmp_path.rglob("link")]


def test_extract__zip_with_the_files_of_macos__leaves_them_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("snli_1.0/a.jsonl", "{}")
        archive.writestr("__MACOSX/snli_1.0/._a.jsonl", "")
    archives.extract(tmp_path / "a.zip", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["snli_1.0"]


def test_refuse_by_hand__says_where_to_get_it_and_what_it_costs():
    with pytest.raises(ConfigError, match=r"account is needed") as caught:
        refuse_by_hand("imagenet1k", entry_of("imagenet1k"))
    assert "147,897,477,120 bytes" in str(caught.value) and "https://image-net.org/download.php" in str(caught.value)


def test_remote_file__name_that_leads_out_of_the_folder__is_refused():
    with pytest.raises(ValueError, match="inside the set's folder"):
        RemoteFile(name="../a.zip", size=1)
