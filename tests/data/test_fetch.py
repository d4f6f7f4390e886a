"""Downloading one file from a server on this machine: interrupted, changed, damaged, missing."""

import hashlib
import random
import socket

import pytest
from disks import small_disk
from file_server import file_server
from layouts import message_of

from pipeline.core.errors import PatchworkError
from pipeline.download.fetch import Download, check_digest, fetch

CONTENT = random.Random(0).randbytes(300_000)


@pytest.fixture
def server():
    with file_server() as found:
        found.files["a.zip"] = CONTENT
        yield found


def received(server, folder):
    download = Download(f"{server.address}/a.zip", folder / "a.zip", len(CONTENT), "get it by hand")
    fetch(download, progress=False, pause_s=0)
    return (folder / "a.zip").read_bytes()


def test_fetch__undisturbed__has_the_file_and_leaves_nothing_else(server, tmp_path):
    assert received(server, tmp_path) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_fetch__connection_cut_twice__continues_and_receives_nothing_twice(server, tmp_path):
    server.cuts = [100_000, 50_000]
    assert received(server, tmp_path) == CONTENT
    assert [wanted for _, wanted in server.asked] == ["", "bytes=100000-", "bytes=150000-"]
    assert server.sent == len(CONTENT)


def test_fetch__started_again_after_a_kill__continues_the_partial_file(server, tmp_path):
    server.cuts = [120_000] + [0] * 5
    message = message_of(received, server, tmp_path)
    assert "120,000 of 300,000 bytes" in message and "Run the same command later" in message
    assert (tmp_path / "a.zip.part").stat().st_size == 120_000 and not (tmp_path / "a.zip").exists()
    assert received(server, tmp_path) == CONTENT
    assert server.sent == len(CONTENT)


@pytest.mark.parametrize("has_etags", [True, False])
def test_fetch__server_without_ranges__starts_over(server, tmp_path, has_etags):
    server.has_ranges, server.has_etags, server.cuts = False, has_etags, [100_000]
    assert received(server, tmp_path) == CONTENT
    assert server.sent == 100_000 + len(CONTENT)


def test_fetch__connection_cut_again_and_again__continues_as_long_as_bytes_come(server, tmp_path):
    server.cuts = [20_000] * 12  # more than a download may fail in a row
    assert received(server, tmp_path) == CONTENT
    assert server.sent == len(CONTENT) and len(server.asked) == 13


def test_fetch__server_with_weak_etags__continues_by_the_date_of_the_file(server, tmp_path):
    server.has_weak_etags, server.cuts = True, [100_000]
    assert received(server, tmp_path) == CONTENT
    assert server.sent == len(CONTENT)


@pytest.mark.parametrize("has_weak_etags", [False, True])
def test_fetch__file_changed_between_two_parts__is_never_a_mixture(server, tmp_path, has_weak_etags):
    server.has_weak_etags, server.cuts = has_weak_etags, [100_000] + [0] * 5
    message_of(received, server, tmp_path)
    server.files["a.zip"] = CONTENT[::-1]
    assert received(server, tmp_path) == CONTENT[::-1]


def test_fetch__killed_between_the_last_byte_and_the_rename__is_complete(server, tmp_path):
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    assert received(server, tmp_path) == CONTENT
    assert server.sent == 0


def test_fetch__partial_file_longer_than_the_file__starts_over(server, tmp_path):
    (tmp_path / "a.zip.part").write_bytes(CONTENT + b"more")
    assert received(server, tmp_path) == CONTENT


def test_fetch__server_busy_for_a_moment__tries_again(server, tmp_path):
    server.failures = [503, 429]
    assert received(server, tmp_path) == CONTENT


def test_fetch__server_busy_all_the_time__says_so_and_keeps_what_there_is(server, tmp_path):
    server.failures, server.cuts = [503] * 4, []
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:1000])
    server.failures.append(500)
    message = message_of(received, server, tmp_path)
    assert "answered 500" in message and "1,000 bytes that are here" in message
    assert (tmp_path / "a.zip.part").read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("status", [404, 403])
def test_fetch__file_moved_or_forbidden__names_the_address_and_the_way_out_at_once(server, tmp_path, status):
    server.failures = [status]
    message = message_of(received, server, tmp_path)
    assert f"{server.address}/a.zip: the server answered {status}" in message and "get it by hand" in message
    assert len(server.asked) == 1


def test_fetch__page_of_another_size__is_refused_before_it_is_received(server, tmp_path):
    server.files["a.zip"] = b"<html>please log in</html>"
    message = message_of(received, server, tmp_path)
    assert "offers 26 bytes, expected 300,000" in message
    assert not list(tmp_path.iterdir())


def test_fetch__nobody_listens__says_that_there_is_no_network_at_once(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/a.zip"
        message = message_of(fetch, Download(address, tmp_path / "a.zip", 5, "get it by hand"), False, 60)
    assert "cannot be reached from this machine" in message and "https_proxy" in message and "login node" in message


def test_fetch__nobody_answers__does_not_wait_several_times(tmp_path, monkeypatch):
    """A firewall that drops packets: here, a server that accepts and says nothing."""
    monkeypatch.setattr("pipeline.download.fetch.TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/a.zip"
        message = message_of(fetch, Download(address, tmp_path / "a.zip", 5, "get it by hand"), False, 60)
    assert "cannot be reached from this machine (timed out)" in message


def test_fetch__behind_a_proxy__asks_the_proxy(server, tmp_path, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.address)
    server.files["http://sets.example/a.zip"] = CONTENT
    fetch(Download("http://sets.example/a.zip", tmp_path / "a.zip", len(CONTENT), ""), progress=False, pause_s=0)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_fetch__disk_full__says_so_and_keeps_what_was_received(server, tmp_path):
    with small_disk(tmp_path, "200k"):
        with pytest.raises(PatchworkError, match=r"a\.zip\.part: No space left on device; free space"):
            received(server, tmp_path)
        assert (tmp_path / "a.zip.part").stat().st_size > 100_000


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256"])
def test_check_digest__of_the_right_file__keeps_it(tmp_path, kind):
    path = tmp_path / "a.zip"
    path.write_bytes(CONTENT)
    check_digest(path, f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}", "", progress=False)
    assert path.exists()


def test_check_digest__of_another_file__deletes_it_and_names_both(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(CONTENT)
    message = message_of(check_digest, path, "md5:0", "get it by hand", False)
    assert f"found md5 {hashlib.md5(CONTENT).hexdigest()}, expected 0" in message and "get it by hand" in message
    assert not path.exists()
