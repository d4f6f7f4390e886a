"""A checkpoint is there as a whole or not at all; a damaged one is noticed and the one before it used."""

import io
import logging
import os
import resource
from contextlib import contextmanager

import pytest
import torch
from disks import small_disk

from pipeline.core.errors import CheckpointError, PatchworkError
from pipeline.engine import checkpoint
from pipeline.engine.checkpoint import Checkpoints

MEGABYTE = 2**20


def state(step, num_values=1000):
    values = torch.full((num_values,), float(step))
    return {"step": step, "method": {"weight": values}, "best": 1.5, "betas": (0.9, 0.999), "ema": None}


def saved(folder, *steps):
    """Checkpoints with these steps saved in this order, and their paths."""
    checkpoints = Checkpoints(folder)
    return checkpoints, [checkpoints.save(step, state(step)) for step in steps]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


DAMAGE = [truncate, flip_a_bit, empty]


def test_latest__no_folder__is_none(tmp_path):
    assert Checkpoints(tmp_path / "state").latest() is None


def test_latest__after_saving__gives_back_every_value(tmp_path):
    checkpoints, _ = saved(tmp_path / "state", 7)
    found = checkpoints.latest()
    assert torch.equal(found.pop("method")["weight"], torch.full((1000,), 7.0))
    assert found == {"step": 7, "best": 1.5, "betas": (0.9, 0.999), "ema": None}


def test_save__several__keeps_the_last_two(tmp_path):
    checkpoints, paths = saved(tmp_path, 9, 10, 100, 1000)
    assert sorted(tmp_path.iterdir()) == sorted(paths[-2:])
    assert checkpoints.latest()["step"] == 1000


def test_save__same_step_again__is_one_file(tmp_path):
    _, paths = saved(tmp_path, 5, 5)
    assert paths[0] == paths[1]
    assert list(tmp_path.iterdir()) == paths[:1]


def test_save__same_step_with_another_content__is_the_new_one_next_to_an_earlier_step(tmp_path):
    checkpoints, (earlier, _) = saved(tmp_path, 4, 5)
    new = checkpoints.save(5, state(5) | {"best": 2.5})
    assert sorted(tmp_path.iterdir()) == [earlier, new]
    assert checkpoints.latest()["best"] == 2.5


@pytest.mark.parametrize("damage", DAMAGE)
def test_latest__newest_damaged__uses_the_one_before_and_warns(tmp_path, caplog, damage):
    checkpoints, paths = saved(tmp_path, 10, 20)
    damage(paths[1])
    with caplog.at_level(logging.WARNING):
        assert checkpoints.latest()["step"] == 10
    assert f"{paths[1].name} is damaged (its checksum differs): using the one before it" in caplog.text


@pytest.mark.parametrize("damage", DAMAGE)
def test_latest__all_damaged__is_none(tmp_path, caplog, damage):
    checkpoints, paths = saved(tmp_path, 10, 20)
    for path in paths:
        damage(path)
    assert checkpoints.latest() is None
    first, second = [record.getMessage() for record in caplog.records]
    assert first.endswith("using the one before it")
    assert second.endswith("there is no other, so training starts from the beginning")


def test_save__after_all_were_damaged__the_new_one_stays(tmp_path):
    checkpoints, paths = saved(tmp_path, 90, 100)
    for path in paths:
        truncate(path)
    checkpoints.save(1, state(1))
    assert checkpoints.latest()["step"] == 1
    checkpoints.save(2, state(2))
    assert checkpoints.latest()["step"] == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_save__after_falling_back__keeps_two_intact_ones(tmp_path, caplog):
    checkpoints, paths = saved(tmp_path, 10, 20)
    flip_a_bit(paths[1])
    path = checkpoints.save(11, state(11))
    caplog.clear()
    truncate(path)
    assert checkpoints.latest()["step"] == 10
    assert len(caplog.records) == 1


def test_latest__stray_temporary_and_foreign_files__are_ignored(tmp_path):
    checkpoints, _ = saved(tmp_path, 10)
    (tmp_path / f".step-000000020-{'0' * 16}.pt.123.tmp").write_bytes(b"half")
    (tmp_path / "step-000000030.pt").write_bytes(b"not ours")
    assert checkpoints.latest()["step"] == 10


def test_save__temporary_file_of_a_killed_process__is_removed(tmp_path):
    checkpoints, _ = saved(tmp_path, 10)
    stray = tmp_path / f".step-000000020-{'0' * 16}.pt.123.tmp"
    stray.write_bytes(b"half")
    checkpoints.save(20, state(20))
    assert not stray.exists()


@contextmanager
def limited_files():
    """No file may grow beyond a megabyte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["file size limit", "full disk"])
def test_save__no_space__says_so_keeps_the_old_one_and_leaves_no_rest(tmp_path, kind):
    with limited_files() if kind == "file size limit" else small_disk(tmp_path):
        checkpoints, paths = saved(tmp_path, 10)
        with pytest.raises(PatchworkError, match=r"could not write .*step-000000020.*(No space|too large).*free space"):
            checkpoints.save(20, state(20, num_values=MEGABYTE))
        assert list(tmp_path.iterdir()) == paths
        assert checkpoints.latest()["step"] == 10


class Bomb:
    """Unpickling it would run code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_latest__pickle_with_code_in_it__is_refused_and_not_run(tmp_path):
    marker = tmp_path / "code_has_run"
    buffer = io.BytesIO()
    torch.save({"step": 1, "method": Bomb(marker)}, buffer)
    name = f"step-000000001-{checkpoint._digest(buffer.getvalue())}.pt"
    (tmp_path / name).write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointError, match=f"{name}.*delete it"):
        Checkpoints(tmp_path).latest()
    assert not marker.exists()
