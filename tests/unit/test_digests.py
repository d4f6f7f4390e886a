"""Digests of files, kept for the next process."""

import os
import time

from pipeline.core.files import Digests, digest, digest_by_stat


def test_digests__kept_for_the_next_process__are_read_again_only_when_a_file_changed(tmp_path, monkeypatch):
    path, kept = tmp_path / "weights", tmp_path / "digests.json"
    path.write_text("one")
    first = Digests(kept)
    known = first.of(path)
    first.keep()
    monkeypatch.setattr("pipeline.core.files.digest", lambda path: "read")
    assert Digests(kept).of(path) == known and Digests().of(path) == "read"
    path.write_text("another")
    assert Digests(kept).of(path) == "read" and Digests(kept).of(tmp_path / "none") is None
    kept.write_text("{")
    assert Digests(kept).of(path) == "read"


def test_digests__file_replaced_by_one_of_the_same_size_and_time__is_read_again(tmp_path):
    path, other, found = tmp_path / "weights", tmp_path / "other", Digests()
    for each, text in ((path, "one"), (other, "two")):
        each.write_text(text)
        os.utime(each, ns=(0, 0))
    before = found.of(path), digest_by_stat(path)
    other.replace(path)
    assert found.of(path) == digest_by_stat(path) == digest(path) != before[0] == before[1]
    time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
    path.write_text("six")  # in place, with the time set back
    os.utime(path, ns=(0, 0))
    assert found.of(path) == digest_by_stat(path) == digest(path)
