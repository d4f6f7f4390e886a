"""A GPU that is full: one message with the job, what it needed, what the GPU has, and what to set."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.core.errors import DeviceMemoryError
from pipeline.site import Site

# Where torch's message turns to its allocator, after what was asked for and what the GPU has.
ALLOCATOR = (" Of the allocated memory", " If reserved but unallocated")


@contextmanager
def explain_memory(what: str, site: Site, micro_batch: int | None = None) -> Iterator[None]:
    """Turn what torch raises into an error of ours; the same job would fail in the same way, so nothing repeats it."""
    try:
        yield
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"{what} needs more memory than its GPU has: {_facts(error)}\nTo make it fit: "
            f"{'; or '.join(_remedies(site, micro_batch))}. Then start again"
        ) from error


def _is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA itself, NCCL and cuBLAS have types and words of their own."""
    import torch

    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc_failed" in text


def _facts(error: RuntimeError) -> str:
    lines = str(error).splitlines() or ["it was not told how much"]
    return min((lines[0].split(mark)[0] for mark in ALLOCATOR), key=len)


def _remedies(site: Site, micro_batch: int | None) -> list[str]:
    """In the order in which they cost the least."""
    found = []
    if site.runs_per_gpu > 1:
        found.append(f"set runs_per_gpu below {site.runs_per_gpu} in the site file")
    if micro_batch and not site.recompute:
        found.append("set `recompute: true` in the site file (a third more time, the same numbers)")
    if micro_batch and micro_batch > 1:
        found.append(f"set optim.micro_batch below {micro_batch} and leave global_batch (another run by its name)")
    found.append("see with nvidia-smi whether others use the GPU")
    return found
