"""Running means, and a metrics file that holds every line once however often the run was interrupted."""

import json
import resource

import pytest
import torch
from peers import peers
from tiny_runs import ALONE

from pipeline.core.errors import CheckpointError, PatchworkError
from pipeline.engine.meters import Meters, MetricsFile, Stopwatch
from pipeline.engine.parallel.distributed import World


def test_meters__values_since_last_reading__give_their_mean():
    meters = Meters(ALONE)
    for value in (1.0, 2.0, 6.0):
        meters.add(loss=torch.tensor(value))
    meters.add(grad_norm=torch.tensor(4.0, dtype=torch.bfloat16))
    assert meters.read() == {"grad_norm": 4.0, "loss": 3.0}
    meters.add(loss=torch.tensor(5.0))
    assert meters.read() == {"loss": 5.0}


def test_meters__value_with_gradient__is_kept_without_its_graph():
    meters = Meters(ALONE)
    meters.add(loss=torch.ones((), requires_grad=True) * 2)
    assert not meters.state_dict()["sums"]["loss"].requires_grad


def test_meters__restored_in_mid_interval__read_as_if_uninterrupted():
    values = torch.rand(7, generator=torch.Generator().manual_seed(0))
    whole, first, second = Meters(ALONE), Meters(ALONE), Meters(ALONE)
    for value in values:
        whole.add(loss=value)
    for value in values[:3]:
        first.add(loss=value)
    second.load_state_dict(first.state_dict())
    for value in values[3:]:
        second.add(loss=value)
    assert second.read() == whole.read()


@pytest.mark.parametrize("size_after", [1, 2, 3])
def test_meters__of_two_processes_restored_in_mid_interval__read_as_if_uninterrupted(size_after):
    values = torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    meters = [Meters(world) for world in peers(2)]
    for each, own in zip(meters, values, strict=True):
        for value in own[:3]:
            each.add(loss=value, norm=2 * value)
    meters[0].state_dict()
    state, found = meters[1].state_dict(), []
    assert {name: tuple(sums.shape) for name, sums in state["sums"].items()} == {"loss": (2,), "norm": (2,)}
    for rank in range(size_after):
        after = Meters(World(rank, size_after, torch.device("cpu")))
        after.load_state_dict(state)
        own = values[rank, 3:] if size_after == 2 else values[:, 3:].mean(dim=0)
        for value in own:
            after.add(loss=value, norm=2 * value)
        found.append([value.item() for value in after._totals().values()])
    if size_after == 2:  # to the last bit
        assert [loss for loss, _ in found] == [sum_in_turn(own) for own in values]
    mean = values.sum(dim=1).mean().item()
    assert torch.tensor(found).mean(dim=0).tolist() == pytest.approx([mean, 2 * mean])


def sum_in_turn(values):
    total = torch.zeros(())
    for value in values:
        total = total + value
    return total.item()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_file__fresh_start__drops_what_was_there(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    MetricsFile(path, 0).append(step=1)
    MetricsFile(path, 0).append(step=2)
    assert lines(path) == [{"step": 2}]


def test_metrics_file__no_size_given__keeps_everything(tmp_path):
    path = tmp_path / "timing.jsonl"
    MetricsFile(path).append(step=1)
    MetricsFile(path).append(step=2)
    assert lines(path) == [{"step": 1}, {"step": 2}]


def test_metrics_file__resumed__is_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.append(step=1)
    kept = file.sync()
    file.append(step=2)
    file.append(step=3)
    MetricsFile(path, kept).append(step=2)
    assert lines(path) == [{"step": 1}, {"step": 2}]


def test_metrics_file__linked_to_a_read_only_cache__leaves_the_cache_unchanged(tmp_path):
    path, cached = tmp_path / "metrics.jsonl", tmp_path / "cached"
    cached.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    cached.chmod(0o444)
    path.hardlink_to(cached)
    MetricsFile(path, 12).append(step=3)
    assert path.read_bytes() == b'{"step": 1}\n{"step": 3}\n'
    assert cached.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_metrics_file__half_a_line_at_its_end__is_cut_away(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.append(step=1)
    kept = file.sync()
    with path.open("ab") as other:
        other.write(b'{"step": 2, "lo')
    MetricsFile(path, kept).append(step=2)
    assert lines(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("is_there", [True, False], ids=["cut", "deleted"])
def test_metrics_file__shorter_than_at_the_checkpoint__is_refused(tmp_path, is_there):
    path = tmp_path / "metrics.jsonl"
    if is_there:
        path.write_bytes(b'{"step": 1}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl has (12|0) bytes.*had 40;.*restore it, or delete"):
        MetricsFile(path, 40)


def test_metrics_file__numbers_that_json_lacks__become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append(step=1, loss=float("nan"), grad_norm=float("inf"), lr=0.5, skipped=2)
    assert lines(path) == [{"step": 1, "loss": None, "grad_norm": None, "lr": 0.5, "skipped": 2}]


def test_metrics_file__full_disk__says_so(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(PatchworkError, match=r"could not write .*metrics.jsonl.*free space"):
            for step in range(50):
                file.append(step=step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_stopwatch__waiting_half_of_the_time__says_so(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    stopwatch = Stopwatch()
    since, now = now, now + 2
    stopwatch.fetched(80, since)
    now += 2
    assert stopwatch.read(num_processes=1) == {"images_per_s": 20.0, "data_wait": 0.5}
    stopwatch.fetched(80, now)
    now += 1
    assert stopwatch.read(num_processes=2) == {"images_per_s": 160.0, "data_wait": 0.0}
