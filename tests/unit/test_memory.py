"""A GPU that is out of memory: what the user reads of what torch raises."""

import os
from types import SimpleNamespace

import pytest
import torch

from pipeline.cli import main
from pipeline.core.errors import DeviceMemoryError
from pipeline.evals.needs import Needs
from pipeline.launch import gpus
from pipeline.launch.memory import explain_memory
from pipeline.results import ScaleFolder
from pipeline.site import Site

FACTS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.05 GiB is "
    "free. Including non-PyTorch memory, this process has 22.58 GiB memory in use."
)
FULL = torch.OutOfMemoryError(f"{FACTS} Of the allocated memory 20.11 GiB is allocated by PyTorch, and 2.02 GiB is")


def explained(error: Exception, site: Site, micro_batch: int | None = None) -> str:
    with pytest.raises(DeviceMemoryError) as found, explain_memory("run a-b-s0", site, micro_batch):
        raise error
    return str(found.value)


def test_memory__of_a_run_that_does_not_fit__is_one_message_with_what_it_needed_and_what_to_set():
    assert explained(FULL, Site(runs_per_gpu=3), 128) == (
        f"run a-b-s0 needs more memory than its GPU has: {FACTS}\nTo make it fit: set runs_per_gpu below 3 in "
        "the site file; or set `recompute: true` in the site file (a third more time, the same numbers); or set "
        "optim.micro_batch below 128 and leave global_batch (another run by its name); or see with nvidia-smi whether "
        "others use the GPU. Then start again"
    )


def test_memory__what_is_set_already__is_not_advised():
    said = explained(FULL, Site(recompute=True), 1)
    assert "recompute" not in said and "runs_per_gpu" not in said and "micro_batch" not in said


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously",
        "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
    ],
)
def test_memory__full_outside_of_torchs_allocator__is_the_same_message_in_one_line(text):
    assert f"than its GPU has: {text.splitlines()[0]}\nTo make it fit" in explained(RuntimeError(text), Site())


def test_memory__other_errors__stay_as_they_are():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), explain_memory("run", Site()):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize("is_on_gpu", [True, False], ids=["gpu", "cpu"])
def test_evaluate__that_runs_out_of_memory__had_its_gpu_or_the_cpu_and_ends_with_the_message(
    monkeypatch, tmp_path, capsys, is_on_gpu
):
    seen = []

    def fail(job, planned, results, site):
        seen.append((site.device, os.environ[gpus.VISIBLE], [holder.job for holder in gpus.holders()]))
        raise FULL

    job = SimpleNamespace(needs=Needs(gpu=is_on_gpu))
    graph = SimpleNamespace(eval_job=lambda name: job, results=ScaleFolder(tmp_path))
    monkeypatch.setattr("pipeline.study.resolve.graph.load_for_job", lambda *arguments: graph)
    monkeypatch.setattr("pipeline.study.resolve.graph_configs.planned_evaluations", lambda *arguments: [])
    monkeypatch.setattr("pipeline.evals.evaluate.evaluate_job", fail)
    monkeypatch.setattr("pipeline.site.load_site", lambda: Site(device="cuda", gpus=[3]))
    monkeypatch.setattr(gpus, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(gpus, "_found_gpus", dict)
    monkeypatch.setenv(gpus.VISIBLE, "3,4")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    assert main(["evaluate", "--job", "a-quick"]) == 1
    assert seen == [("cuda", "3", ["a-quick"]) if is_on_gpu else ("cpu", "", [])]
    said = capsys.readouterr().err
    assert said.startswith(f"DeviceMemoryError: evaluation job a-quick needs more memory than its GPU has: {FACTS}\n")
