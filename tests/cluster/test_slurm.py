"""The test cluster is a SLURM like any other: nodes, GPUs, preemption, accounting."""

import time

import pytest

pytestmark = pytest.mark.slow


def test_cluster__two_nodes__run_a_job_with_gpus_on_each(cluster):
    command = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    lines = cluster.run("srun", "-N2", "--ntasks-per-node=1", "--gres=gpu:2", "sh", "-c", command)
    assert sorted(lines.splitlines()) == ["n1 0,1", "n2 0,1"]


def test_cluster__with_accounting__remembers_a_job(cluster_with_accounting):
    cluster_with_accounting.run("srun", "--job-name=remembered", "true")
    listed, deadline = "", time.monotonic() + 30
    while "remembered|COMPLETED" not in listed and time.monotonic() < deadline:  # records are written a moment later
        time.sleep(0.2)
        listed = cluster_with_accounting.run("sacct", "-X", "--noheader", "--format=JobName,State", "--parsable2")
    assert "remembered|COMPLETED" in listed.splitlines()
