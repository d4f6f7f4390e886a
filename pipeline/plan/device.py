"""What a site trains on, and how fast a CPU multiplies matrices."""

import functools
import time

from pipeline.site import Site


def trains_on_gpu(site: Site) -> bool:
    """Whether each training process of this site has a GPU; a cluster's login node need not have one."""
    if site.slurm:
        return bool(site.slurm.gres)
    if site.device != "auto":
        return site.device == "cuda"
    import torch

    return torch.cuda.is_available()


@functools.cache
def matmul_gflop_per_s(num_threads: int | None = None) -> float:
    """The best of a few products of matrices on this CPU, in a fraction of a second."""
    import torch

    before, side, seconds = torch.get_num_threads(), 768, []
    torch.set_num_threads(num_threads or before)
    try:
        matrix = torch.rand(side, side)
        for _ in range(5):
            started = time.perf_counter()
            matrix @ matrix
            seconds.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return 2 * side**3 / min(seconds) / 1e9
