"""What many GPUs ask for: each number against its own arithmetic."""

from dataclasses import replace

import pytest
import torch

from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.engine.loop import build_method
from pipeline.engine.run import parse_run
from pipeline.plan.scaling import Files, Need, gradient_bytes, needs_of, needs_table, ring_bytes

FILES = Files(mean_bytes=100_000.0, decoded_per_s=500.0, index_bytes=30.0)
NEED = Need("mae", "vit_b", 64, 4096, 16, 4000.0, "a test", 320_000_000, 10**9, 1_280_000, FILES)


def sums_around_a_ring(parts):
    """Each process sends one chunk to the next, n - 1 times to sum and n - 1 times to share; returns numbers sent."""
    size = len(parts)
    chunks = [list(part.chunk(size)) for part in parts]
    sent = 0
    for turn in range(2 * (size - 1)):
        moved = [(rank, (rank - turn) % size, chunks[rank][(rank - turn) % size].clone()) for rank in range(size)]
        for rank, at, chunk in moved:
            target = chunks[(rank + 1) % size]
            target[at] = target[at] + chunk if turn < size - 1 else chunk
        sent += moved[0][2].numel()
    assert all(torch.equal(torch.cat(own), sum(parts)) for own in chunks)
    return sent


@pytest.mark.parametrize("size", [2, 3, 8])
def test_ring__each_process__sends_what_a_ring_sends(size):
    parts = [torch.arange(24.0) * (rank + 1) for rank in range(size)]
    assert ring_bytes(4 * 24, size) == pytest.approx(4 * sums_around_a_ring(parts))
    assert ring_bytes(100, 1) == 0


def test_need__step_network_and_files__follow_from_batch_and_rate():
    assert NEED.step_s == pytest.approx(64 / 4000)
    assert NEED.node_bytes_per_s == pytest.approx(2 * 63 / 64 * 320e6 / (0.016 * 2 / 3))
    assert (NEED.files_per_s, NEED.read_bytes_per_s) == (256_000, pytest.approx(25.6e9))
    assert (NEED.cores, NEED.epoch_s) == (8, 5)
    assert NEED.report()["step_s"] == NEED.step_s and NEED.report()["files"]["mean_bytes"] == 100_000


def config():
    files = [read_yaml(CONFIGS / kind / f"{name}.yaml") for kind, name in (("model", "vit_demo"), ("method", "mae"))]
    data = read_yaml(CONFIGS / "data" / "fashion_mnist.yaml")
    optim = {"optim": {"epochs": 1, "global_batch": 40, "micro_batch": 10, "base_lr": 1e-3}}
    return {**files[0], **files[1], **data, **optim}


@pytest.mark.slow
def test_gradients__counted_without_numbers__are_those_of_a_real_model():
    run = parse_run(Layers(("a test", config())))
    trained = [p for p in build_method(run).parameters() if p.requires_grad]
    assert gradient_bytes(run) == 4 * sum(p.numel() for p in trained)


@pytest.mark.slow
def test_needs__of_a_run__knows_how_many_gpus_its_micro_batches_allow(tmp_path, monkeypatch):
    for name in ("OWN_BENCHMARK", "OWN_LOOPS", "H200_LOOPS"):  # none, whatever was measured here
        monkeypatch.setattr(f"pipeline.plan.speed.{name}", tmp_path / name)
    (found,) = needs_of(config(), FILES, [8])
    assert (found.most_gpus, found.global_batch, found.gpus) == (4, 40, 8)
    # The model is so small that the host binds: five images a pass, a hundred passes a second.
    assert found.images_per_s == pytest.approx(500) and "passes a second" in found.source
    # Weights and two moments, and what is not trained.
    assert 3 * found.gradient_bytes <= found.checkpoint_bytes < 3.5 * found.gradient_bytes


def test_table__of_needs__says_how_many_gpus_would_do_and_where_speeds_are_from():
    # A node of 8 needs no network; 16 send 1.9 times the bytes in the 43 ms of their backward pass, 32 in half of it.
    needs = [replace(NEED, gpus=count) for count in (8, 16, 32, 64)]
    *lines, empty, source = needs_table([needs]).splitlines()
    assert {line.count("|") for line in lines} == {12}
    assert lines[-1] == "| mae vit_b | 16.0 | 320 | 59 | 256,000 | 1.00 | 16 | 32 | 8 | 25.6 | 8.0 |"
    assert (empty, source) == ("", "mae vit_b: a test")
    assert needs_table([]) == ""


def test_table__no_count_small_enough__says_so():
    fast = replace(NEED, images_per_s=50_000.0, gpus=8)
    assert "| 8 | below 8 |" in needs_table([[fast]])
